"""Large frames of an atomic batch, which are stored apart from it: the batch has only references to them.

    frames ──► plain messages, which no reader reads ──► their sequences ──► batch: references, ids, mark

The server writes each message of a batch twice, and flushes it to the disk twice. A frame that is stored apart is
written once. The batch is still the commit: without it, nothing refers to these frames, and the owner or the next owner
of the lane removes them.

    reference ──► is the frame there? ─► the frame
                                 no  ──► is the reference still there? no  ──► both were trimmed
                                                                       yes ──► damage: a frame without data

Above it: `ledger.py`, `pull.py` and `repairs.py`. Below it: the connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from millstream import limits
from millstream.buffers.jetstream.requests import Get, message_data, message_headers
from millstream.buffers.jetstream.sending import Answer, message_size_checked, stored_at
from millstream.durable import step
from millstream.ledger.batch import BatchMessage
from millstream.ledger.subjects import apart_subject
from millstream.ledger.witness import NAME
from millstream.nats.connection import API_TIMEOUT_S, AnswerLostError, ApiError, BrokerConnection

REFERENCE = "Millstream-Reference"
"""Header of a message in the place of a frame that is stored apart: the frame's sequence, and its size in bytes."""
_VALUE = re.compile(r"([1-9][0-9]{0,18}) ([1-9][0-9]{0,18})")

_LEFT_MAX = 2
"""How often frames of a commit may be left before they are no longer stored apart."""


class FrameReference(NamedTuple):
    """Where a frame is stored, and what it is."""

    sequence: int
    """0 if the reference cannot be read."""
    size: int
    name: str | None
    """See `Witness.name`: the frame and its reference have the same."""


def reference_in(headers: Mapping[str, str]) -> FrameReference | None:
    """The reference in a message with these headers; None if the message is itself the frame."""
    value = headers.get(REFERENCE)
    if value is None:
        return None
    match = _VALUE.fullmatch(value)
    return FrameReference(int(match[1]) if match else 0, int(match[2]) if match else 0, headers.get(NAME))


class FramesApart:
    """The large frames of one commit. They are stored in the order in which the commit has them, and all again if one
    of them fails: a trim removes all frames of a lane up to one that its reader has passed."""

    def __init__(
        self, connection: BrokerConnection, stream: str, messages: Sequence[BatchMessage], frames: int
    ) -> None:
        """`messages`: of the commit; those of its frames, `frames` in number, are the first."""
        self._connection = connection
        self._stream = stream
        self._messages = messages
        self._large = [number for number in range(frames) if len(messages[number].data) >= limits.FRAME_APART_BYTES_MIN]
        self._sequences: list[int] = []
        """Of the frames that are stored."""
        self._losses = -1
        self._stay = False
        """Whether a batch may be stored that refers to these frames, because its answer was lost."""
        self._left = 0
        """How often frames may have been left, because an answer or the connection was lost."""

    @property
    def has_left(self) -> bool:
        """Whether frames may be stored that no batch refers to."""
        return self._left > 0 or self._stay

    async def store(self, timeout_s: float) -> Sequence[BatchMessage]:
        """The messages to send as the batch, once every large frame is stored. Raises as `send_commit` does.

        After several losses, the frames are sent with the batch, so that a connection that breaks again and again does
        not fill the stream.
        """
        losses = self._connection.losses
        if self._losses != losses and self._sequences:
            # The server may have come back with an older stream.
            self._leave()
        if not self._large or self._left >= _LEFT_MAX:
            return self._messages
        if len(self._sequences) < len(self._large):
            await self.remove()
            self._losses, self._sequences = losses, []
            try:
                await self._store_all(timeout_s)
                if losses != self._connection.losses:
                    # The batch must not be sent before the mark was read again.
                    raise AnswerLostError("the connection was lost after the frames were stored")
            except AnswerLostError:
                await self.remove()
                self._leave()
                raise
        messages = list(self._messages)
        for number, sequence in zip(self._large, self._sequences, strict=True):
            subject, data, headers = messages[number]
            messages[number] = BatchMessage(subject, b"", {**headers, REFERENCE: f"{sequence} {len(data)}"})
        return messages

    def may_be_needed(self) -> None:
        """A batch was sent that refers to these frames, and it is not known whether it is stored, or will be."""
        self._stay = bool(self._sequences)

    def _leave(self) -> None:
        """Some of these frames may stay, without a reference."""
        self._sequences, self._stay = [], False
        self._left += 1

    async def remove(self) -> None:
        """Remove the frames that are stored, unless a batch may refer to them: the commit was refused."""
        while self._sequences and not self._stay:
            if not await removed(self._connection, self._stream, self._sequences[-1], self._losses):
                return
            self._sequences.pop()

    async def _store_all(self, timeout_s: float) -> None:
        answers: list[Answer] = []
        failed: Exception | None = None
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            for number in self._large:
                answer = await self._publish(self._messages[number])
                answers.append(answer)
            for answer in answers:
                left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
                try:
                    self._sequences.append(int((await stored_at(self._connection, answer, left_s))["seq"]))
                except (AnswerLostError, ApiError) as error:
                    # The others are stored, or not, before anything is decided.
                    failed = failed or error
        finally:
            for answer in answers:
                answer.cancel()
        if failed is not None:
            raise failed
        if self._sequences != sorted(self._sequences):
            raise AnswerLostError(f"frames were stored out of order: {self._sequences}")

    async def _publish(self, message: BatchMessage) -> Answer:
        subject, data, headers = message
        named = {NAME: headers[NAME]} if NAME in headers else None
        with message_size_checked(self._connection), step("ledger.apart"):
            return await self._connection.send_request(apart_subject(subject), data, named)


async def removed(connection: BrokerConnection, stream: str, sequence: int, losses: int) -> bool:
    """Try once to remove a message. False if it may not be removed. `losses`: how often the connection had been lost
    when the message was there: after another loss, there may be a different one."""
    await connection.connected()
    if connection.losses != losses:
        return False
    try:
        with step("ledger.remove"):
            await connection.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
    except (AnswerLostError, ApiError):
        return False
    return True


async def request_apart(connection: BrokerConnection, stream: str, reference: FrameReference) -> Answer:
    """Request the frame that a reference leads to. The answer is for `read_apart`. Raises `AnswerLostError`."""
    return await connection.send_request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % reference.sequence)


async def read_apart(answer: Answer, reference: FrameReference, get: Get) -> bytes:
    """The frame that was requested; empty if it does not exist. Raises `AnswerLostError`. If this is cancelled, it can
    be called again."""
    await asyncio.wait([answer], timeout=API_TIMEOUT_S)
    if not answer.done() or answer.cancelled():
        raise AnswerLostError(f"no answer in {API_TIMEOUT_S:g} s")
    message = answer.result()
    headers = message.headers or {}
    if "Status" in headers:
        # The server that has answered may not have it yet. The leader knows.
        return await _from_leader(reference, get)
    return message.data if headers.get(NAME) == reference.name else b""


async def whole(message: Mapping[str, Any], get: Get) -> bytes | None:
    """The frame in a message, or the one to which it refers; empty if that does not exist. None if the message itself
    no longer exists: both were trimmed."""
    reference = reference_in(message_headers(message))
    if reference is None:
        return message_data(message)
    data = await _from_leader(reference, get)
    return data if data or await get({"seq": message["seq"]}) is not None else None


async def _from_leader(reference: FrameReference, get: Get) -> bytes:
    message = await get({"seq": reference.sequence}) if reference.sequence else None
    if message is None or message_headers(message).get(NAME) != reference.name:
        return b""
    return message_data(message)
