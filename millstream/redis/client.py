"""Clients of a Redis or Valkey server that repeat nothing by themselves and hand answers over as they come.

Above it: the ledgers in Redis, and connectors. Below it: redis-py.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from hashlib import sha1
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


class Script(NamedTuple):
    """Lua, and the name by which the server finds it."""

    text: str
    sha: str


def script_of(text: str) -> Script:
    """With its name."""
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def make_client(
    host: str,
    port: int,
    *,
    user: str | None,
    password: str | None,
    tls: ssl.SSLContext | None,
    name: str,
    connect_timeout_s: float,
    database: int = 0,
) -> Redis:
    """One that connects when it is used. What is repeated, and when, is its user's to decide."""
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": database,
        "username": user,
        "password": password,
        "client_name": name.replace(" ", "-"),
        # With a timeout of its own it waits in `asyncio.wait_for`, which may lose a cancellation (Python 3.11).
        "socket_timeout": None,
        "socket_connect_timeout": connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "decode_responses": False,
    }
    if tls is not None:
        pool = ConnectionPool(connection_class=_TlsConnection, context=tls, **options)
    else:
        pool = ConnectionPool(connection_class=Connection, **options)
    client = Redis(connection_pool=pool)
    # Answers are taken as they come.
    client.response_callbacks.clear()
    return client


class _TlsConnection(SSLConnection):
    """Encrypted by a context that is ready."""

    def __init__(self, *, context: Any, **options: Any) -> None:
        super().__init__(**options)
        self._context = context

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {"host": self.host, "port": self.port, "ssl": self._context}
