"""A lane to which a server pushes messages, and which cannot request a message again unless the message has a place.

    server ─► stream ─► Inbox ─ read ─► batch, with the place of its last message
                 └── reconnected, after the last message that arrived

If messages have places (`replayable`), the lane's mark has one, and another process continues after it. Otherwise
delivery is at most once: messages that a dying process has received and not committed are lost, and so are those that
the server sends while there is no connection. No account counts them, because a record becomes an input when it is
committed.

Above it: a source lane. Below it: the stream of one kind of server. Neither knows the other.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from millstream.background import open_tasks
from millstream.errors import MillstreamError, RetryLaterError
from millstream.frame import build_frame
from millstream_connectors.shared.inbox import Inbox
from millstream_connectors.shared.messages import divided, invalid, size_of, too_large
from millstream_connectors.shared.reaching import RemoteLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane

MESSAGES_MAX = 10_000
"""Maximum number of unread messages."""
_TRY_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message from the server."""

    value: bytes | None
    """The value; None if the message has none for the pipeline and only advances the stream."""
    time_us: int
    headers: Mapping[str, bytes] = field(default_factory=dict)
    place: str = ""
    """The stream's position after it, in the server's own form; empty if it has none."""
    fault: str = ""
    """Why it cannot become a record; empty if it can."""
    whole_size: int = 0
    """Full size in bytes of a value that is too large and was truncated."""

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""
        return size_of(self.value or b"", self.headers)


class Arrivals(Inbox[ReceivedMessage]):
    """Arrived messages, and the stream's position."""

    def __init__(self) -> None:
        super().__init__(MESSAGES_MAX)
        self.place = ""
        """The place after the arrived messages."""
        self.ended = False
        """Nothing will follow, ever."""
        self.away = False
        """Whether the connection was lost, and there is no other one yet."""

    def put(self, message: ReceivedMessage) -> None:
        self.place = message.place
        super().put(message)

    def end(self) -> None:
        """Nothing will follow, ever."""
        self.ended = True
        self._arrived.set()


class Stream(Protocol):
    """The connection to one server. It raises Millstream errors: `RetryLaterError` where a retry helps."""

    @property
    def replayable(self) -> bool:
        """Whether messages have places from which the server can send again."""

    @property
    def pause_s(self) -> float:
        """Pause that the server asks for before the next connection."""

    async def connect(self, place: str) -> None:
        """Connect to receive the messages after `place` (empty: as the settings say). Closes an earlier connection."""

    async def receive(self, inbox: Arrivals) -> None:
        """Put arriving messages into `inbox`, while it has space. Returns when the server reports the end of the
        stream; raises when the connection is lost."""

    async def close(self) -> None:
        """May be called in any state, and repeatedly."""


class ReceivingLane(RemoteLane):
    """One lane. See `SourceLane`."""

    def __init__(self, kind: str, named: str, owner: SourceOwner, stream: Stream, *, idle: bool) -> None:
        super().__init__(owner, _log)
        self.kind = kind
        self.replayable = stream.replayable
        self._named = named
        self._stream = stream
        self._idle = idle
        self._given = 0
        """Number of messages that the lane has read over its lifetime."""
        self._place = ""
        """The place after the messages that were read."""
        self._inbox = Arrivals()
        self._receiving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        body = self._unpacked(self._owner.position)
        if body is not None:
            with self._restoring():
                given, place = body["given"], body["place"]
                if not isinstance(given, int) or not isinstance(place, str):
                    raise TypeError(body)
            self._given, self._place = given, place
        self._inbox.place = self._place
        if not self._idle:
            await self._stream.connect(self._place)

    async def close(self) -> None:
        await self._stream.close()

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Start to receive, concurrently with reads."""
        if not self._idle:
            self._receiving = tasks.create_task(self._receive(), name=f"receive {self._owner.lane}")

    def stop(self) -> None:
        """Stop receiving."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        inbox = self._inbox
        if self._idle:
            await asyncio.sleep(timeout_s)
        elif not self._draining and not inbox.ended:
            await inbox.arrival(timeout_s)
        taken = inbox.take(records_max, bytes_max)
        if taken:
            self._reaching.worked()
            self._given += len(taken)
            self._place = taken[-1].place
        elif inbox.lost is not None:
            raise inbox.lost
        return self._batch(taken)

    def pending(self) -> int | None:
        return self._inbox.waiting

    def is_held_up(self) -> bool:
        return self._inbox.away

    async def drain(self) -> None:
        # Arrived messages are still read: without a place they would be lost.
        self._draining = True
        self.stop()
        if self._receiving is not None:
            await asyncio.wait((self._receiving,))
        await self._stream.close()

    async def _receive(self) -> None:
        """Receive until the stream has ended, or fails permanently."""
        inbox = self._inbox
        try:
            while True:
                try:
                    await self._stream.receive(inbox)
                    break
                except RetryLaterError as error:
                    await self._connect_again(error)
        except MillstreamError as error:
            inbox.lose(error)
        else:
            inbox.end()

    async def _connect_again(self, error: RetryLaterError) -> None:
        """Connect, with retries. Raises permanent errors."""
        self._inbox.away = True
        while True:
            self._reaching.failed(error)
            if self._stream.pause_s:
                self._reaching.rest(self._stream.pause_s)
            while not await self._reaching.may_try(_TRY_S):
                pass
            try:
                await self._stream.connect(self._inbox.place)
            except RetryLaterError as again:
                error = again
            else:
                self._inbox.away = False
                return

    def _batch(self, taken: Sequence[ReceivedMessage]) -> SourceBatch:
        position = self._packed({"given": self._given, "place": self._place})
        ended = self._inbox.ended and not self._inbox.waiting
        good, faults = divided([one for one in taken if one.value is not None], self._invalid)
        if not good:
            return SourceBatch(None, position, ended, faults)
        frame = build_frame(
            [one.value or b"" for one in good],
            array("q", [one.time_us for one in good]),
            ingest_time_us=self._owner.clock.now_us(),
            headers=[one.headers for one in good],
        )
        return SourceBatch(frame, position, ended, faults)

    def _invalid(self, one: ReceivedMessage) -> InvalidRecord | None:
        # A stream may add more lines to the place, for itself.
        line = one.place.partition("\n")[0]
        place = f"{self._named}{f', {line}' if line else ''}"
        if one.whole_size:
            return too_large(one.value or b"", one.whole_size, place)
        return invalid(one.value or b"", one.size, one.fault, place)


@asynccontextmanager
async def open_receiving(
    kind: str, named: str, owner: SourceOwner, stream: Stream, *, idle: bool
) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`. `named`: the stream, for messages. `idle`: another lane reads it."""
    lane = ReceivingLane(kind, named, owner, stream, idle=idle)
    async with AsyncExitStack() as life:
        life.push_async_callback(lane.close)
        await lane.open()
        lane.begin(await life.enter_async_context(open_tasks()))
        try:
            yield lane
        finally:
            lane.stop()
