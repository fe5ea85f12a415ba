"""How pipeline files name a server that is reached over HTTP, and who asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from millstream import codes
from millstream.spec.addresses import without_secrets
from millstream.spec.problems import Path
from millstream.spec.references import Reference, Secret, TextOrReference
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, exactly_one, field, problem

_SECRET_NAME = re.compile(r"(?i)authorization|cookie|.*(token|secret|password|api-?_?key|signature).*")
_ENCRYPTED = ("https", "wss")
HTTP, WEBSOCKET = ("http", "https"), ("ws", "wss")
"""Schemes of URLs."""


def is_url(text: str, schemes: Collection[str]) -> bool:
    """Whether it is an absolute URL of one of these schemes, without credentials, which messages would show."""
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
            what = f"{without_secrets(written)!r} is not a URL that can be used"
            expected = f"{plain}://host:port/path or {encrypted}://…; a user and a password go into `auth`"
            raise problem(codes.VALUE_MALFORMED, what, expected)
        return written

    return checked


class WebBasic(SpecModel):
    """A user and a password."""

    noun = "basic"

    user: TextOrReference
    """The user's name, or where it stands."""
    password: Secret
    """Where the password stands: `{env: NAME}`, `{file: PATH}`, or a key of a Kubernetes Secret."""


class WebAuth(SpecModel):
    """How the server knows the pipeline: one of these. Another way is a header."""

    noun = "auth"

    basic: WebBasic | None = None
    """By user and password."""
    token: Secret | None = None
    """By a bearer token."""

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """One way to say who one is."""
        yield from exactly_one(data, ("basic", "token"), cls.noun)


class WebServer(SpecModel):
    """What is asked, and who asks. A subclass has the `url`, with a check of its scheme."""

    url: TextOrReference

    auth: WebAuth | None = None
    """Who asks. Default: the server asks for nothing."""
    headers: dict[str, TextOrReference] = field(default_factory=dict)
    """Headers of every request; one with a secret as `{env: NAME, prefix: "Key "}` or `{file: PATH}`."""
    tls: ServerTls | None = None
    """Which certificates count, and the pipeline's own. Default: those of the authorities of the system."""
    timeout_s: PositiveDuration = field(default=30.0, alias="timeout")
    """How long an answer may take. Duration, default 30s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """One source of `Authorization`; certificates only where they are used."""
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            what = "`auth` is the header `Authorization`, which `headers` has, too"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("auth",), what, "one of them")
        if self.tls is not None and isinstance(self.url, str) and urlsplit(self.url).scheme not in _ENCRYPTED:
            what = "`tls` has no effect with an unencrypted `url`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), what, " or ".join(f"{one}://" for one in _ENCRYPTED))


def server_notes(settings: WebServer, path: Path) -> Iterator[tuple[Path, str]]:
    """Secrets that are in the file, and those that go over the network in the clear."""
    secret = settings.auth is not None
    for name, value in settings.headers.items():
        if _SECRET_NAME.fullmatch(name):
            secret = True
            if isinstance(value, str):
                what = f"`{name}` stands in the file; `{{env: NAME}}` or `{{file: PATH}}` keeps it out"
                yield (*path, "headers", name), what
    if not isinstance(settings.url, str):
        return
    parts = urlsplit(settings.url)
    for name, _ in parse_qsl(parts.query):
        if _SECRET_NAME.fullmatch(name):
            secret = True
            what = f"`{name}` stands in the file; the whole `url` as `{{env: NAME}}` or `{{file: PATH}}` keeps it out"
            yield (*path, "url"), what
    if secret and parts.scheme not in _ENCRYPTED and not stays_on_this_machine(parts.hostname or ""):
        what = f"a secret goes to {parts.hostname} in the clear; `{parts.scheme}s://` encrypts it"
        yield (*path, "url"), what
