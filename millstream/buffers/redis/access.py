"""Where a Redis or Valkey server is, and how a process shows it who it is.

Above it: code that opens a connection. It holds what was looked up and reads no settings.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_PORT = 6379
"""Where a server listens by default."""
SCHEME, TLS_SCHEME = "redis", "rediss"


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """A server, and who one is to it. Secrets are not part of its text."""

    url: str
    """`redis://HOST:PORT`, or `rediss://` with encryption; without user or password."""
    user: str | None = None
    """None: the server's default user."""
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """None: no encryption. Not compared: what is read from the same files twice is not the same."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or DEFAULT_PORT

    @property
    def place(self) -> str:
        """Where the server is."""
        return f"{self.host}:{self.port}"

    @property
    def identity(self) -> str:
        """Who one is, for messages."""
        if self.user is not None:
            return f"user {self.user}"
        return "the default user" if self.password is not None else "a client without credentials"
