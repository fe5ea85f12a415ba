"""Clients of a Redis or Valkey server that repeat nothing by themselves and return answers unconverted.

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
    """A Lua script, and the hash by which the server finds it."""

    text: str
    sha: str


def script_of(text: str) -> Script:
    """A script with its hash."""
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
    """A client that connects when it is used. Its user decides what to repeat, and when."""
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": database,
        "username": user,
        "password": password,
        "client_name": name.replace(" ", "-"),
        # With a timeout, the client would wait in `asyncio.wait_for`, which may lose a cancellation (Python 3.11).
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
    # Answers are returned unconverted.
    client.response_callbacks.clear()
    return client


class _TlsConnection(SSLConnection):
    """A connection that is encrypted with an existing context."""

    def __init__(self, *, context: Any, **options: Any) -> None:
        super().__init__(**options)
        self._context = context

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {"host": self.host, "port": self.port, "ssl": self._context}
