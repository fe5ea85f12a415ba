"""Where a broker is, and how a process shows it who it is.

Above it: code that opens a connection. It holds what was looked up and reads no settings: `access_file.py` does.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEFAULT_PORT = 4222
"""Where a NATS server listens by default."""
INBOX = "_INBOX"
"""What the subjects that answers come to begin with, unless the broker gives each user a place of its own."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """A broker, and who one is to it. Secrets are not part of its text."""

    url: str
    """Of the server, or of several, separated by commas; without user or password."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    credentials_file: Path | None = None
    """A user's JWT and seed, as `nsc` writes them; read again at every connection."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """None: no encryption, or that of the system's certificates where the URL begins with `tls://`. Not compared: what
    is read from the same files twice is not the same."""
    tls_name: str | None = None
    """The name that the server's certificate is for, where that is not the one in the URL."""
    inbox: str = INBOX
    """What the subjects that answers come to begin with."""
    outside: bool = False
    """Whether it is a server that a connector talks to, not the pipeline's own."""
    monitor_url: str | None = None
    """HTTP monitoring of the server, for one that does not tell its settings over NATS."""

    @property
    def place(self) -> str:
        """Where the server is."""
        return place_of(self.url)

    @property
    def servers(self) -> list[str]:
        """One URL for each server."""
        return self.url.split(",")

    @property
    def identity(self) -> str:
        """Who one is, for messages."""
        if self.user is not None:
            return f"user {self.user}"
        if self.credentials_file is not None:
            return f"the user of {self.credentials_file}"
        if self.nkey_seed is not None:
            return "the user of the NKey"
        return "the user of the token" if self.token is not None else "a client without credentials"

    def client_options(self) -> Mapping[str, Any]:
        """What `nats-py` takes to connect, but for the servers."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkeys_seed_str": self.nkey_seed,
            "user_credentials": None if self.credentials_file is None else str(self.credentials_file),
            "tls": self.tls,
            "tls_hostname": self.tls_name,
        }
        return {"inbox_prefix": self.inbox, **{name: value for name, value in given.items() if value is not None}}


def place_of(url: str) -> str:
    """Host and port of the first server, without user or password."""
    first = url.split(",")[0]
    parts = urlsplit(first if "//" in first else f"nats://{first}")
    return f"{parts.hostname}:{parts.port or DEFAULT_PORT}"
