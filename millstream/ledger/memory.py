"""Ledgers in memory: they behave as in JetStream, keep nothing durably, and inject faults on request.

Above it: tests, simulations and users' own tests, through `protocol.py`. Below it: nothing. It reads only the clock
that is passed in, so a simulation that drives the clock and the event loop gets the same run every time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID, uuid5

from millstream import codes
from millstream.clock import Clock, SystemClock
from millstream.errors import REPAIR, BufferFullError, DamageError, DurabilityError, FencedError, StorageFullError
from millstream.ledger.batch import BatchMessage, commit_messages, decode_ids, frame_sequences, stored_mark
from millstream.ledger.marks import settled, taken_over, takeover
from millstream.ledger.opened import Holds, OpenLedger
from millstream.ledger.protocol import (
    Broker,
    Commit,
    Durability,
    DurabilityLevel,
    Ledger,
    LedgerLimits,
    Receipt,
    StoredFrame,
    StoredIds,
    StoredMark,
    Witness,
)
from millstream.ledger.sharing import Sharing
from millstream.ledger.subjects import buffer_filter, ids_filter, lane_filter, lane_filter_of, mark_subject, stream_name
from millstream.ledger.witness import ObserverCheck, ReadCheck, witness_of
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2

_NAMESPACE = UUID("5c0b2f3e-6a1d-4a52-9d0e-3f9f1d3c7b61")


class _Fault(Enum):
    LOST_BEFORE = "the request is lost"
    LOST_AFTER = "the answer is lost"
    BUFFER_FULL = "refused: a buffer is full"
    STORAGE_FULL = "refused: the storage is full"
    FENCED = "another owner takes the lane over just before"


class Faults:
    """The faults of a memory broker, in the order in which they were requested. One fault per attempt at a commit."""

    def __init__(self) -> None:
        self._planned: dict[str | None, deque[_Fault]] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._waiting = 0
        self._changed = asyncio.Event()

    def lose_answer(self, *, landed: bool, vertex: str | None = None) -> None:
        """The next attempt gets no answer; if `landed`, the commit is stored anyway."""
        self._plan(_Fault.LOST_AFTER if landed else _Fault.LOST_BEFORE, vertex)

    def refuse_full(self, *, vertex: str | None = None) -> None:
        """The next attempt is refused as if a buffer were full."""
        self._plan(_Fault.BUFFER_FULL, vertex)

    def refuse_storage(self, *, vertex: str | None = None) -> None:
        """The next attempt is refused as if the broker's storage were full."""
        self._plan(_Fault.STORAGE_FULL, vertex)

    def fence(self, *, vertex: str | None = None) -> None:
        """Just before the next attempt, another owner takes the lane over."""
        self._plan(_Fault.FENCED, vertex)

    def hold(self) -> None:
        """Make commits wait before they take effect, until `release`."""
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    async def held(self, commits: int = 1) -> None:
        """Wait until this many commits are being held."""
        while self._waiting < commits:
            self._changed.clear()
            await self._changed.wait()

    async def pass_gate(self) -> None:
        """For the broker: wait while commits are held."""
        self._waiting += 1
        self._changed.set()
        try:
            await self._gate.wait()
        finally:
            self._waiting -= 1

    def next(self, vertex: str) -> _Fault | None:
        """For the broker: the fault of this attempt."""
        for key in (vertex, None):
            planned = self._planned.get(key)
            if planned:
                return planned.popleft()
        return None

    def _plan(self, fault: _Fault, vertex: str | None) -> None:
        self._planned.setdefault(vertex, deque()).append(fault)


@dataclass(slots=True)
class _Stored:
    message: BatchMessage
    keys: tuple[str, ...]
    """Its subject, and the filters that match it."""
    stored_s: float
    expires_s: float | None


@dataclass(slots=True)
class _Stream:
    """The equivalent of a JetStream stream: messages by sequence."""

    limits: LedgerLimits
    number: int
    """Distinguishes this stream from an earlier one with the same name."""
    sharing: Sharing
    messages: dict[int, _Stored] = field(default_factory=dict)
    found_by: dict[str, dict[int, None]] = field(default_factory=dict)
    """Sequences of each subject and of each filter, in order."""
    last_sequence: int = 0
    bytes: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    set_back: int = 0
    """How often the stream was set back. Readers check their position again then, as after a restart of a broker."""

    def saved(self) -> tuple[dict[int, _Stored], int, int]:
        """The contents of the stream, for `restore`."""
        return dict(self.messages), self.last_sequence, self.bytes

    def restore(self, saved: tuple[dict[int, _Stored], int, int]) -> None:
        """Set the contents back to `saved`: the stream has lost everything that was stored since."""
        messages, self.last_sequence, self.bytes = saved
        self.messages = dict(messages)
        self.found_by = {}
        for sequence, stored in self.messages.items():
            for key in stored.keys:
                self.found_by.setdefault(key, {})[sequence] = None
        self.set_back += 1
        self.grown.set()

    def witness(self, sequence: int) -> Witness | None:
        """The name of the frame at that sequence; None if there is none."""
        stored = self.messages.get(sequence)
        return witness_of(sequence, stored.message.headers) if stored is not None else None

    def store(self, message: BatchMessage, filters: Sequence[str], now_s: float, expires_s: float | None = None) -> int:
        self.last_sequence += 1
        keys = (message.subject, *filters)
        self.messages[self.last_sequence] = _Stored(message, keys, now_s, expires_s)
        for key in keys:
            self.found_by.setdefault(key, {})[self.last_sequence] = None
        self.bytes += len(message.data)
        return self.last_sequence

    def remove(self, sequence: int) -> None:
        stored = self.messages.pop(sequence)
        self.bytes -= len(stored.message.data)
        for key in stored.keys:
            sequences = self.found_by[key]
            del sequences[sequence]
            if not sequences:
                del self.found_by[key]

    def last_of(self, key: str) -> int:
        """Sequence of the last message that matches a subject or filter; 0 if there is none."""
        return next(reversed(self.found_by.get(key, {})), 0)

    def after(self, key: str, sequence: int) -> list[int]:
        return [stored for stored in self.found_by.get(key, {}) if stored > sequence]

    def mark(self, lane: str) -> mark_pb2.Mark:
        """The mark in the last message of the lane with this filter."""
        mark = stored_mark(*self.messages[self.last_of(lane)].message)
        assert mark is not None, "the last message of a lane holds its mark"
        return mark


class MemoryLedger(OpenLedger):
    """`Ledger` over one stream in memory."""

    def __init__(self, vertex: str, stream_id: str, stream: _Stream, faults: Faults, clock: Clock) -> None:
        self._stream = stream
        durability = Durability(DurabilityLevel.MEMORY, True, "kept in the memory of this process")
        super().__init__(vertex, stream_id, str(stream.number), durability, stream.sharing, Holds())
        self._id = stream_id
        self._faults = faults
        self._clock = clock
        self._takeovers = 0

    @property
    def sharing(self) -> Sharing:
        """That of the stream, because another ledger object may have changed it."""
        return self._stream.sharing

    @sharing.setter
    def sharing(self, sharing: Sharing) -> None:
        self._stream.sharing = sharing

    async def mark(self, lane: LaneId) -> StoredMark | None:
        return self._mark(lane)

    def _mark(self, lane: LaneId) -> StoredMark | None:
        subject = lane_filter(self._id, lane)
        sequence = self._stream.last_of(subject)
        return StoredMark(self._stream.mark(subject), sequence) if sequence else None

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        while True:
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, self._commit_id(lane))
            try:
                receipt = await self.commit(takeover(lane, mark, stored))
            except FencedError:
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        messages = commit_messages(self._id, commit, self.sharing)
        started_s = self._clock.monotonic_s()
        while True:
            await self._faults.pass_gate()
            fault = self._faults.next(self.vertex)
            if fault is _Fault.FENCED:
                self._fence(commit.lane)
            sequence = self._attempt(commit, messages, fault)
            if sequence is not None:
                break
        seconds = self._clock.monotonic_s() - started_s
        self._statistics.committed(seconds, len(messages), sum(len(message.data) for message in messages))
        return Receipt(sequence, frame_sequences(sequence, len(messages), len(commit.frames)))

    async def ids(self, lane: LaneId) -> AsyncIterator[StoredIds]:
        self._expire()
        for sequence in self._stream.after(ids_filter(self._id, lane), 0):
            stored = self._stream.messages.get(sequence)
            if stored is not None:
                yield StoredIds(decode_ids(stored.message.data), self._clock.monotonic_s() - stored.stored_s)

    def _subject(self, stored: BufferId) -> str:
        return buffer_filter(self._id, stored)

    @asynccontextmanager
    async def _frames(
        self, stored: BufferId, after: int, check: ReadCheck | ObserverCheck
    ) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        subject = self._subject(stored)
        self._look(subject, after, check)
        async with aclosing(self._arriving(subject, after, check)) as frames:
            yield frames

    async def trim(self, through: Mapping[BufferId, int]) -> None:
        for buffer, last in through.items():
            for sequence in self._stream.after(self._filter(buffer), 0):
                if sequence > last:
                    break
                # A message that holds the mark of its lane stays.
                if sequence != self._stream.last_of(lane_filter_of(self._stream.messages[sequence].message.subject)):
                    self._stream.remove(sequence)
        self._statistics.trims += 1

    async def leave(self, edges: Collection[str]) -> None:
        self.sharing = self.sharing.without(edges)

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        return [
            StoredFrame(sequence, self._stream.messages[sequence].message.data, self._stream.witness(sequence))
            for sequence in self._stream.after(self._filter(buffer), after)[:frames]
        ]

    async def last_sequence(self, buffer: BufferId) -> int:
        return self._stream.last_of(self._filter(buffer))

    def _look(self, subject: str, after: int, check: ReadCheck | ObserverCheck) -> None:
        """Raise `DamageError` if the stream no longer holds what was read."""
        if self._stream.last_sequence < after:
            raise DamageError(
                codes.LEDGER_CUT,
                f"{subject} was read up to sequence {after}, but {self._id} holds sequences up to "
                f"{self._stream.last_sequence}: it lost its latest data. {REPAIR}",
            )
        if check.last is not None:
            check.stored(self._stream.witness(check.last.sequence))

    async def _arriving(
        self, subject: str, after: int, check: ReadCheck | ObserverCheck
    ) -> AsyncGenerator[StoredFrame, None]:
        looked = self._stream.set_back
        while True:
            # Cleared first: anything stored from here on sets it again.
            self._stream.grown.clear()
            for sequence in self._stream.after(subject, after):
                if looked != self._stream.set_back:
                    break
                stored = self._stream.messages.get(sequence)
                if stored is None:
                    # Trimmed while this reader was busy.
                    continue
                witness = self._stream.witness(sequence)
                check.next(witness, sequence)
                after = sequence
                frame = StoredFrame(sequence, stored.message.data, witness)
                self._statistics.read(frame)
                yield frame
            if looked != self._stream.set_back:
                looked = self._stream.set_back
                self._look(subject, after, check)
            elif not self._stream.after(subject, after):
                await self._stream.grown.wait()

    def _attempt(self, commit: Commit, messages: Sequence[BatchMessage], fault: _Fault | None) -> int | None:
        """One attempt; None if the commit has to be sent again. Raises the error with which it is refused."""
        landed = settled(commit, self._mark(commit.lane))
        if landed is not None:
            self._statistics.answers_settled += 1
            return landed
        if fault is _Fault.LOST_BEFORE:
            return None
        self._check_room(commit, messages, fault)
        sequence = self._apply(commit, messages)
        if fault is _Fault.LOST_AFTER:
            return None
        return sequence

    def _check_room(self, commit: Commit, messages: Sequence[BatchMessage], fault: _Fault | None) -> None:
        self._expire()
        totals: dict[str, int] = {}
        for message in messages:
            if message.subject == mark_subject(self._id, commit.lane):
                # The mark replaces the previous one, so it needs no space in a buffer.
                continue
            stored = len(self._stream.found_by.get(message.subject, {}))
            totals[message.subject] = totals.get(message.subject, stored) + 1
        full = [subject for subject, total in totals.items() if total > self._stream.limits.frames_per_buffer_max]
        if full or fault is _Fault.BUFFER_FULL:
            self._statistics.full_refusals += 1
            raise BufferFullError(
                codes.BUFFER_FULL,
                f"a commit of lane {commit.lane} to {self._id} was refused: a buffer is full ({full})",
            )
        size = self._stream.bytes + sum(len(message.data) for message in messages)
        if size > self._stream.limits.bytes_max or fault is _Fault.STORAGE_FULL:
            self._statistics.full_refusals += 1
            raise StorageFullError(
                codes.BROKER_STORAGE_FULL,
                f"a commit of lane {commit.lane} to {self._id} was refused: the storage is full",
            )

    def _apply(self, commit: Commit, messages: Sequence[BatchMessage]) -> int:
        now_s = self._clock.monotonic_s()
        lane = lane_filter(self._id, commit.lane)
        for message, (buffer, _) in zip(messages, commit.frames, strict=False):
            self._stream.store(message, (lane, self._filter(buffer)), now_s)
        for message in messages[len(commit.frames) :]:
            if message.subject == mark_subject(self._id, commit.lane):
                for replaced in self._stream.after(message.subject, 0):
                    self._stream.remove(replaced)
                self._stream.store(message, (lane,), now_s)
            else:
                filters = (lane, ids_filter(self._id, commit.lane))
                self._stream.store(message, filters, now_s, now_s + commit.ids_ttl_s)
        self._stream.grown.set()
        return self._stream.last_sequence

    def _fence(self, lane: LaneId) -> None:
        stored = self._mark(lane)
        commit = takeover(lane, taken_over(stored, "fault", self._commit_id(lane)), stored)
        self._apply(commit, commit_messages(self._id, commit, self.sharing))

    def _commit_id(self, lane: LaneId) -> bytes:
        """A commit id that is new for every takeover, and the same in every run of a simulation."""
        self._takeovers += 1
        return uuid5(_NAMESPACE, f"{lane}/{self._stream.last_sequence}/{self._takeovers}").bytes

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        for sequence, stored in list(self._stream.messages.items()):
            if stored.expires_s is not None and stored.expires_s <= now_s:
                self._stream.remove(sequence)


class MemoryBroker:
    """`Broker` in memory, which keeps the ledgers as long as it exists. To see what a restarted process would find,
    open a ledger again."""

    def __init__(self, pipeline: str, require: DurabilityLevel, faults: Faults, clock: Clock) -> None:
        self._pipeline = pipeline
        self._require = require
        self._faults = faults
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._made = 0

    async def ledger(self, vertex: str, limits: LedgerLimits) -> Ledger:
        if self._require is not DurabilityLevel.MEMORY:
            raise DurabilityError(
                codes.NOT_DURABLE,
                f"a broker in memory does not keep data on disk, but durability {self._require.value!r} is "
                "required; ask for 'memory' by name",
            )
        stream = self._streams.get(vertex)
        if stream is None:
            self._made += 1
            stream = self._streams[vertex] = _Stream(limits, self._made, limits.sharing)
        stream.limits = limits
        return self._opened(vertex, stream)

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        stream = self._streams.get(vertex)
        return None if stream is None else self._opened(vertex, stream)

    async def delete(self, vertex: str | None = None) -> None:
        for name in list(self._streams) if vertex is None else [vertex]:
            self._streams.pop(name, None)

    def save(self, vertex: str) -> Callable[[], None]:
        """Save the contents of the ledger of `vertex`. The returned function sets the ledger back to them."""
        stream = self._streams[vertex]
        saved = stream.saved()
        return lambda: stream.restore(saved)

    def _opened(self, vertex: str, stream: _Stream) -> MemoryLedger:
        return MemoryLedger(vertex, stream_name(self._pipeline, vertex), stream, self._faults, self._clock)


@asynccontextmanager
async def open_memory_broker(
    pipeline: str,
    faults: Faults | None = None,
    *,
    clock: Clock | None = None,
    require: DurabilityLevel = DurabilityLevel.MEMORY,
) -> AsyncIterator[Broker]:
    """A broker in the memory of this process, with the given faults."""
    yield MemoryBroker(pipeline, require, faults or Faults(), clock or SystemClock())
