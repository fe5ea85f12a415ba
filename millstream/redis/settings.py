"""How pipeline files name a Redis or Valkey server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from millstream import codes
from millstream.spec.addresses import address_check
from millstream.spec.problems import Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.tls import ServerTls, stays_on_this_machine
from millstream.spec.values import PositiveDuration, ShapeProblem, SpecModel, Text, field

_SCHEMES = ("redis", "rediss")
_PORT = 6379


_checked_url = address_check(
    "the address of a Redis server",
    _SCHEMES,
    "redis://host:port, or rediss:// with TLS, optionally followed by `/` and a database; set `user` and "
    "`password` separately",
    path=lambda path: path in ("", "/") or path.removeprefix("/").isdigit(),
)


class RedisServer(SpecModel):
    """A server, and the user that connects to it."""

    noun = "a redis connection"

    url: Annotated[Text, After(_checked_url)]
    """The server, `redis://host:port`, or `rediss://host:port` with TLS, optionally followed by `/` and the number of a
    database."""
    user: Text | None = None
    """Name of the user that connects. Default: the server's default user."""
    password: TextOrReference | None = None
    """Its password, as `{env: NAME}` or `{file: PATH}`. Default: none."""
    tls: ServerTls | None = None
    """Which certificates are accepted if `url` is `rediss://`. Default: those of the authorities of the system."""
    timeout_s: PositiveDuration = field(default=10.0, alias="timeout")
    """Longest time to wait for an answer. After it, the connection is closed and a new one is tried. Duration, default
    10s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Certificates where they are looked at."""
        if self.tls is not None and not self.encrypted:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("tls",), "`tls` has no effect with redis://", "rediss://")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is."""
        return urlsplit(self.url).scheme == "rediss"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or _PORT

    @property
    def database(self) -> int:
        """Its number."""
        return int(urlsplit(self.url).path.removeprefix("/") or 0)


def server_notes(settings: RedisServer, path: Path) -> Iterator[tuple[Path, str]]:
    """What to know about the way to a server."""
    if isinstance(settings.password, str):
        yield (
            (*path, "password"),
            "the value of `password` is in the pipeline file; use `{env: NAME}` or `{file: PATH}` instead",
        )
    if settings.password is not None and not settings.encrypted and not stays_on_this_machine(settings.host.lower()):
        yield (*path, "url"), "the password and the records are sent to the server unencrypted; rediss:// encrypts them"
