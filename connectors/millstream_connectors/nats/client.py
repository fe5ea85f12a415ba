"""A lane's connection to an external NATS server, and what its errors mean to the lane.

Above it: connectors. Below it: the connection. Every failure becomes a Millstream error, by who must act: one that
passes by itself becomes `RetryLaterError`, so the lane waits for a server that is away, restarts or is full.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError, RetryLaterError, UserError
from millstream.nats.access import BrokerAccess
from millstream.nats.client import nats_errors
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection, NotPermittedError, open_connection
from millstream.nats.signing import checked_credentials, checked_seed, read_credentials
from millstream.spec.references import TextOrReference, resolve
from millstream.wire.client_tls import context_of
from millstream_connectors.nats.settings import NatsAuth, NatsServer

NO_STREAM = 10059
NO_MESSAGE = 10037
PASSING = (10008, 10009, 10023, 10028, 10047, 10077, 10176, 10210)
"""Codes of errors that may pass: no leader, no space, no resources, a failed store, an incomplete batch, too many
batches at once."""


def access_of(settings: NatsServer, base_dir: Path, where: str) -> BrokerAccess:
    """Access to the server, with all secrets resolved. Raises `UserError`."""
    auth = settings.auth or NatsAuth()

    def text_of(name: str, written: TextOrReference | None) -> str | None:
        return None if written is None else resolve(written, base_dir, f"{where}: auth.{name}")

    seed = text_of("nkey", auth.nkey)
    creds_file = creds = None
    if isinstance(auth.creds, str):
        creds_file = base_dir / auth.creds
        _check_credentials(creds_file, f"{where}: auth.creds")
    elif (written := text_of("creds", auth.creds)) is not None:
        creds = checked_credentials(written, f"{where}: auth.creds", codes.CONNECTOR_SETTINGS)
    tls: ssl.SSLContext | None = None
    if settings.tls is not None:
        tls = context_of(settings.tls, base_dir, where)
    elif settings.encrypted:
        tls = ssl.create_default_context()
    return BrokerAccess(
        ",".join(server.strip() for server in settings.url.split(",")),
        user=text_of("basic.user", None if auth.basic is None else auth.basic.user),
        password=text_of("basic.password", None if auth.basic is None else auth.basic.password),
        token=text_of("token", auth.token),
        nkey_seed=None if seed is None else checked_seed(seed, f"{where}: auth.nkey", codes.CONNECTOR_SETTINGS),
        credentials_file=creds_file,
        credentials=creds,
        tls=tls,
        outside=True,
    )


def _check_credentials(file: Path, what: str) -> None:
    """Check a file that is read again for every connection."""
    try:
        contents = read_credentials(file)
    except FileNotFoundError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: there is no file {file}") from error
    except OSError as error:
        raise UserError(codes.SECRET_MISSING, f"{what}: {file} cannot be read: {error.strerror}") from error
    checked_credentials(contents, f"{what}: {file}", codes.CONNECTOR_SETTINGS)


@asynccontextmanager
async def linked(settings: NatsServer, base_dir: Path, where: str, name: str) -> AsyncIterator[BrokerConnection]:
    """A connection, which is opened again whenever it is lost. Raises Millstream errors if it cannot be opened."""
    opening = open_connection(access_of(settings, base_dir, where), name=name, timeout_s=settings.timeout_s)
    async with AsyncExitStack() as life:
        try:
            connection = await life.enter_async_context(opening)
        except InfrastructureError as error:
            if error.code == codes.BROKER_REFUSES:
                raise UserError(codes.TARGET_REFUSES, f"{where}: {error}") from error
            raise RetryLaterError(codes.TARGET_AWAY, f"{where}: {error}") from error
        yield connection


@asynccontextmanager
async def looking(settings: NatsServer, base_dir: Path) -> AsyncIterator[BrokerConnection]:
    """A connection for `validate --online`. Raises Millstream errors."""
    where = "validate --online"
    async with linked(settings, base_dir, where, "millstream validate") as connection:
        with translated(connection, where):
            yield connection


@contextmanager
def translated(connection: BrokerConnection, where: str) -> Iterator[None]:
    """Converts every failure inside it to a Millstream error."""
    place = f"{where}: NATS at {connection.place}"
    try:
        yield
    except NotPermittedError as error:
        raise UserError(codes.TARGET_REFUSES, f"{where}: {error}") from error
    except InfrastructureError as error:
        if error.code == codes.BROKER_REFUSES:
            raise UserError(codes.TARGET_REFUSES, f"{where}: {error}") from error
        raise
    except ApiError as error:
        if error.code in PASSING:
            raise RetryLaterError(codes.TARGET_AWAY, f"{place} cannot do this now: {error}") from error
        raise UserError(codes.TARGET_UNFIT, f"{place}: {error}") from error
    except nats_errors.MaxPayloadError as error:
        raise UserError(codes.TARGET_UNFIT, f"{place}: a message is larger than its max_payload") from error
    except (AnswerLostError, TimeoutError, nats_errors.Error) as error:
        said = str(error) or type(error).__name__
        raise RetryLaterError(codes.TARGET_AWAY, f"{place} does not answer: {said}") from error
