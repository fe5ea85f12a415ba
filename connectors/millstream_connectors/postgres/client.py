"""Connections to PostgreSQL, and what its errors mean to a lane.

Above it: connectors. Below it: asyncpg. Every failure becomes a Millstream error, by who must act: one that passes by
itself becomes `RetryLaterError`, so the lane waits for a server that is away, restarts or is full.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import asyncpg

from millstream import codes
from millstream.errors import MillstreamError, RetryLaterError, UserError
from millstream.limits import POSTGRES_CONNECT_TIMEOUT_S
from millstream.spec.references import resolve
from millstream.wire.client_tls import is_not_accepted, load_chain, trusting
from millstream_connectors.postgres.settings import PostgresServer
from millstream_connectors.shared.failing import on_failure, translating

Connection: TypeAlias = asyncpg.Connection

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""Exceptions of the client: everything that can go wrong between a lane and its server."""

_OF_A_RECORD = ("22", "23", "44", "P0", "27")
"""Classes of errors about the contents of a statement: values out of range, constraints, checks of views, triggers."""
_PASSING = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of errors that may pass: lost connections, a standby, deadlocks, full disks, locks, restarts, faulty
storage."""
_NO_TLS = "rejected SSL upgrade"
"""asyncpg's text for a server without TLS, in an error that it also raises for servers that are away."""
_REFUSED = ("28", "3D", "42501")
_SERVER_SETTINGS = {"timezone": "UTC", "datestyle": "ISO", "intervalstyle": "iso_8601", "bytea_output": "hex"}


@dataclass(frozen=True, slots=True)
class Login:
    """Where, and as whom, a lane connects: what all its connections have in common."""

    server: PostgresServer
    base_dir: Path
    where: str
    """The lane, as messages begin."""
    application: str
    """Its name on the server, which the administrator sees, and by which a hanging process of this lane is
    recognized."""

    async def connect(self, *, replicates: bool = False) -> Connection:
        """A connection whose commits are durable on the server. `replicates`: a replication connection, which has other
        commands.

        Raises `UserError` if the user has to change something, and `RetryLaterError` if the server cannot be reached
        now.
        """
        server = self.server
        what = f"{self.where}: the password for {server.host}"
        with translating((*FAILURES, ValueError), partial(self.error_of, opening=True)):
            connection: Connection = await asyncpg.connect(
                host=server.host,
                port=server.port,
                user=server.user,
                database=server.database,
                password=None if server.password is None else resolve(server.password, self.base_dir, what),
                ssl=_tls(server, self.base_dir, self.where),
                timeout=POSTGRES_CONNECT_TIMEOUT_S,
                server_settings={
                    **_SERVER_SETTINGS,
                    "application_name": self.application,
                    **({"replication": "database"} if replicates else {}),
                },
            )
            with on_failure(connection.terminate):
                # A server or a role may be configured to acknowledge commits before they are written.
                if not replicates and await connection.fetchval("SHOW synchronous_commit") == "off":
                    await connection.execute("SET synchronous_commit TO on")
        return connection

    def translated(self) -> AbstractContextManager[None]:
        """Converts errors of the client to Millstream errors."""
        return translating(FAILURES, self.error_of)

    def error_of(self, error: BaseException, *, opening: bool = False) -> MillstreamError:
        """The Millstream error for an error of the client. `opening`: whether the connection was being opened."""
        server = self.server
        place = f"{self.where}: PostgreSQL at {server.host}:{server.port}"
        code, said = sqlstate_of(error), str(error) or type(error).__name__
        if isinstance(error, asyncio.TimeoutError):
            return RetryLaterError(codes.TARGET_AWAY, f"{place} did not answer in time")
        if isinstance(error, ssl.SSLError) or _NO_TLS in said:
            return UserError(codes.TARGET_REFUSES, f"{place}: no encrypted connection: {said}")
        if isinstance(error.__cause__, ssl.SSLError) and is_not_accepted(str(error.__cause__)):
            return UserError(
                codes.TARGET_REFUSES, f"{place} does not accept `sslCert`, or wants one: {error.__cause__}"
            )
        if code.startswith(_REFUSED):
            return UserError(codes.TARGET_REFUSES, f"{place} refuses {server.user}: {said}")
        if not code or code.startswith(_PASSING):
            # The end of the connection may arrive instead of the reason why the server ends it.
            lost = code.startswith("08") or isinstance(error, ConnectionResetError | BrokenPipeError)
            also = ", or does not accept `sslCert`" if opening and lost and server.ssl_cert is not None else ""
            return RetryLaterError(codes.TARGET_AWAY, f"{place} cannot be used now{also}: {said}")
        hint = getattr(error, "hint", None)
        return UserError(codes.TARGET_UNFIT, f"{place}: {said}{f' ({hint})' if hint else ''} [SQLSTATE {code}]")


@asynccontextmanager
async def looking(server: PostgresServer, base_dir: Path) -> AsyncIterator[Connection]:
    """A connection for `validate --online`. Raises Millstream errors."""
    login = Login(server, base_dir, "validate --online", "millstream validate")
    connection = await login.connect()
    try:
        with login.translated():
            yield connection
    finally:
        connection.terminate()


def _tls(server: PostgresServer, base_dir: Path, where: str) -> ssl.SSLContext | str:
    verified = server.sslmode.startswith("verify")
    if not verified and server.ssl_cert is None:
        return server.sslmode
    root = server.ssl_root_cert
    try:
        if root is None or isinstance(root, str):
            context = ssl.create_default_context(cafile=None if root is None else str(base_dir / root))
        else:
            context = trusting(resolve(root, base_dir, f"{where}: sslRootCert"))
    except (OSError, ValueError) as error:
        named = root if isinstance(root, str) else "`sslRootCert`"
        raise UserError(codes.CERTIFICATES, f"{where}: the certificates of {named} cannot be used: {error}") from error
    context.check_hostname = server.sslmode == "verify-full"
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    if server.ssl_cert is not None:
        parts = [resolve(server.ssl_cert, base_dir, f"{where}: sslCert")]
        parts.append(resolve(server.ssl_key, base_dir, f"{where}: sslKey"))
        try:
            load_chain(context, "\n".join(parts).encode())
        except (OSError, ValueError) as error:
            what = f"{where}: `sslCert` and `sslKey` cannot be used: {error}. Both must be PEM"
            raise UserError(codes.CERTIFICATES, f"{what}, and the key must not have a passphrase") from error
    return context


def sqlstate_of(error: BaseException) -> str:
    """The SQLSTATE of an error; empty if it does not come from the server."""
    return str(getattr(error, "sqlstate", None) or "")


def is_of_a_record(error: BaseException) -> bool:
    """Whether the server rejects the contents of a record."""
    return sqlstate_of(error).startswith(_OF_A_RECORD)


def reason_of(error: BaseException) -> str:
    """The reason for a rejection, from a small set: `unique violation`."""
    name = type(error).__name__.removesuffix("Error")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return f"refused by the database: {words}"
