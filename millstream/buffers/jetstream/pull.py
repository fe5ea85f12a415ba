"""Reads a buffer from JetStream: in order, without a gap, across restarts of the broker.

Above it: `ledger.py`. Below it: the connection. It owns one ephemeral consumer at a time, which acknowledges nothing:
the reader's mark is the acknowledgement.

    pull 1  ├──frames──┤
    pull 2        ├──frames──┤        one more request, so the server does not wait for the client,
    pull 3              ├──   ...     and never more than the limits, so memory is bounded however slow the reader is

While no frames arrive, there is only one pull, because the server sends heartbeats for each.

A frame that is stored apart arrives as a reference. The frames of the next references are requested at once, up to the
same limit of bytes.

The reader creates a new consumer, which starts after the last frame returned, if the connection was lost, if the server
reports that the consumer or its leader is gone, if heartbeats are missing, or if a delivery number is missing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream import codes, limits
from millstream.buffers.jetstream.prefetch import Arrival, Prefetch
from millstream.buffers.jetstream.references import read_apart, reference_in, request_apart
from millstream.buffers.jetstream.requests import NO_MESSAGE, NO_STREAM, Get, message_headers, unless_missing
from millstream.buffers.jetstream.trims import ReadFrames
from millstream.errors import REPAIR, DamageError, RetryLaterError
from millstream.ledger.protocol import LedgerStatistics, StoredFrame
from millstream.ledger.witness import ObserverCheck, ReadCheck, witness_of
from millstream.nats.client import Msg
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection
from millstream.nats.pulling import EXPIRES_MIN_S, HEARTBEAT_S, MessageOrigin, PullConsumer
from millstream.pauses import Pauses, until_next

_log = logging.getLogger(__name__)

_PULL_EXPIRES_S = 30
"""The longest time that a pull waits for frames."""
_PULL_EXPIRES_MIN_S = EXPIRES_MIN_S + HEARTBEAT_S
_RETRY_FIRST_S = 0.02
_RETRY_LAST_S = 1.0

PULLS = 4
"""Pulls in flight, if there is space for that many."""
PULL_FRAMES = limits.FRAMES_IN_FLIGHT_MAX // PULLS
"""Frames in a pull, at most. Large frames are pulled in smaller numbers."""
PULL_BYTES = limits.MESSAGE_BYTES_MAX + 64 * limits.KIB
"""The server's limit for a pull, in case its frames are larger than earlier ones: little more than one message."""


def _expires_s() -> float:
    """A pull expires at the same moment as those of all idle readers. So these begin the next ones together, and the
    server's heartbeats come together, too: an idle process wakes up once for all of them."""
    expires_s = until_next(_PULL_EXPIRES_S)
    return expires_s if expires_s >= _PULL_EXPIRES_MIN_S else expires_s + _PULL_EXPIRES_S


# A pull that cannot hold the largest message, with its subject, would never deliver it.
assert PULL_BYTES >= limits.MESSAGE_BYTES_MAX + 64 * limits.KIB


class PullReader:
    """Frames of one subject after a sequence. An async iterator that never ends; for one task."""

    def __init__(
        self,
        connection: BrokerConnection,
        stream: str,
        subject: str,
        after: int,
        created: str,
        statistics: LedgerStatistics,
        check: ReadCheck | ObserverCheck,
        seen: ReadFrames,
        get: Get,
    ) -> None:
        """`check`: compares the frames with what was read before; see `Ledger.read`. `seen`: notes the marks and
        references that arrive with frames. `get`: one message from the stream's leader."""
        self._connection = connection
        self._get = get
        self._check = check
        self._seen = seen
        self._stream = stream
        self._subject = subject
        self._last = after
        """Sequence of the last frame returned."""
        self._created = created
        """When the stream was created. A stream of the same name with another time is a different stream."""
        self._statistics = statistics
        self._consumer = PullConsumer(connection, stream, on_message=self._on_message, on_expired=self._on_expired)
        self._prefetch = Prefetch()
        self._busy = False
        """Whether a frame has arrived since the last pull that expired."""
        self._frame_bytes = 0.0
        """Size of a frame: that of the largest one, falling to the average of those that follow."""

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived, or are requested from where they are stored apart, and were not yet returned."""
        return self._prefetch.held_bytes

    async def open(self) -> None:
        await self._consumer.open()
        await self._new_consumer()

    async def close(self) -> None:
        self._prefetch.clear()
        await self._consumer.close()

    def __aiter__(self) -> AsyncIterator[StoredFrame]:
        return self

    async def __anext__(self) -> StoredFrame:
        while True:
            if self._consumer.is_over:
                await self._new_consumer()
            if self._prefetch:
                if await self._has_come(self._prefetch.first):
                    return await self._hand_out()
                continue
            self._consumer.forget_news()
            await self._ask()
            await self._consumer.wait()

    async def _hand_out(self) -> StoredFrame:
        # Before a frame is taken out, so that a caller that is cancelled while this waits loses nothing.
        await self._ask()
        await self._request_more()
        first = self._prefetch.pop()
        self._check.next(first.witness, first.sequence)
        self._last = first.sequence
        frame = StoredFrame(first.sequence, first.data, first.witness)
        self._statistics.read(frame)
        return frame

    async def _has_come(self, first: Arrival) -> bool:
        """Wait for a frame that is stored apart. False if a new consumer is needed."""
        if first.reference is None or first.data:
            return True
        await self._request_more()
        if first.answer is None:
            return False
        try:
            data = await read_apart(first.answer, first.reference, self._get)
            trimmed = not data and await self._get({"seq": first.sequence}) is None
        except (AnswerLostError, RetryLaterError) as error:
            self._consumer.needs_restart(str(error))
            return False
        if trimmed:
            # What follows it is delivered by a new consumer, and nothing if the answer was wrong.
            self._consumer.needs_restart(f"frame {first.sequence} was trimmed")
        if trimmed or self._consumer.losses != self._connection.losses:
            return False
        first.data, first.reference = data, None
        return True

    async def _request_more(self) -> None:
        """Request the next frames that are stored apart, as far as there is space for them."""
        while (arrival := self._prefetch.to_request()) is not None:
            assert arrival.reference is not None
            try:
                answer = await request_apart(self._connection, self._stream, arrival.reference)
            except AnswerLostError as error:
                self._consumer.needs_restart(str(error))
                return
            # Only now, in case this is cancelled.
            self._prefetch.requested(answer)

    async def _ask(self) -> None:
        """Request more frames while there is space for a whole pull."""
        while self._consumer.restart is None:
            pull, requested = self._pull_frames(), self._consumer.requested
            frames = len(self._prefetch) + requested + pull
            if frames > (limits.FRAMES_IN_FLIGHT_MAX if self._busy else pull):
                return
            size = self._prefetch.bytes + (requested + pull) * self._frame_bytes
            # If no frames are here or requested, one pull is always allowed: the server limits it to PULL_BYTES.
            if size > limits.READ_AHEAD_BYTES_MAX and (requested or self._prefetch):
                return
            try:
                await self._consumer.request(pull, PULL_BYTES, _expires_s())
            except AnswerLostError as error:
                self._consumer.needs_restart(str(error))

    def _pull_frames(self) -> int:
        """Frames of the next pull: as many as PULLS pulls have space for, by the size of earlier frames."""
        if not self._frame_bytes:
            return PULL_FRAMES
        return max(1, min(PULL_FRAMES, int(limits.READ_AHEAD_BYTES_MAX / PULLS / self._frame_bytes)))

    def _on_message(self, message: Msg, origin: MessageOrigin) -> None:
        self._busy = True
        headers = message.headers or {}
        reference = reference_in(headers)
        size = len(message.data) if reference is None else reference.size
        # Larger frames count at once: the next pulls may bring as many of them as they ask for.
        self._frame_bytes = max(size, self._frame_bytes + (size - self._frame_bytes) / PULL_FRAMES)
        self._seen.note(message.subject, origin.sequence, headers, self._consumer.losses)
        self._prefetch.add(
            Arrival(origin.sequence, witness_of(origin.sequence, headers), size, message.data, reference)
        )

    def _on_expired(self) -> None:
        self._busy = False

    async def _new_consumer(self) -> None:
        """Create a consumer that starts after the last frame returned; retries forever. Raises `DamageError` if the
        stream cannot have these frames."""
        pauses = Pauses(_RETRY_FIRST_S, _RETRY_LAST_S)
        reason = self._consumer.restart
        if reason != "":
            self._statistics.read_restarts += 1
            _log.info("reading %s continues after %d (%s)", self._subject, self._last, reason or "reconnected")
        while True:
            await self._connection.connected()
            self._consumer.reset()
            self._prefetch.clear()
            try:
                await self._check_stream()
                await self._consumer.create(
                    {
                        "deliver_policy": "by_start_sequence",
                        "opt_start_seq": self._last + 1,
                        "filter_subject": self._subject,
                    }
                )
                return
            except (AnswerLostError, ApiError) as error:
                _log.debug("no consumer for %s yet: %r", self._subject, error)
                await pauses.wait()

    async def _check_stream(self) -> None:
        info = await unless_missing(self._connection.api(f"STREAM.INFO.{self._stream}"), NO_STREAM)
        if info is None:
            raise DamageError(
                codes.LEDGER_GONE,
                f"{self._subject}: the stream {self._stream} no longer exists; it was read up to sequence "
                f"{self._last}. {REPAIR}",
            )
        state = info["state"]
        if info["created"] != self._created or state["last_seq"] < self._last:
            raise DamageError(
                codes.LEDGER_CUT,
                f"{self._subject} was read up to sequence {self._last}, but the stream {self._stream}, created at "
                f"{info['created']}, holds sequences {state['first_seq']} to {state['last_seq']}: it is not the "
                f"stream that was read, or it lost its latest data. {REPAIR}",
            )
        await self._check_witness()

    async def _check_witness(self) -> None:
        """Check that the last frame that was read still exists and was not replaced."""
        last = self._check.last
        if last is None:
            return
        answer = await unless_missing(
            self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": last.sequence}), NO_MESSAGE
        )
        if answer is None:
            self._check.stored(None)
        else:
            self._check.stored(witness_of(last.sequence, message_headers(answer["message"])))


@asynccontextmanager
async def opened(reader: PullReader) -> AsyncIterator[AsyncIterator[StoredFrame]]:
    """Opens the reader for the duration of the block."""
    try:
        await reader.open()
        yield reader
    finally:
        await reader.close()
