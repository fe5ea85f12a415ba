"""How pipeline files name an HTTP server, and the credentials for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import Reference, Secret, TextOrReference, secret_in_file
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, conflicts, exactly_one, field, problem
from millstream_connectors.shared.aws.settings import AwsService
from millstream_connectors.shared.oauth2.settings import Oauth2
from millstream_connectors.shared.servers import BasicAuth

_SECRET_NAME = re.compile(r"(?i)authorization|cookie|.*(token|secret|password|api-?_?key|signature).*")
_ENCRYPTED = ("https", "wss")
HTTP, WEBSOCKET = ("http", "https"), ("ws", "wss")
"""The URL schemes."""


def is_url(text: str, schemes: Collection[str]) -> bool:
    """Whether it is an absolute URL with one of these schemes, without credentials, which messages would show."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return valid and "@" not in parts.netloc


def url_check(schemes: Collection[str]) -> Callable[[str | Reference], str | Reference]:
    """A check of a URL in a pipeline file; a reference passes."""
    plain, encrypted = schemes

    def checked(written: str | Reference) -> str | Reference:
        if isinstance(written, str) and not is_url(written, schemes):
            what = f"{without_secrets(written)!r} is not a usable URL"
            expected = f"{plain}://host:port/path or {encrypted}://…; set a user and a password in `auth`"
            raise problem(codes.VALUE_MALFORMED, what, expected)
        return written

    return checked


class WebAuth(SpecModel):
    """How the pipeline identifies itself to the server: one of these. Use `headers` for other methods."""

    noun = "auth"

    basic: BasicAuth | None = None
    """By user and password."""
    token: Secret | None = None
    """By a bearer token."""
    oauth2: Oauth2 | None = None
    """By tokens that an issuer gives to a client (OAuth 2.0). Each is replaced before it expires."""
    aws: AwsService | None = None
    """By signatures, as services of AWS demand them (Signature Version 4). Needs `millstream[aws]`."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Requires exactly one kind of credentials."""
        yield from exactly_one(data, ("basic", "token", "oauth2", "aws"), cls.noun)


class WebServer(SpecModel):
    """The requests to a server, and the credentials for them. A subclass has the `url`, with a check of its scheme."""

    url: TextOrReference

    auth: WebAuth | None = None
    """Credentials. Default: none."""
    headers: dict[str, TextOrReference] = field(default_factory=dict)
    """Headers of every request. Write one with a secret as `{env: NAME, prefix: "Key "}` or `{file: PATH}`."""
    tls: ServerTls | None = None
    """Which certificates are accepted, and the client certificate of the pipeline. Default: those of the system's
    certificate authorities."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """Longest time to wait for an answer. Duration, default 30s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects two sources of `Authorization`, and `tls` for an unencrypted connection."""
        yield from conflicts(
            (
                self.auth is not None and any(name.lower() == "authorization" for name in self.headers),
                ("auth",),
                "`auth` sets the header `Authorization`, which is also in `headers`",
                "only one of them",
            ),
            (
                self.tls is not None and isinstance(self.url, str) and urlsplit(self.url).scheme not in _ENCRYPTED,
                ("tls",),
                "`tls` has no effect with an unencrypted `url`",
                " or ".join(f"{one}://" for one in _ENCRYPTED),
            ),
        )

    def notes(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Notes on secrets in the pipeline file, and on unencrypted ones on the network."""
        # The secret of a signature is not sent.
        secret = self.auth is not None and self.auth.aws is None
        for name, value in self.headers.items():
            if _SECRET_NAME.fullmatch(name):
                secret = True
                if isinstance(value, str):
                    yield (*path, "headers", name), secret_in_file(name)
        if not isinstance(self.url, str):
            return
        parts = urlsplit(self.url)
        for name, _ in parse_qsl(parts.query):
            if _SECRET_NAME.fullmatch(name):
                secret = True
                yield (*path, "url"), secret_in_file(name, "url")
        if secret and parts.scheme not in _ENCRYPTED and not stays_on_this_machine(parts.hostname or ""):
            what = f"a secret is sent to {parts.hostname} unencrypted; `{parts.scheme}s://` encrypts it"
            yield (*path, "url"), what
