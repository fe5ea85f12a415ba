"""The address of a broker, and the credentials with which a process identifies itself.

Above it: code that opens a connection. It holds resolved values and reads no settings; `access_file.py` does.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millstream.nats.signing import Credentials, read_credentials

DEFAULT_PORT = 4222
"""Where a NATS server listens by default."""
INBOX = "_INBOX"
"""Prefix of the subjects for answers, unless the broker gives each user a separate one."""


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """A broker, and the credentials for it. The `repr` contains no secrets."""

    url: str
    """URL of the server, or of several, separated by commas; without user or password."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey_seed: str | None = field(default=None, repr=False)
    credentials_file: Path | None = None
    """File with a user's JWT and seed, as `nsc` writes it; read again for every connection."""
    credentials: str | None = field(default=None, repr=False)
    """The contents of such a file, in place of it."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """None: no encryption, or encryption with the system's certificates if the URL begins with `tls://`. Not compared:
    two contexts that were read from the same files are not equal."""
    tls_name: str | None = None
    """The name in the server's certificate, if it differs from the one in the URL."""
    inbox: str = INBOX
    """Prefix of the subjects for answers."""
    outside: bool = False
    """Whether it is a connector's server rather than the pipeline's own."""
    monitor_url: str | None = None
    """HTTP monitoring address of the server, if it does not report its settings over NATS."""

    @property
    def place(self) -> str:
        """The server's place, for messages."""
        return place_of(self.url)

    @property
    def identity(self) -> str:
        """The user, for messages."""
        named = (
            (self.user, f"user {self.user}"),
            (self.credentials_file, f"the user of {self.credentials_file}"),
            (self.credentials, "the user of the credentials"),
            (self.nkey_seed, "the user of the NKey"),
            (self.token, "the user of the token"),
        )
        return next((text for given, text in named if given is not None), "a client without credentials")

    def client_options(self) -> Mapping[str, Any]:
        """Arguments for `nats-py` to connect, without the servers."""
        given = {
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "nkeys_seed_str": self.nkey_seed,
            "user_credentials": self._credentials(),
            "tls": self.tls,
            "tls_hostname": self.tls_name,
        }
        return {"inbox_prefix": self.inbox, **{name: value for name, value in given.items() if value is not None}}

    def _credentials(self) -> Credentials | None:
        if self.credentials_file is not None:
            return Credentials(partial(read_credentials, self.credentials_file))
        if self.credentials is not None:
            return Credentials(partial(str, self.credentials))
        return None


def place_of(url: str) -> str:
    """Host and port of the first server, without user or password."""
    first = url.split(",")[0]
    parts = urlsplit(first if "//" in first else f"nats://{first}")
    return f"{parts.hostname}:{parts.port or DEFAULT_PORT}"
