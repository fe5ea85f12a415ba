"""Ledgers in memory: the same meaning as in JetStream, nothing durable, and faults on request.

Above it: tests, simulations and users' own tests, through `protocol.py`. Below it: nothing. It reads no clock but the
one
passed in, so a simulation that drives the clock and the event loop gets the same run every time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID, uuid5

from millstream.clock import Clock, SystemClock
from millstream.errors import BufferFullError, DurabilityError, FencedError, StorageFullError
from millstream.ledger.batch import Message, commit_messages, decode_ids, frame_sequences
from millstream.ledger.marks import taken_over
from millstream.ledger.protocol import (
    Broker,
    Commit,
    Durability,
    DurabilityLevel,
    Ledger,
    LedgerLimits,
    LedgerStatistics,
    Receipt,
    StoredFrame,
    StoredMark,
)
from millstream.ledger.subjects import buffer_subject, ids_filter, mark_subject, stream_name
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
    """What goes wrong in a memory broker, in the order in which it was asked for. One fault per attempt at a commit."""

    def __init__(self) -> None:
        self._planned: dict[str | None, deque[_Fault]] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._waiting = 0
        self._changed = asyncio.Event()

    def lose_answer(self, *, landed: bool, vertex: str | None = None) -> None:
        """The next attempt gets no answer, after (`landed`) or before it had its effect."""
        self._plan(_Fault.LOST_AFTER if landed else _Fault.LOST_BEFORE, vertex)

    def refuse_full(self, *, vertex: str | None = None) -> None:
        """The next attempt is refused as if a buffer were full."""
        self._plan(_Fault.BUFFER_FULL, vertex)

    def refuse_storage(self, *, vertex: str | None = None) -> None:
        """The next attempt is refused as if the broker's storage were full."""
        self._plan(_Fault.STORAGE_FULL, vertex)

    def fence(self, *, vertex: str | None = None) -> None:
        """Just before the next attempt, somebody else takes the lane over."""
        self._plan(_Fault.FENCED, vertex)

    def hold(self) -> None:
        """Commits wait, before they have an effect, until `release`."""
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
        """For the broker: what happens to this attempt."""
        for key in (vertex, None):
            planned = self._planned.get(key)
            if planned:
                return planned.popleft()
        return None

    def _plan(self, fault: _Fault, vertex: str | None) -> None:
        self._planned.setdefault(vertex, deque()).append(fault)


@dataclass(slots=True)
class _Stored:
    subject: str
    data: bytes
    expires_s: float | None


@dataclass(slots=True)
class _Stream:
    """What a stream is to JetStream: messages by sequence."""

    limits: LedgerLimits
    number: int
    """Tells a stream from the one of that name before it."""
    messages: dict[int, _Stored] = field(default_factory=dict)
    by_subject: dict[str, dict[int, None]] = field(default_factory=dict)
    """Sequences of each subject, in order."""
    last_sequence: int = 0
    bytes: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, message: Message, expires_s: float | None) -> int:
        self.last_sequence += 1
        self.messages[self.last_sequence] = _Stored(message.subject, message.data, expires_s)
        self.by_subject.setdefault(message.subject, {})[self.last_sequence] = None
        self.bytes += len(message.data)
        return self.last_sequence

    def remove(self, sequence: int) -> None:
        message = self.messages.pop(sequence)
        self.bytes -= len(message.data)
        sequences = self.by_subject[message.subject]
        del sequences[sequence]
        if not sequences:
            del self.by_subject[message.subject]

    def last_of(self, subject: str) -> int:
        """Sequence of the subject's last message; 0 when it has none."""
        return next(reversed(self.by_subject.get(subject, {})), 0)

    def after(self, subject: str, sequence: int) -> list[int]:
        return [stored for stored in self.by_subject.get(subject, {}) if stored > sequence]


class MemoryLedger:
    """`Ledger` over one stream in memory."""

    def __init__(self, vertex: str, stream_id: str, stream: _Stream, faults: Faults, clock: Clock) -> None:
        self._vertex = vertex
        self._id = stream_id
        self._stream = stream
        self._faults = faults
        self._clock = clock
        self._statistics = LedgerStatistics()
        self._takeovers = 0

    @property
    def vertex(self) -> str:
        return self._vertex

    @property
    def ledger_id(self) -> str:
        return f"{self._id} {self._stream.number}"

    @property
    def durability(self) -> Durability:
        return Durability(DurabilityLevel.MEMORY, True, "kept in the memory of this process")

    def statistics(self) -> LedgerStatistics:
        return self._statistics

    async def mark(self, lane: LaneId) -> StoredMark | None:
        sequence = self._stream.last_of(mark_subject(self._id, lane))
        if not sequence:
            return None
        return StoredMark(mark_pb2.Mark.FromString(self._stream.messages[sequence].data), sequence)

    async def take_over(self, lane: LaneId, owner: str) -> StoredMark:
        while True:
            stored = await self.mark(lane)
            mark = taken_over(stored, owner, self._commit_id(lane))
            try:
                receipt = await self.commit(Commit(lane, (), mark, after=stored.sequence if stored else 0))
            except FencedError:
                continue
            return StoredMark(mark, receipt.mark_sequence)

    async def commit(self, commit: Commit) -> Receipt:
        messages = commit_messages(self._id, commit)
        started_s = self._clock.monotonic_s()
        while True:
            await self._faults.pass_gate()
            fault = self._faults.next(self._vertex)
            if fault is _Fault.FENCED:
                self._fence(commit.lane)
            sequence = self._attempt(commit, messages, fault)
            if sequence is not None:
                break
        self._statistics.commit_seconds += self._clock.monotonic_s() - started_s
        self._statistics.commits += 1
        self._statistics.commit_messages += len(messages)
        self._statistics.commit_bytes += sum(len(message.data) for message in messages)
        return Receipt(sequence, frame_sequences(sequence, len(messages), len(commit.frames)))

    async def ids(self, lane: LaneId) -> set[str]:
        self._expire()
        prefix = ids_filter(self._id, lane).removesuffix("*")
        return {
            record_id
            for message in self._stream.messages.values()
            if message.subject.startswith(prefix)
            for record_id in decode_ids(message.data)
        }

    @asynccontextmanager
    async def read(self, buffer: BufferId, after: int) -> AsyncIterator[AsyncIterator[StoredFrame]]:
        frames = self._frames(buffer_subject(self._id, buffer), after)
        try:
            yield frames
        finally:
            await frames.aclose()

    async def trim(self, buffer: BufferId, through: int) -> None:
        for sequence in list(self._stream.by_subject.get(buffer_subject(self._id, buffer), {})):
            if sequence > through:
                break
            self._stream.remove(sequence)
        self._statistics.trims += 1

    async def peek(self, buffer: BufferId, after: int, frames: int) -> Sequence[StoredFrame]:
        found = self._stream.after(buffer_subject(self._id, buffer), after)[:frames]
        return [StoredFrame(sequence, self._stream.messages[sequence].data) for sequence in found]

    async def last_sequence(self, buffer: BufferId) -> int:
        return self._stream.last_of(buffer_subject(self._id, buffer))

    async def _frames(self, subject: str, after: int) -> AsyncGenerator[StoredFrame, None]:
        while True:
            # Cleared first: what is stored from here on sets it again.
            self._stream.grown.clear()
            for sequence in self._stream.after(subject, after):
                message = self._stream.messages.get(sequence)
                if message is None:
                    # Trimmed while this reader was busy.
                    continue
                after = sequence
                self._statistics.frames_read += 1
                self._statistics.bytes_read += len(message.data)
                yield StoredFrame(sequence, message.data)
            if not self._stream.after(subject, after):
                await self._stream.grown.wait()

    def _attempt(self, commit: Commit, messages: Sequence[Message], fault: _Fault | None) -> int | None:
        """One attempt; None when it has to be sent again. Raises what it is refused with."""
        stored = self._stream.last_of(mark_subject(self._id, commit.lane))
        if stored != commit.after:
            mark = mark_pb2.Mark.FromString(self._stream.messages[stored].data) if stored else mark_pb2.Mark()
            if mark.commit_id == commit.mark.commit_id:
                self._statistics.answers_settled += 1
                return stored
            raise FencedError(
                f"lane {commit.lane} of {self._id} was taken over by {mark.owner!r} (epoch {mark.epoch}, mark at "
                f"sequence {stored}); "
                f"this owner, {commit.mark.owner!r} (epoch {commit.mark.epoch}), had its last mark at "
                f"{commit.after} and must stop"
            )
        if fault is _Fault.LOST_BEFORE:
            return None
        self._check_room(commit, messages, fault)
        sequence = self._apply(commit, messages)
        if fault is _Fault.LOST_AFTER:
            return None
        return sequence

    def _check_room(self, commit: Commit, messages: Sequence[Message], fault: _Fault | None) -> None:
        self._expire()
        totals: dict[str, int] = {}
        for message in messages[:-1]:
            stored = len(self._stream.by_subject.get(message.subject, {}))
            totals[message.subject] = totals.get(message.subject, stored) + 1
        full = [subject for subject, total in totals.items() if total > self._stream.limits.frames_per_buffer_max]
        if full or fault is _Fault.BUFFER_FULL:
            self._statistics.full_refusals += 1
            raise BufferFullError(
                f"a commit of lane {commit.lane} to {self._id} was refused: a buffer is full ({full})"
            )
        size = self._stream.bytes + sum(len(message.data) for message in messages)
        if size > self._stream.limits.bytes_max or fault is _Fault.STORAGE_FULL:
            self._statistics.full_refusals += 1
            raise StorageFullError(f"a commit of lane {commit.lane} to {self._id} was refused: the storage is full")

    def _apply(self, commit: Commit, messages: Sequence[Message]) -> int:
        expires_s = self._clock.monotonic_s() + commit.ids_ttl_s
        frames = len(commit.frames)
        for index, message in enumerate(messages[:-1]):
            self._stream.store(message, expires_s if index >= frames else None)
        if commit.after:
            self._stream.remove(commit.after)
        sequence = self._stream.store(messages[-1], None)
        self._stream.grown.set()
        return sequence

    def _fence(self, lane: LaneId) -> None:
        stored = self._stream.last_of(mark_subject(self._id, lane))
        mark = mark_pb2.Mark.FromString(self._stream.messages[stored].data) if stored else mark_pb2.Mark()
        mark.epoch += 1
        mark.owner = "fault"
        mark.commit_id = self._commit_id(lane)
        commit = Commit(lane, (), mark, after=stored)
        self._apply(commit, commit_messages(self._id, commit))

    def _commit_id(self, lane: LaneId) -> bytes:
        """New for every takeover, and the same in every run of a simulation."""
        self._takeovers += 1
        return uuid5(_NAMESPACE, f"{lane}/{self._stream.last_sequence}/{self._takeovers}").bytes

    def _expire(self) -> None:
        now_s = self._clock.monotonic_s()
        for sequence, message in list(self._stream.messages.items()):
            if message.expires_s is not None and message.expires_s <= now_s:
                self._stream.remove(sequence)


class MemoryBroker:
    """`Broker` in memory. Ledgers live as long as it does: open one again for what a restarted process would find."""

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
                f"a broker in memory keeps nothing, and durability {self._require.value!r} is required; ask for "
                "'memory' by name"
            )
        stream = self._streams.get(vertex)
        if stream is None:
            self._made += 1
            stream = self._streams[vertex] = _Stream(limits, self._made)
        stream.limits = limits
        return self._opened(vertex, stream)

    async def existing_ledger(self, vertex: str) -> Ledger | None:
        stream = self._streams.get(vertex)
        return None if stream is None else self._opened(vertex, stream)

    async def delete(self) -> None:
        self._streams.clear()

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
    """A broker in the memory of this process, with the faults one asks for."""
    yield MemoryBroker(pipeline, require, faults or Faults(), clock or SystemClock())
