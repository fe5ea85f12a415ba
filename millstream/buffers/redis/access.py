"""The address of a Redis or Valkey server, and the credentials with which a process identifies itself.

Above it: code that opens a connection. It holds resolved values and reads no settings.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_PORT = 6379
"""The port at which a server listens by default."""
SCHEME, TLS_SCHEME = "redis", "rediss"


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """A server, and the credentials for it. The `repr` contains no secrets."""

    url: str
    """`redis://HOST:PORT`, or `rediss://` with encryption; without user or password."""
    user: str | None = None
    """None: the server's default user."""
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """None: no encryption. Not compared: two contexts that were read from the same files are not equal."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or DEFAULT_PORT

    @property
    def place(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def identity(self) -> str:
        """The user, for messages."""
        if self.user is not None:
            return f"user {self.user}"
        return "the default user" if self.password is not None else "a client without credentials"
