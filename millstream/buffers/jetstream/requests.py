"""Requests to JetStream that are repeated until they are answered, the contents of a message in an answer, and the
error codes that matter to a ledger.

Above it: `ledger.py`. Below it: the connection.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from millstream.buffers.jetstream.stream_config import OWNER_PIPELINE, OWNER_VERTEX
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection
from millstream.pauses import Pauses

Get = Callable[[Mapping[str, object]], Awaitable[Mapping[str, Any] | None]]
"""One message from the stream's leader; None if no message matches."""
_log = logging.getLogger(__name__)

# Error codes of the server.
NO_MESSAGE = 10037
NO_STREAM = 10059
NAME_IN_USE = 10058
NO_STORE = 10049
NO_STORAGE = (10047, 10028)
WRONG_LAST_SEQUENCE = (10071, 10164)
STORE_FAILED = 10077
NO_RESOURCES = (10023, 10047)
BATCH_INCOMPLETE = 10176
BATCHES_IN_FLIGHT = 10210
UNAVAILABLE = (10008, 10009)

_STORE_PATIENCE_S = 5.0
"""How long a server may fail to create the files of a new stream before the error is reported."""
SILENCES_REPORTED = 3
"""A warning is logged when a request over a working connection got no answer this many times in a row."""


def tries() -> Pauses:
    """Pauses between the repetitions of a request."""
    return Pauses(0.02, 2.0)


async def until_answered(
    connection: BrokerConnection, subject: str, body: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Repeat a request until it is answered. The request must be safe to repeat. Raises `ApiError`."""
    pauses, silences = tries(), 0
    while True:
        try:
            return await connection.api(subject, body)
        except AnswerLostError as error:
            silences = silences + 1 if connection.is_up else 0
            if silences == SILENCES_REPORTED:
                _log.warning(
                    "the NATS server at %s accepts connections, but has not answered %s %d times in a row; asking "
                    "again. Check its log and its disk: a stream that could not be written waits until the server "
                    "is restarted",
                    connection.place,
                    subject,
                    silences,
                )
            else:
                _log.info("%s: %s; asking again", subject, error)
        except ApiError as error:
            if error.code not in UNAVAILABLE:
                raise
            _log.info("%s: %s; asking again", subject, error)
        await pauses.wait()


async def unless_missing(answer: Awaitable[dict[str, Any]], *missing: int) -> dict[str, Any] | None:
    """The answer to a request; None if it is refused with one of these codes, because what it is about does not
    exist. Raises `ApiError` for other refusals."""
    try:
        return await answer
    except ApiError as error:
        if error.code not in missing:
            raise
        return None


async def owned_streams(
    ask: Callable[[str, Mapping[str, object]], Awaitable[dict[str, Any]]], pipeline: str, vertex: str | None
) -> list[str]:
    """Names of the streams of a pipeline, or of one of its vertices, by their metadata. `ask`: makes a request."""
    names: list[str] = []
    offset = 0
    while True:
        answer = await ask("STREAM.LIST", {"offset": offset})
        page = answer.get("streams") or []
        for config in (stream["config"] for stream in page):
            owner = config.get("metadata") or {}
            if owner.get(OWNER_PIPELINE) == pipeline and vertex in (None, owner.get(OWNER_VERTEX)):
                names.append(config["name"])
        offset += len(page)
        if not page or offset >= answer["total"]:
            return names


async def until_created(connection: BrokerConnection, stream: str, config: Mapping[str, object]) -> dict[str, Any]:
    """Create a stream. Raises `ApiError`, as `until_answered` does."""
    pauses, give_up_s = tries(), asyncio.get_running_loop().time() + _STORE_PATIENCE_S
    while True:
        try:
            return await until_answered(connection, f"STREAM.CREATE.{stream}", config)
        except ApiError as error:
            # Files of a stream with that name that was deleted a moment ago may still be on the disk.
            if error.code != NO_STORE or asyncio.get_running_loop().time() > give_up_s:
                raise
            _log.info("the stream %s cannot be created yet: %s", stream, error)
        await pauses.wait()


def message_data(message: Mapping[str, Any]) -> bytes:
    """The body of a message in an answer."""
    return base64.b64decode(message.get("data", ""))


def message_headers(message: Mapping[str, Any]) -> dict[str, str]:
    """The headers of a message in an answer. Bytes that are not text are replaced; we never write such headers."""
    lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
