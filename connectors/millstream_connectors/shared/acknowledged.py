"""Messages that a server delivers and expects to be acknowledged: they are held until the commit that contains them.

    server ─► Inbox: waiting ─ read ─► given ─ committed ─► done ─► acknowledged
                 └── leases of all of them are extended while they are here ──┘

A position counts the messages that the lane has read, so a commit says which are done. If a process dies or a
connection breaks, the server redelivers the unacknowledged messages. The lane above recognizes those that were
committed by their ids and drops them. A message without an id is duplicated, because its second delivery looks like a
new message.

Each lane remembers its own ids, so only one lane reads a queue: another one would not know what was committed.

Above it: a source lane. Below it: the subscription of one kind of server. Neither knows the other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from array import array
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from millstream.background import beside, open_tasks
from millstream.errors import MillstreamError, RetryLaterError
from millstream.frame import build_frame
from millstream_connectors.shared.inbox import Inbox
from millstream_connectors.shared.messages import divided, invalid, size_of
from millstream_connectors.shared.positioned_lane import number_in
from millstream_connectors.shared.reaching import RemoteLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane

_CLOSE_S = 5.0
"""Time limit for the last acknowledgements when a lane is closed."""
_LEASE_PARTS = 3
"""A lease is extended after this fraction of it, so that one failed attempt has no effect."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AcknowledgedMessage:
    """A message that the server has delivered."""

    value: bytes
    tag: Any
    """The server's identification of this delivery."""
    time_us: int
    record_id: str = ""
    """The message's id, the same at every delivery; empty if it has none."""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    redelivered: bool = False
    """Whether the server reports an earlier delivery."""
    fault: str = ""
    """Why the message cannot become a record; empty if it can."""

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""
        return size_of(self.value, self.headers) + len(self.record_id)


class AcknowledgedInbox(Inbox[AcknowledgedMessage]):
    """The messages of one connection. Pure."""

    def __init__(self, given: int, messages_max: int) -> None:
        """`given`: number of messages that the lane has read so far."""
        super().__init__(messages_max)
        self.given = given
        self.changed = asyncio.Event()
        """Set when there is work besides the lane's reads."""
        self._unconfirmed: deque[tuple[int, AcknowledgedMessage]] = deque()
        self._done: list[AcknowledgedMessage] = []

    # The server's side

    def lose(self, error: MillstreamError) -> None:
        """The connection is lost; the server redelivers held messages over a new one. The first reason is kept."""
        super().lose(error)
        self.changed.set()

    @property
    def held(self) -> int:
        """Number of unacknowledged messages."""
        return len(self._waiting) + len(self._unconfirmed) + len(self._done)

    def unacknowledged(self) -> list[AcknowledgedMessage]:
        """All held messages, the oldest first."""
        return [*self._done, *(message for _, message in self._unconfirmed), *self._waiting]

    @property
    def done(self) -> Sequence[AcknowledgedMessage]:
        """Messages that are committed and not acknowledged yet, in the order of their arrival."""
        return self._done

    def acknowledged(self, count: int) -> None:
        """The first `count` of `done` are acknowledged."""
        self.size -= sum(message.size for message in self._done[:count])
        del self._done[:count]
        self._note()

    # The lane's side

    def committed(self, given: int) -> None:
        """All messages up to this number may be acknowledged."""
        while self._unconfirmed and self._unconfirmed[0][0] <= given:
            self._done.append(self._unconfirmed.popleft()[1])
        if self._done:
            self.changed.set()

    def _taken(self, message: AcknowledgedMessage) -> None:
        self.given += 1
        self._unconfirmed.append((self.given, message))


class Subscription(Protocol):
    """Access to one queue of one kind of server. It raises Millstream errors: `RetryLaterError` where a retry helps."""

    @property
    def lease_s(self) -> float | None:
        """Seconds after which the server redelivers a held message unless its lease is extended; None if it does not
        while the connection lasts."""

    async def connect(self, inbox: AcknowledgedInbox) -> None:
        """Open a connection that puts messages into `inbox`, and calls its `lose` at the end. Closes an earlier
        connection first."""

    async def receive(self, inbox: AcknowledgedInbox) -> None:
        """Request messages while the inbox has space, if the server does not send them by itself. Cancelled at the
        end."""

    async def acknowledge(self, messages: Sequence[AcknowledgedMessage]) -> None:
        """Acknowledge these committed messages, the next in the order of their arrival."""

    async def extend(self, messages: Sequence[AcknowledgedMessage]) -> None:
        """Extend the leases of these messages."""

    async def adjust(self, inbox: AcknowledgedInbox) -> None:
        """React to a change of the inbox, if this kind of server needs it. Called after its `changed`."""

    async def close(self) -> None:
        """Return unacknowledged messages to the server. May be called in any state, and repeatedly."""

    def pending(self) -> int | None:
        """Number of messages that wait at the server, if it is known."""


class PushedSubscription:
    """The part of `Subscription` that is the same for all servers that send messages by themselves, and give them to no
    other reader while the connection lasts."""

    lease_s: float | None = None

    async def receive(self, inbox: AcknowledgedInbox) -> None:
        """The server sends messages without requests."""

    async def extend(self, messages: Sequence[AcknowledgedMessage]) -> None:
        """A message is held as long as the connection lasts."""


class AcknowledgedLane(RemoteLane):
    """One lane. See `SourceLane`."""

    replayable = False

    def __init__(
        self, kind: str, queue: str, owner: SourceOwner, subscription: Subscription, messages_max: int
    ) -> None:
        super().__init__(owner, _log)
        self.kind = kind
        self._queue = queue
        self._subscription = subscription
        self._messages_max = messages_max
        self._idle = not self._owns(queue)
        """Whether another lane reads the queue instead."""
        self._given = 0
        self._inbox: AcknowledgedInbox | None = None
        """None while there is no connection."""
        self._leased_until_s = -math.inf
        """Until when the server may withhold messages that were held over an earlier connection."""
        self._made_up = (f"{uuid4().hex}-{n}" for n in itertools.count())
        self._warned_redelivered = False
        self._connected = asyncio.Event()
        self._stopped = False

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        body = self._unpacked(self._owner.position)
        with self._restoring():
            self._given = 0 if body is None else number_in(body, "given")
        if not self._idle:
            await self._connect()
            if body is not None:
                self._expect_leased()

    async def close(self) -> None:
        """Acknowledge committed messages, as far as the time limit allows."""
        with suppress(MillstreamError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if self._inbox is not None:
                    await self._acknowledge(self._inbox)
        await self._subscription.close()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._draining:
            return self._batch([])
        if self._idle:
            await asyncio.sleep(timeout_s)
            return self._batch([])
        inbox = await self._reached(timeout_s)
        if inbox is None:
            return self._batch([])
        await inbox.arrival(timeout_s)
        taken = inbox.take(records_max, bytes_max)
        if taken:
            self._reaching.worked()
            self._given = inbox.given
        return self._batch(taken)

    async def committed(self, position: bytes) -> None:
        body = self._unpacked(position)
        if body is not None and self._inbox is not None:
            self._inbox.committed(body["given"])

    def pending(self) -> int | None:
        if self._idle:
            return 0
        there = self._subscription.pending()
        return None if there is None else there + (self._inbox.waiting if self._inbox is not None else 0)

    def is_held_up(self) -> bool:
        if self._idle:
            return False
        away = self._inbox is None or self._inbox.lost is not None
        return away or self._owner.clock.monotonic_s() < self._leased_until_s

    async def tend(self) -> None:
        """Acknowledge what is committed, and extend leases, until `stop`."""
        while not self._stopped:
            await self._connected.wait()
            inbox = self._inbox
            if inbox is None or inbox.lost is not None:
                if not self._stopped:
                    self._connected.clear()
                continue
            await self._tend(inbox)

    def stop(self) -> None:
        """Ask `tend` to finish what it is doing and return. To cancel a request in flight could lose the connection,
        and with it the remaining acknowledgements."""
        self._stopped = True
        self._connected.set()
        if self._inbox is not None:
            self._inbox.changed.set()

    async def _tend(self, inbox: AcknowledgedInbox) -> None:
        """Work for the lifetime of this connection."""
        async with beside(self._subscription.receive(inbox), f"receive {self._owner.lane}"):
            try:
                await self._hold(inbox)
            except MillstreamError as error:
                inbox.lose(error)

    async def _hold(self, inbox: AcknowledgedInbox) -> None:
        """Acknowledge what is committed, and extend leases."""
        lease_s, now_s = self._subscription.lease_s, self._owner.clock.monotonic_s
        every_s = None if lease_s is None else lease_s / _LEASE_PARTS
        extended_s = now_s()
        while inbox.lost is None and not self._stopped:
            left_s = None if every_s is None else max(0.0, extended_s + every_s - now_s())
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await inbox.changed.wait()
            inbox.changed.clear()
            await self._acknowledge(inbox)
            if inbox.lost is None:
                await self._subscription.adjust(inbox)
            if every_s is not None and now_s() >= extended_s + every_s:
                extended_s = now_s()
                if held := inbox.unacknowledged():
                    await self._subscription.extend(held)

    async def _acknowledge(self, inbox: AcknowledgedInbox) -> None:
        if inbox.lost is None and (done := tuple(inbox.done)):
            await self._subscription.acknowledge(done)
            inbox.acknowledged(len(done))

    async def _reached(self, timeout_s: float) -> AcknowledgedInbox | None:
        """The connection; None if there is none now."""
        inbox = self._inbox
        if inbox is not None and inbox.lost is None:
            return inbox
        if inbox is not None:
            self._inbox = None
            lost = inbox.lost
            await self._subscription.close()
            if inbox.held:
                self._expect_leased()
            if lost is not None:
                self._reaching.failed(lost)
        if not await self._reaching.may_try(timeout_s):
            return None
        try:
            await self._connect()
        except RetryLaterError as error:
            self._reaching.failed(error)
            return None
        return self._inbox

    def _expect_leased(self) -> None:
        """Messages that were held may be at the server, which withholds them until their lease ends."""
        lease_s = self._subscription.lease_s
        if lease_s is not None:
            self._leased_until_s = self._owner.clock.monotonic_s() + lease_s

    async def _connect(self) -> None:
        inbox = AcknowledgedInbox(self._given, self._messages_max)
        await self._subscription.connect(inbox)
        self._inbox = inbox
        self._connected.set()

    def _batch(self, taken: Sequence[AcknowledgedMessage]) -> SourceBatch:
        position = self._packed({"given": self._given})
        good, faults = divided(taken, self._invalid)
        if not good:
            return SourceBatch(None, position, invalid=faults)
        if not self._warned_redelivered and any(item.redelivered and not item.record_id for item in good):
            self._warned_redelivered = True
            _log.warning(
                "lane %s: %s redelivers messages that have no id; those that were already committed are "
                "duplicated. Send messages with ids",
                self._owner.lane,
                self._queue,
            )
        frame = build_frame(
            [message.value for message in good],
            array("q", [message.time_us for message in good]),
            ingest_time_us=self._owner.clock.now_us(),
            headers=[message.headers for message in good],
            ids=[(message.record_id or next(self._made_up)).encode(errors="surrogateescape") for message in good],
        )
        return SourceBatch(frame, position, invalid=faults, made_up=bytes(not message.record_id for message in good))

    def _invalid(self, message: AcknowledgedMessage) -> InvalidRecord | None:
        place = f"{self._queue}{f', message {message.record_id}' if message.record_id else ''}"
        return invalid(message.value, message.size, message.fault, place)


@asynccontextmanager
async def open_acknowledged(
    kind: str, queue: str, owner: SourceOwner, subscription: Subscription, *, messages_max: int
) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`. `queue`: the queue's name, for messages and to decide which of several lanes reads
    it."""
    lane = AcknowledgedLane(kind, queue, owner, subscription, messages_max)
    async with AsyncExitStack() as life:
        life.push_async_callback(lane.close)
        await lane.open()
        tasks = await life.enter_async_context(open_tasks())
        tending = tasks.create_task(lane.tend(), name=f"acknowledge {owner.lane}")
        try:
            yield lane
        finally:
            lane.stop()
            _, late = await asyncio.wait((tending,), timeout=_CLOSE_S)
            for task in late:
                task.cancel()
