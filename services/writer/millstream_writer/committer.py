"""Commits a lane's finished work: frames, ids and mark, all or nothing.

Above it: a lane of the vertex process, which hands over units in input order. Below it: the ledger. It knows marks,
accounts and back-pressure; it does not know where the units came from.

    units ─► room in every buffer? ─► join small frames ─► one commit ─► new mark ─► OT entry
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream import codes
from millstream.account import Account, account_of
from millstream.errors import (
    BufferFullError,
    RetryLaterError,
    StorageFullError,
    UserError,
)
from millstream.frame import Frame, join_frames
from millstream.ledger.marks import fenced, lost_mark
from millstream.ledger.protocol import Commit, FrameWrite, Ledger, Receipt, StoredMark, Witness
from millstream.ledger.witness import merged, not_passed
from millstream.limits import (
    COMMIT_BYTES_MAX,
    COMMIT_FRAMES_MAX,
    FRAME_BYTES_MAX,
    FRAME_RECORDS_MAX,
    PREPARED_BYTES_MAX,
)
from millstream.pauses import Pauses
from millstream.record import BufferId, LaneId, Position
from millstream.wire.ledger.v1 import mark_pb2
from millstream_writer.backpressure import Backpressure
from millstream_writer.routing import Router

log = logging.getLogger(__name__)

REFUSED_WAIT_FIRST_S = 0.05
REFUSED_WAIT_LAST_S = 1.0
"""How long a commit that the server refused for want of space waits before it is tried again: doubled each time."""


class Member(NamedTuple):
    """A vertex behind the first of a chain."""

    vertex: str
    edge: str
    """By which records come to it."""
    writes: frozenset[str]
    """Edges out of it that have buffers."""


@dataclass(slots=True)
class Passed:
    """What went through a vertex behind the first of a chain."""

    records: int = 0
    """Handed on to it."""
    size: int = 0
    """Bytes of them."""
    account: Account = field(default_factory=Account)
    """What became of them there."""

    def add(self, other: Passed) -> None:
        self.records += other.records
        self.size += other.size
        self.account.add(other.account)


class Delivered(NamedTuple):
    """Records for the sink at the end of a chain."""

    frame: Frame
    prefix: str
    """Of their ids: the number of a record follows, from `first` on."""
    first: int


def size_of(delivered: Sequence[Delivered] | None) -> int:
    """Bytes of these records."""
    return sum(one.frame.size for one in delivered or ())


class Delivery(NamedTuple):
    """How far the target of a chain's sink is with it, or may be."""

    frames: int
    """Handed to it since the lane's first commit."""
    name: str
    """Of the delivery that the last of them is in."""


@dataclass(slots=True)
class Unit:
    """A stretch of a lane's input that is finished: its outputs, and where the lane stands after it."""

    position: Position | None = None
    """After this unit; None for sources."""
    witnesses: Sequence[Witness] = ()
    """The frames that were read up to there, in order: at least the last one of each lane upstream."""
    source_position: bytes | None = None
    """After this unit; None for vertices that read a buffer, and within a read."""
    ahead: mark_pb2.Ahead | None = None
    """What of a read is done with this unit, where others of the same read follow."""
    reduce: mark_pb2.ReduceProgress | None = None
    """After this unit; None for all but reduce vertices."""
    frames: list[tuple[BufferId, Frame]] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    passed: Sequence[Passed] = ()
    """Through the vertices behind the first of a chain, in their order."""
    delivered: Sequence[Delivered] | None = None
    """For the sink at the end of the chain, in order; None for lanes without one."""
    numbered: int = 0
    """Records that a source has handed on to a chain, after this unit and since its first; 0 for others."""
    ids: bytes = b""
    """Digests of the ids of its records, where they are to be remembered."""
    size: int = 0
    """Bytes of all frames and ids."""
    pieces: int = 1
    """Pieces of work in flight that end with this unit's commit."""

    @property
    def fits_a_commit(self) -> bool:
        # What is prepared for a sink goes into one message, mark and all.
        size_max = COMMIT_BYTES_MAX if self.delivered is None else PREPARED_BYTES_MAX
        return len(self.frames) <= COMMIT_FRAMES_MAX and self.size <= size_max


def batch_of(units: Sequence[Unit]) -> int:
    """How many of the units at the head fit into one commit; at least one."""
    frames, size = 0, 0
    for count, unit in enumerate(units):
        frames += len(unit.frames)
        size += unit.size
        if count and (frames > COMMIT_FRAMES_MAX or size > COMMIT_BYTES_MAX):
            return count
    return len(units)


class Committer:
    """Commits for one lane, one commit after another, beginning at the mark that the takeover gave."""

    def __init__(
        self,
        ledger: Ledger,
        lane: LaneId,
        taken_over: StoredMark,
        sequences: dict[BufferId, int],
        router: Router,
        backpressure: Backpressure,
        *,
        never_waits_for: Collection[BufferId] = (),
        members: Sequence[Member] = (),
    ) -> None:
        """`sequences`: the last sequence in each buffer of the router, as the ledger tells it after the takeover.
        `never_waits_for`: buffers that this lane writes even when they are full. A lane that closes a cycle must not
        wait for the buffers inside: those who would make room there wait, in the end, for this lane. `members`: of a
        chain, behind its first vertex; `router` has the edges out of all of them."""
        self._ledger = ledger
        self._lane = lane
        self._stored = taken_over
        self._sequences = sequences
        self._router = router
        self._backpressure = backpressure
        self._never_waits_for = frozenset(never_waits_for)
        self._members = tuple(members)
        self.ids_ttl_s = 0.0

    @property
    def mark(self) -> mark_pb2.Mark:
        """The lane's mark as of the last commit."""
        return self._stored.mark

    @property
    def router(self) -> Router:
        """All edges that the lane writes."""
        return self._router

    @property
    def sequences(self) -> Mapping[BufferId, int]:
        """Per buffer a stored sequence that is not below the last one this lane wrote: what an OT entry says."""
        return self._sequences

    def take(self, waiting: deque[Unit]) -> list[Unit]:
        """Take what is committed at once from the head of `waiting`: at least one unit, and of those behind it what
        fits a commit, and the buffers that this lane waits for."""
        taken: list[Unit] = []
        totals: defaultdict[BufferId, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for unit in [waiting[index] for index in range(batch_of(waiting))]:
            for buffer, frame in unit.frames:
                records, size = totals[buffer]
                totals[buffer] = (records + frame.records, size + frame.size)
            if taken and not all(
                self._backpressure.has_room(buffer, *totals[buffer])
                for buffer, _ in unit.frames
                if self._waits_for(buffer)
            ):
                break
            taken.append(waiting.popleft())
        return taken

    def _waits_for(self, buffer: BufferId) -> bool:
        return buffer not in self._never_waits_for and not self._router.discards_when_full(buffer)

    async def commit(
        self, units: Sequence[Unit], *, watermark_us: int, ended: bool = False, delivery: Delivery | None = None
    ) -> None:
        """Make `units` (in input order) durable, with the lane's new watermark. Waits while a buffer is full.
        `delivery`: what the sink at the end of the chain has for sure, where that is new.

        Raises `FencedError`. The watermark is never lowered: the mark keeps the highest it was given.
        """
        frames = self._joined(units)
        ids = b"".join(unit.ids for unit in units)
        watermark_us = max(watermark_us, self.mark.watermark_us)
        pauses, leave_out = Pauses(REFUSED_WAIT_FIRST_S, REFUSED_WAIT_LAST_S), False
        while True:
            kept = await self._make_room(frames, leave_out=leave_out)
            writes = [FrameWrite(buffer, frame.encode()) for buffer, frame in kept]
            mark = self._next_mark(units, kept, writes, _left_out(frames, kept), watermark_us, ended, delivery)
            commit = Commit(self._lane, writes, mark, self._stored.sequence, ids, self.ids_ttl_s)
            try:
                receipt = await self._ledger.commit(commit)
            except RetryLaterError as error:
                # Nothing was stored. The server does not say which buffer is full: if an edge that discards is among
                # them, the commit is tried at once without its frames. When that is refused too, it was not the one.
                leave_out = isinstance(error, BufferFullError) and not leave_out and self._may_discard(kept)
                if leave_out:
                    continue
                if pauses.none_yet:
                    log.warning("commit delayed: %s%s", error, self._hint(error), extra={"lane": str(self._lane)})
                await pauses.wait()
                continue
            break
        self._landed(commit, receipt)

    async def prepare(self, units: Sequence[Unit], *, watermark_us: int, delivery: Delivery) -> None:
        """Store what is to be committed when the target has the delivery of these units, before it is made: the next
        owner asks the target, and goes on from what it says. Waits as `commit` does, and raises as it does."""
        frames = self._joined(units)
        kept = await self._make_room(frames, leave_out=False)
        writes = [FrameWrite(buffer, frame.encode()) for buffer, frame in kept]
        watermark_us = max(watermark_us, self.mark.watermark_us)
        prepared = mark_pb2.Prepared(
            mark=self._next_mark(units, kept, writes, _left_out(frames, kept), watermark_us, False, delivery),
            ids=b"".join(unit.ids for unit in units),
        )
        for buffer, data in writes:
            prepared.frames.add(edge=buffer.edge, partition=buffer.partition, data=data)
        mark = mark_pb2.Mark()
        mark.CopyFrom(self.mark)
        mark.commit_id = os.urandom(16)
        mark.prepared.CopyFrom(prepared)
        await self._put(Commit(self._lane, (), mark, self._stored.sequence))

    async def commit_prepared(self) -> None:
        """Commit what was prepared: the target has its delivery."""
        prepared, before = self.mark.prepared, self.mark
        mark = mark_pb2.Mark()
        mark.CopyFrom(prepared.mark)
        # Another owner may have prepared it, and a repair may have come between.
        mark.epoch, mark.owner = before.epoch, before.owner
        del mark.accepted[:], mark.given_up[:]
        mark.accepted.extend(before.accepted)
        mark.given_up.extend(not_passed(before.given_up, mark))
        writes = [FrameWrite(BufferId(one.edge, one.partition), one.data) for one in prepared.frames]
        await self._put(Commit(self._lane, writes, mark, self._stored.sequence, prepared.ids, self.ids_ttl_s))

    async def _put(self, commit: Commit) -> None:
        """Commit, again while the server cannot take it."""
        pauses = Pauses(REFUSED_WAIT_FIRST_S, REFUSED_WAIT_LAST_S)
        while True:
            try:
                receipt = await self._ledger.commit(commit)
            except RetryLaterError as error:
                if pauses.none_yet:
                    log.warning("commit delayed: %s%s", error, self._hint(error), extra={"lane": str(self._lane)})
                await pauses.wait()
                continue
            self._landed(commit, receipt)
            return

    def _landed(self, commit: Commit, receipt: Receipt) -> None:
        for (buffer, _), sequence in zip(commit.frames, receipt.frame_sequences, strict=True):
            self._sequences[buffer] = sequence
        self._stored = StoredMark(commit.mark, receipt.mark_sequence)
        self._backpressure.written(self._lane, commit.mark.written)

    def _joined(self, units: Sequence[Unit]) -> list[tuple[BufferId, Frame]]:
        """What the units write, small frames joined."""
        frames = join_small([pair for unit in units for pair in unit.frames], self._router.joins_below)
        if len(frames) > COMMIT_FRAMES_MAX:
            raise UserError(
                codes.COMMIT_TOO_LARGE,
                f"{self._lane}: one commit would have {len(frames)} frames; the limit is {COMMIT_FRAMES_MAX}. Let "
                "the function return fewer outputs for one input, or send them to fewer edges and partitions",
            )
        return frames

    async def confirm(self) -> None:
        """Return when the ledger still has the last commit; wait for that while it does not answer.

        A lane that goes on finds out at its next commit; one that has ended makes none, and those who read from it
        would wait for what is gone. Raises `DamageError` when the ledger lost its end or was set back, `FencedError`
        when the lane has another owner.
        """
        pauses = Pauses(REFUSED_WAIT_FIRST_S, REFUSED_WAIT_LAST_S)
        while True:
            try:
                stored = await self._ledger.mark(self._lane)
                break
            except RetryLaterError:
                await pauses.wait()
        own = self._stored.mark
        if stored is not None and stored.mark.epoch > own.epoch:
            raise fenced(self._lane, stored.mark.epoch, own.epoch, stored.mark.owner)
        if stored is None or stored.sequence < self._stored.sequence:
            raise lost_mark(self._lane, self._stored.sequence, stored)

    async def _make_room(
        self, frames: Sequence[tuple[BufferId, Frame]], *, leave_out: bool
    ) -> list[tuple[BufferId, Frame]]:
        """Wait for buffers that are full; leave out what an edge discards instead, or might (`leave_out`)."""
        kept: list[tuple[BufferId, Frame]] = []
        added: defaultdict[BufferId, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for buffer, frame in frames:
            records, size = added[buffer]
            if self._router.discards_when_full(buffer):
                if leave_out or self._backpressure.is_full(buffer, records, size):
                    continue
                added[buffer] = (records + frame.records, size + frame.size)
            elif self._waits_for(buffer) and self._backpressure.is_full(buffer):
                await self._backpressure.wait(buffer)
            kept.append((buffer, frame))
        return kept

    def _hint(self, error: RetryLaterError) -> str:
        edges = self._router.keeping_edges
        if not edges or not isinstance(error, BufferFullError | StorageFullError):
            return ""
        return (
            f". Records on {', '.join(edges)} are kept until the windows that they are in are committed "
            "(`keepInput`). If this does not pass, give the reduce a larger buffer (`limits.bufferMaxBytes`, "
            "`limits.bufferMaxLength`) or shorter windows"
        )

    def _may_discard(self, frames: Sequence[tuple[BufferId, Frame]]) -> bool:
        return any(self._router.discards_when_full(buffer) for buffer, _ in frames)

    def _next_mark(
        self,
        units: Sequence[Unit],
        kept: Sequence[tuple[BufferId, Frame]],
        writes: Sequence[FrameWrite],
        discarded: Counter[str],
        watermark_us: int,
        ended: bool,
        delivery: Delivery | None,
    ) -> mark_pb2.Mark:
        """`discarded`: records left out, by edge."""
        previous = self._stored.mark
        account = Account.from_message(previous.account)
        for unit in units:
            account.add(unit.account)
        inside = frozenset(edge for member in self._members for edge in member.writes)
        account.discarded += sum(count for edge, count in discarded.items() if edge not in inside)
        mark = mark_pb2.Mark(
            commit_id=os.urandom(16),
            epoch=previous.epoch,
            owner=previous.owner,
            sequence=previous.sequence,
            record_index=previous.record_index,
            position=previous.position,
            watermark_us=watermark_us,
            ended=ended,
            account=account.to_message(),
            accepted=previous.accepted,
            read=merged(previous.read, (witness for unit in units for witness in unit.witnesses)),
            numbered=max((unit.numbered for unit in units), default=0) or previous.numbered,
            delivered=delivery.frames if delivery is not None else previous.delivered,
            delivery=delivery.name if delivery is not None else previous.delivery,
        )
        if previous.HasField("reduce"):
            mark.reduce.CopyFrom(previous.reduce)
        if previous.HasField("ahead"):
            mark.ahead.CopyFrom(previous.ahead)
        for unit in units:
            if unit.position is not None:
                mark.sequence, mark.record_index = unit.position
            if unit.source_position is not None:
                mark.position = unit.source_position
                mark.ClearField("ahead")
            if unit.ahead is not None:
                mark.ahead.CopyFrom(unit.ahead)
            if unit.reduce is not None:
                mark.reduce.CopyFrom(unit.reduce)
        written = {(entry.edge, entry.partition): entry for entry in previous.written}
        totals: dict[tuple[str, int], mark_pb2.Written] = {}
        for key, entry in written.items():
            totals[key] = mark_pb2.Written()
            totals[key].CopyFrom(entry)
        for (buffer, frame), write in zip(kept, writes, strict=True):
            entry = totals.setdefault(
                (buffer.edge, buffer.partition), mark_pb2.Written(edge=buffer.edge, partition=buffer.partition)
            )
            entry.frames += 1
            entry.records += frame.records
            entry.bytes += len(write.data)
        for member, passed in zip(self._members, self._pass_on(mark, units, discarded), strict=True):
            if passed.records:
                inner = (member.edge, self._lane.partition)
                entry = totals.setdefault(inner, mark_pb2.Written(edge=inner[0], partition=inner[1]))
                entry.records += passed.records
                entry.bytes += passed.size
        mark.written.extend(totals.values())
        mark.given_up.extend(not_passed(previous.given_up, mark))
        return mark

    def _pass_on(self, mark: mark_pb2.Mark, units: Sequence[Unit], discarded: Counter[str]) -> Iterator[Passed]:
        """Add what went through the vertices of the chain to the mark. Gives what went through each now."""
        own = {member.vertex for member in self._members}
        # What a vertex has done that left the chain stays: it was published, and is not to look lost.
        mark.members.extend(one for one in self._stored.mark.members if one.vertex not in own)
        for place, member in enumerate(self._members):
            now = Passed()
            for unit in units:
                if unit.passed:
                    now.add(unit.passed[place])
            total = account_of(member.vertex, self._lane, self._stored.mark)
            total.add(now.account)
            total.discarded += sum(discarded[edge] for edge in member.writes)
            mark.members.add(vertex=member.vertex, edge=member.edge, account=total.to_message())
            yield now


def _left_out(frames: Sequence[tuple[BufferId, Frame]], kept: Sequence[tuple[BufferId, Frame]]) -> Counter[str]:
    """Records of frames that are not kept, by edge."""
    counts: Counter[str] = Counter()
    if len(frames) > len(kept):
        for buffer, frame in frames:
            counts[buffer.edge] += frame.records
        for buffer, frame in kept:
            counts[buffer.edge] -= frame.records
    return counts


def join_small(
    frames: Sequence[tuple[BufferId, Frame]], joins_below: Callable[[BufferId], int]
) -> list[tuple[BufferId, Frame]]:
    """The same records in the same order per buffer, small neighbours made one frame. `joins_below`: see `Router`."""
    runs: dict[BufferId, list[list[Frame]]] = {}
    for buffer, frame in frames:
        buffer_runs = runs.setdefault(buffer, [])
        last = buffer_runs[-1] if buffer_runs else None
        below = joins_below(buffer)
        if (
            last is not None
            and frame.records < below
            and last[-1].records < below
            and sum(part.records for part in last) + frame.records <= FRAME_RECORDS_MAX
            and sum(part.size for part in last) + frame.size <= FRAME_BYTES_MAX
        ):
            last.append(frame)
        else:
            buffer_runs.append([frame])
    return [(buffer, join_frames(run)) for buffer, buffer_runs in runs.items() for run in buffer_runs]
