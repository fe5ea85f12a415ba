"""How pipeline files name a Redis or Valkey server."""

from __future__ import annotations

from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from millstream.spec.addresses import address_check
from millstream.spec.rules import After
from millstream.spec.values import Text
from millstream_connectors.shared.servers import ServerByUrl

_PORTS = {"redis": 6379, "rediss": 6379}

_checked_url = address_check(
    "the address of a Redis server",
    _PORTS,
    "redis://host:port, or rediss:// with TLS, optionally followed by `/` and a database; set `user` and "
    "`password` separately",
    path=lambda path: path in ("", "/") or path.removeprefix("/").isdigit(),
)


class RedisServer(ServerByUrl):
    """A server, and the user that connects to it."""

    noun = "a redis connection"
    ports: ClassVar = _PORTS

    url: Annotated[Text, After(_checked_url)]
    """The server, `redis://host:port`, or `rediss://host:port` with TLS, optionally followed by `/` and the number of a
    database."""
    user: Text | None = None
    """Name of the user that connects. Default: the server's default user."""

    @property
    def database(self) -> int:
        """Number of the database."""
        return int(urlsplit(self.url).path.removeprefix("/") or 0)
