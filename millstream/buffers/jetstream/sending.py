"""Sends a commit to a stream: as an atomic batch, or as one plain message.

Above it: `ledger.py`. Below it: the connection, and the messages of a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from millstream import codes, limits
from millstream.durable import step
from millstream.errors import MillstreamError, UserError
from millstream.ledger.batch import BatchMessage
from millstream.nats.client import Msg, nats_errors
from millstream.nats.connection import BrokerConnection, answered

BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"

Answer = asyncio.Future[Msg]


async def send_commit(connection: BrokerConnection, messages: Sequence[BatchMessage], timeout_s: float) -> int:
    """Make one attempt to send a commit. Returns the sequence of its last message.

    Raises `ApiError` if the server refuses, and `AnswerLostError` if it is not known whether the batch was stored. The
    server drops a batch of which it receives only a part, or two parts with a gap. A single message is always complete,
    so it is sent as a plain message.
    """
    last = len(messages)
    # Only a batch needs an id.
    batch_id = uuid4().hex if last > 1 else ""
    reply, answer = connection.expect_answer()
    try:
        with message_size_checked(connection):
            for number, (subject, data, headers) in enumerate(messages, 1):
                if last == 1:
                    await connection.publish(subject, data, headers, reply)
                    break
                batch_headers = {BATCH_ID: batch_id, BATCH_SEQUENCE: str(number), **headers}
                if number < last:
                    with step("ledger.stage"):
                        await connection.publish(subject, data, batch_headers)
                else:
                    batch_headers[BATCH_COMMIT] = "1"
                    await connection.publish(subject, data, batch_headers, reply)
    except BaseException:
        answer.cancel()
        raise
    stored = await stored_at(connection, answer, timeout_s)
    if stored.get("count", 1) != last:
        raise MillstreamError(
            codes.BROKER_ANSWER,
            f"the broker acknowledged {stored.get('count')} of the {last} messages of a batch: {stored}",
        )
    return int(stored["seq"])


async def stored_at(connection: BrokerConnection, answer: Answer, timeout_s: float) -> dict[str, Any]:
    """What the server answers once a message is stored, with its sequence in `seq`. Raises `ApiError` and
    `AnswerLostError`."""
    return answered((await connection.answer_of(answer, timeout_s)).data)


@contextmanager
def message_size_checked(connection: BrokerConnection) -> Iterator[None]:
    """Raises `UserError` for a message that is larger than the broker accepts."""
    try:
        yield
    except nats_errors.MaxPayloadError as error:
        raise UserError(
            codes.BROKER_MESSAGE_SIZE,
            f"the broker at {connection.place} accepts messages of at most {connection.client.max_payload} bytes. "
            f"Set its max_payload to {limits.MESSAGE_BYTES_MAX}",
        ) from error
