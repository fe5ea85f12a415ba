"""Commits a lane's finished work: frames, ids and mark, all or nothing.

Above it: a lane of the vertex process, which hands over units in input order. Below it: the ledger. It knows marks,
accounts and back-pressure; it does not know where the units came from.

    units ─► space in every buffer? ─► join small frames ─► one commit ─► new mark ─► OT entry
"""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from millstream import codes
from millstream.account import Account, account_of
from millstream.clock import END_OF_TIME_US
from millstream.compression import Compression
from millstream.errors import (
    BufferFullError,
    RetryLaterError,
    StorageFullError,
    UserError,
)
from millstream.frame import Frame, join_frames
from millstream.ledger.compression import Compressor
from millstream.ledger.marks import fenced, lost_mark
from millstream.ledger.packs import Pack
from millstream.ledger.protocol import Commit, FrameWrite, Ledger, Receipt, StoredMark, Witness
from millstream.ledger.witness import merged, not_passed
from millstream.limits import (
    COMMIT_BYTES_MAX,
    COMMIT_FRAMES_MAX,
    FRAME_BYTES_MAX,
    FRAME_RECORDS_MAX,
    PREPARED_BYTES_MAX,
)
from millstream.pauses import Pauses, RepeatedFailure, until_done
from millstream.record import BufferId, LaneId, Position
from millstream.wire.ledger.v1 import mark_pb2
from millstream_writer.backpressure import Backpressure
from millstream_writer.routing import FrameLimits, Router

log = logging.getLogger(__name__)

JOINED_RECORDS_MAX = FRAME_RECORDS_MAX
"""Records in a frame that is joined of small ones."""
REFUSED_WAIT_FIRST_S = 0.05
REFUSED_WAIT_LAST_S = 1.0
"""Pause after a commit that the server refused for lack of space; doubled each time."""


class Member(NamedTuple):
    """A vertex after the first one of a chain."""

    vertex: str
    edge: str
    """The edge into it."""
    writes: frozenset[str]
    """Its outgoing edges that have buffers."""


@dataclass(slots=True)
class MemberCounts:
    """The records that passed through a vertex after the first one of a chain."""

    records: int = 0
    """Number of records passed to it."""
    size: int = 0
    """Bytes of these records."""
    account: Account = field(default_factory=Account)
    """The account of these records there."""

    def add(self, other: MemberCounts) -> None:
        self.records += other.records
        self.size += other.size
        self.account.add(other.account)


class SinkRecords(NamedTuple):
    """Records for the sink at the end of a chain."""

    frame: Frame
    prefix: str
    """Prefix of their ids, which end with the number of the record, from `first` on."""
    first: int

    def part(self, start: int, stop: int) -> SinkRecords:
        """Some consecutive records."""
        return SinkRecords(self.frame.slice(start, stop), self.prefix, self.first + start)


def size_of(delivered: Sequence[SinkRecords] | None) -> int:
    """Bytes of these records."""
    return sum(one.frame.size for one in delivered or ())


def records_of(delivered: Sequence[SinkRecords] | None) -> int:
    """How many these records are."""
    return sum(one.frame.records for one in delivered or ())


def split_at(delivered: Sequence[SinkRecords], count: int) -> tuple[list[SinkRecords], list[SinkRecords]]:
    """The first `count` records, and the others."""
    first: list[SinkRecords] = []
    others: list[SinkRecords] = []
    for one in delivered:
        records = one.frame.records
        if count > 0:
            first.append(one.part(0, min(count, records)))
        if count < records:
            others.append(one.part(max(0, count), records))
        count -= records
    return first, others


class DeliveryMark(NamedTuple):
    """The confirmed or possible position of a chain's sink in its target."""

    frames: int
    """Records passed to the sink since the lane's first commit."""
    name: str
    """Name of the delivery with the last of these records."""
    undelivered: int = 0
    """How many of the records that the mark keeps for the sink are left: the last ones."""


@dataclass(slots=True)
class Changes:
    """What a commit adds to the state of the lane, beside its position and its account."""

    ids: bytes = b""
    """Digests of the ids of its records, if they have to be remembered."""
    windows: mark_pb2.ReduceProgress | None = None
    """State of the windows; None except for reduce vertices."""
    states: Mapping[str, bytes] = field(default_factory=dict)
    """The whole state of each vertex whose stage has one."""

    def apply(self, mark: mark_pb2.Mark) -> None:
        """Change the part of the state that is in the mark. Ids are stored beside it."""
        if self.windows is not None:
            mark.reduce.CopyFrom(self.windows)
        for vertex, state in self.states.items():
            mark.states[vertex] = state


@dataclass(slots=True)
class Unit:
    """A finished part of a lane's input: its outputs, and the lane's position after it."""

    position: Position | None = None
    """Position in the buffer after this unit; None for sources."""
    witnesses: Sequence[Witness] = ()
    """The frames that were read up to there, in order: at least the last one of each upstream lane."""
    edge: str = ""
    """The edge of that buffer, for a lane that reads several; otherwise empty."""
    source_position: bytes | None = None
    """Position in the source after this unit; None for vertices that read a buffer, and within a read."""
    ahead: mark_pb2.Ahead | None = None
    """The part of a read that is done with this unit, if others of the same read follow."""
    frames: list[tuple[BufferId, Frame]] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    passed: Sequence[MemberCounts] = ()
    """The records that passed through the vertices after the first one of a chain, in order."""
    delivered: Sequence[SinkRecords] | None = None
    """Records for the sink at the end of the chain, in order; None for lanes without one."""
    numbered: int = 0
    """Total number of records that a source has passed to a chain, up to and including this unit; 0 for other
    vertices."""
    changes: Changes = field(default_factory=Changes)
    size: int = 0
    """Bytes of all frames and ids."""
    pieces: int = 1
    """Pieces of work in flight that end with this unit's commit."""
    observed: Frame | None = None
    """Event times of the records that determine the watermark of a source's lane: after the transformer, before any
    condition. A sink at the end of a chain may have the records long before the unit is committed."""
    holds_us: int = END_OF_TIME_US
    """After this unit, the stages of the lane may still put out records from this event time on."""

    @property
    def fits_a_commit(self) -> bool:
        # A prepared delivery must fit into one message, together with the mark.
        size_max = COMMIT_BYTES_MAX if self.delivered is None else PREPARED_BYTES_MAX
        return len(self.frames) <= COMMIT_FRAMES_MAX and self.size <= size_max


def batch_of(units: Sequence[Unit], pack: Callable[[BufferId], FrameLimits] | None = None) -> int:
    """How many of the first units fit into one commit; at least one. `pack`: see `Router.pack`; if the first units fit
    into a pack, then as many as do, because that commit is one message. None if there are no packs."""
    frames, size, records = 0, 0, 0
    buffer: BufferId | None = None
    for count, unit in enumerate(units):
        frames += len(unit.frames)
        size += unit.size
        if count and (frames > COMMIT_FRAMES_MAX or size > COMMIT_BYTES_MAX):
            return count
        if pack is None:
            continue
        buffers = {one for one, _ in unit.frames}
        if unit.changes.ids or len(buffers | {buffer} - {None}) > 1:
            pack = None
            continue
        buffer = next(iter(buffers), buffer)
        before, records = records, records + sum(frame.records for _, frame in unit.frames)
        if buffer is not None and not _fits(records, size, pack(buffer)):
            if before:
                return count
            pack = None
    return len(units)


def _fits(records: int, size: int, limits: FrameLimits) -> bool:
    return records <= limits.records and size <= limits.size


class Committer:
    """Commits for one lane, sequentially, beginning at the mark that the takeover returned."""

    def __init__(
        self,
        ledger: Ledger,
        lane: LaneId,
        taken_over: StoredMark,
        sequences: dict[BufferId, int],
        router: Router,
        backpressure: Backpressure,
        *,
        compression: Compression,
        never_waits_for: Collection[BufferId] = (),
        members: Sequence[Member] = (),
        ids_ttl_s: float = 0.0,
    ) -> None:
        """`sequences`: the last sequence in each buffer of the router, which the ledger reports after the takeover.
        `compression`: how stored frames are compressed, if all who may read this ledger understand that.
        `never_waits_for`: buffers that this lane writes to even when they are full. A lane that closes a cycle must not
        wait for the buffers inside it, because their readers ultimately wait for this lane. `members`: the vertices of
        a chain after its first one; `router` has the outgoing edges of all of them. `ids_ttl_s`: how long the ids of
        records are remembered."""
        self._ledger = ledger
        self._lane = lane
        self._stored = taken_over
        self.sequences = sequences
        """For each buffer, a stored sequence that is not below the last one this lane wrote, for an OT entry."""
        self.router = router
        """All edges that the lane writes."""
        self._sharing = ledger.sharing
        self._packs = ledger.packs
        self._compressor = Compressor(compression if ledger.compresses else Compression.NONE)
        stores: defaultdict[BufferId, list[BufferId]] = defaultdict(list)
        for buffer in router.buffers:
            stores[self._sharing.stored(buffer)].append(buffer)
        self._stores = {stored: tuple(buffers) for stored, buffers in stores.items()}
        self._readers = {buffer: self._stores[self._sharing.stored(buffer)] for buffer in router.buffers}
        self._backpressure = backpressure
        self._never_waits_for = frozenset(never_waits_for)
        self.members = tuple(members)
        """The vertices of the chain after its first one."""
        self._ids_ttl_s = ids_ttl_s
        self._written_before = self._written

    @property
    def mark(self) -> mark_pb2.Mark:
        """The lane's mark as of the last commit."""
        return self._stored.mark

    @property
    def behind_bytes(self) -> int:
        """How much other lanes have written into the buffers of this one since its last commit, as far as is known."""
        return self._written - self._written_before

    @property
    def _written(self) -> int:
        """Bytes that all lanes have written into the buffers of this one, as far as is known."""
        fills = self._backpressure.fills
        return sum(fills[buffer].written.bytes for buffer in self.router.buffers if buffer in fills)

    def take(self, waiting: deque[Unit]) -> list[Unit]:
        """Remove the units for one commit from the head of `waiting`: at least one unit, and further ones that fit into
        a commit and into the buffers that this lane waits for."""
        if len(waiting) == 1:
            return [waiting.popleft()]
        taken: list[Unit] = []
        totals: defaultdict[BufferId, tuple[int, int]] = defaultdict(lambda: (0, 0))
        pack = self.router.pack if self._packs else None
        for unit in [waiting[index] for index in range(batch_of(waiting, pack))]:
            for buffer, frame in unit.frames:
                records, size = totals[buffer]
                totals[buffer] = (records + frame.records, size + frame.size)
            if taken and not all(
                self._backpressure.has_room(reader, *totals[buffer])
                for buffer, _ in unit.frames
                if self._waits_for(buffer)
                for reader in self._readers_of(buffer)
            ):
                break
            taken.append(waiting.popleft())
        return taken

    def _readers_of(self, buffer: BufferId) -> Sequence[BufferId]:
        """The buffers that have a frame which is written to this one: those of all edges that share it. What was
        prepared may be for an edge that has been removed since."""
        return self._readers.get(buffer) or self._stores.get(self._sharing.stored(buffer), (buffer,))

    def _waits_for(self, buffer: BufferId) -> bool:
        return buffer not in self._never_waits_for and not self.router.discards_when_full(buffer)

    async def commit(
        self,
        units: Sequence[Unit],
        *,
        watermark_us: int,
        ended: bool = False,
        delivery: DeliveryMark | None = None,
        undelivered: Sequence[SinkRecords] = (),
    ) -> None:
        """Make `units` (in input order) durable, with the lane's new watermark. Waits while a buffer is full.
        `delivery`: what the sink at the end of the chain certainly has, if that is new. `undelivered`: the records that
        the mark keeps for the sink from now on.

        Raises `FencedError`. The watermark is never lowered: the mark keeps the highest one.
        """
        ids = b"".join(unit.changes.ids for unit in units)
        frames = self._joined(units)
        watermark_us = max(watermark_us, self.mark.watermark_us)

        async def attempt(leave_out: bool) -> Commit:
            kept = await self._make_room(frames, leave_out=leave_out)
            writes = [FrameWrite(buffer, self._compressor.stored(frame.encode())) for buffer, frame in kept]
            mark = self._next_mark(units, kept, writes, _left_out(frames, kept), watermark_us, ended, delivery)
            if undelivered:
                _keep(mark, undelivered)
            return self._commit_of(writes, mark, ids)

        await self._store(attempt)

    async def prepare(self, units: Sequence[Unit], *, watermark_us: int, delivery: DeliveryMark) -> None:
        """Store what has to be committed once the target has the delivery of these units, before the delivery is made:
        the next owner asks the target, and continues from its answer. Waits and raises as `commit` does."""
        frames = self._joined(units, packs=False)
        kept = await self._make_room(frames, leave_out=False)
        writes = [FrameWrite(buffer, self._compressor.stored(frame.encode())) for buffer, frame in kept]
        watermark_us = max(watermark_us, self.mark.watermark_us)
        prepared = mark_pb2.Prepared(
            mark=self._next_mark(units, kept, writes, _left_out(frames, kept), watermark_us, False, delivery),
            ids=b"".join(unit.changes.ids for unit in units),
        )
        # The mark around it has them.
        del prepared.mark.undelivered[:]
        for buffer, data in writes:
            prepared.frames.add(edge=buffer.edge, partition=buffer.partition, data=data)
        mark = mark_pb2.Mark()
        mark.CopyFrom(self.mark)
        mark.commit_id = os.urandom(16)
        mark.prepared.CopyFrom(prepared)
        await self._put(self._commit_of((), mark))

    async def commit_prepared(self) -> None:
        """Commit the prepared delivery: the target has it."""
        prepared, before = self.mark.prepared, self.mark
        mark = mark_pb2.Mark()
        mark.CopyFrom(prepared.mark)
        # Another owner may have prepared it, followed by a repair.
        mark.epoch, mark.owner, mark.target = before.epoch, before.owner, before.target
        del mark.accepted[:], mark.given_up[:]
        mark.accepted.extend(before.accepted)
        mark.given_up.extend(not_passed(before.given_up, mark))
        if mark.undelivered_records:
            mark.undelivered.extend(before.undelivered)
        writes = [FrameWrite(BufferId(one.edge, one.partition), one.data) for one in prepared.frames]
        await self._put(self._commit_of(writes, mark, prepared.ids))

    def undelivered(self) -> list[SinkRecords]:
        """The records that the mark keeps for the sink at the end of the chain, in order."""
        stored = [SinkRecords(Frame.decode(one.frame), one.prefix, one.first) for one in self.mark.undelivered]
        return split_at(stored, records_of(stored) - self.mark.undelivered_records)[1]

    async def note_target(self, target: int) -> None:
        """Store that this target keeps a position of the lane from now on; nothing else changes. Not while another
        commit is in flight. Waits and raises as `commit` does."""
        mark = mark_pb2.Mark()
        mark.CopyFrom(self.mark)
        mark.commit_id, mark.target = os.urandom(16), target
        await self._put(self._commit_of((), mark))

    def _commit_of(self, writes: Sequence[FrameWrite], mark: mark_pb2.Mark, ids: bytes = b"") -> Commit:
        """The commit that follows the lane's last one."""
        sequence, replaces = self._stored.sequence, self._stored.mark.commit_id
        return Commit(self._lane, writes, mark, sequence, ids, self._ids_ttl_s, replaces)

    async def _put(self, commit: Commit) -> None:
        """Make this commit."""

        async def attempt(leave_out: bool) -> Commit:
            return commit

        await self._store(attempt)

    async def _store(self, attempt: Callable[[bool], Awaitable[Commit]]) -> None:
        """Make the commit that `attempt` returns, which is asked again while the server cannot store it; its argument
        is whether to leave out the frames of edges that discard what does not fit."""
        pauses, leave_out, refused = Pauses(REFUSED_WAIT_FIRST_S, REFUSED_WAIT_LAST_S), False, RepeatedFailure()
        while True:
            commit = await attempt(leave_out)
            try:
                receipt = await self._ledger.commit(commit)
            except RetryLaterError as error:
                # Nothing was stored. The server does not report which buffer is full: if one of them belongs to an edge
                # that discards, the commit is retried immediately without its frames. If that is refused, too, a
                # different buffer is full.
                leave_out = (
                    isinstance(error, BufferFullError)
                    and not leave_out
                    and any(self.router.discards_when_full(buffer) for buffer, _ in commit.frames)
                )
                if leave_out:
                    continue
                refused.warn(log, f"{self._lane}: ", f"commit delayed: {error}{self._hint(error)}")
                await pauses.wait()
                continue
            refused.over(log, f"{self._lane}: ")
            self._landed(commit, receipt)
            return

    def _landed(self, commit: Commit, receipt: Receipt) -> None:
        for (buffer, _), sequence in zip(commit.frames, receipt.frame_sequences, strict=True):
            for reader in self._readers_of(buffer):
                self.sequences[reader] = sequence
        self._stored = StoredMark(commit.mark, receipt.mark_sequence)
        self._backpressure.written(self._lane, commit.mark.written)
        self._written_before = self._written

    def _joined(self, units: Sequence[Unit], *, packs: bool = True) -> Sequence[tuple[BufferId, Frame | Pack]]:
        """The frames of the units, with small ones joined, and those to each buffer as packs if there are `packs`."""
        frames = join_small([pair for unit in units for pair in unit.frames], self.router.joins_below)
        written = packed(frames, self.router.pack) if self._packs and packs else frames
        if len(written) > COMMIT_FRAMES_MAX:
            raise UserError(
                codes.COMMIT_TOO_LARGE,
                f"{self._lane}: one commit would have {len(written)} frames; the limit is {COMMIT_FRAMES_MAX}. Let "
                "the function return fewer outputs for one input, or send them to fewer edges and partitions",
            )
        return written

    async def confirm(self) -> None:
        """Return once the ledger confirms that it still has the last commit. Waits while it does not answer.

        A running lane finds out at its next commit. A lane that has ended makes none, and its readers would wait for
        lost frames. Raises `DamageError` if the ledger lost its end or was set back, `FencedError` if the lane has
        another owner.
        """
        refused = RepeatedFailure()

        def report(error: RetryLaterError) -> None:
            refused.warn(log, f"{self._lane}: ", f"the lane's mark cannot be read: {error}")

        pauses = Pauses(REFUSED_WAIT_FIRST_S, REFUSED_WAIT_LAST_S)
        stored = await until_done(partial(self._ledger.mark, self._lane), RetryLaterError, report, pauses)
        refused.over(log, f"{self._lane}: ")
        own = self._stored.mark
        if stored is not None and stored.mark.epoch > own.epoch:
            raise fenced(self._lane, stored.mark.epoch, own.epoch, stored.mark.owner)
        if stored is None or stored.sequence < self._stored.sequence:
            raise lost_mark(self._lane, self._stored.sequence, stored)

    async def _make_room(
        self, frames: Sequence[tuple[BufferId, Frame | Pack]], *, leave_out: bool
    ) -> list[tuple[BufferId, Frame | Pack]]:
        """Wait for full buffers; leave out the frames of edges that discard instead, or may have to (`leave_out`)."""
        kept: list[tuple[BufferId, Frame | Pack]] = []
        added: defaultdict[BufferId, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for buffer, frame in frames:
            records, size = added[buffer]
            if self.router.discards_when_full(buffer):
                if leave_out or self._backpressure.is_full(buffer, records, size):
                    continue
                added[buffer] = (records + frame.records, size + frame.size)
            elif self._waits_for(buffer):
                for reader in self._readers_of(buffer):
                    if self._backpressure.is_full(reader):
                        await self._backpressure.wait(reader)
            kept.append((buffer, frame))
        return kept

    def _hint(self, error: RetryLaterError) -> str:
        edges = self.router.keeping_edges
        if not edges or not isinstance(error, BufferFullError | StorageFullError):
            return ""
        return (
            f". Records on {', '.join(edges)} are kept until their windows are committed "
            "(`keepInput`). If this does not end, give the reduce a larger buffer (`limits.bufferMaxBytes`, "
            "`limits.bufferMaxLength`) or shorter windows"
        )

    def _next_mark(
        self,
        units: Sequence[Unit],
        kept: Sequence[tuple[BufferId, Frame | Pack]],
        writes: Sequence[FrameWrite],
        discarded: Counter[str],
        watermark_us: int,
        ended: bool,
        delivery: DeliveryMark | None,
    ) -> mark_pb2.Mark:
        """`discarded`: records left out, by edge."""
        previous = self._stored.mark
        # Most fields of a mark stay from commit to commit, and one copy costs less than setting them one by one.
        mark = mark_pb2.Mark()
        mark.CopyFrom(previous)
        mark.ClearField("prepared")
        mark.commit_id = os.urandom(16)
        mark.watermark_us = watermark_us
        mark.ended = ended
        account = Account.from_message(previous.account)
        for unit in units:
            account.add(unit.account)
        if discarded:
            inside = frozenset(edge for member in self.members for edge in member.writes)
            account.discarded += sum(count for edge, count in discarded.items() if edge not in inside)
        mark.account.CopyFrom(account.to_message())
        if of_edges := [unit for unit in units if unit.edge]:
            _note_inputs(mark, of_edges)
        witnesses = [witness for unit in units if not unit.edge for witness in unit.witnesses]
        if witnesses:
            del mark.read[:]
            mark.read.extend(merged(previous.read, witnesses))
        if numbered := max((unit.numbered for unit in units), default=0):
            mark.numbered = numbered
        if delivery is not None:
            mark.delivered, mark.delivery = delivery.frames, delivery.name
            mark.undelivered_records = delivery.undelivered
            if not delivery.undelivered:
                del mark.undelivered[:]
        for unit in units:
            if unit.position is not None and not unit.edge:
                mark.sequence, mark.record_index = unit.position
            if unit.source_position is not None:
                mark.position = unit.source_position
                mark.ClearField("ahead")
            if unit.ahead is not None:
                mark.ahead.CopyFrom(unit.ahead)
            unit.changes.apply(mark)
        totals = {BufferId(entry.edge, entry.partition): entry for entry in mark.written}
        for (buffer, frame), write in zip(kept, writes, strict=True):
            for reader in self._readers_of(buffer):
                entry = totals.get(reader)
                if entry is None:
                    entry = totals[reader] = mark.written.add(edge=reader.edge, partition=reader.partition)
                entry.frames += 1
                entry.records += frame.records
                entry.bytes += len(write.data)
        del mark.members[:]
        for member, passed in zip(self.members, self._pass_on(mark, units, discarded), strict=True):
            if passed.records:
                inner = BufferId(member.edge, self._lane.partition)
                entry = totals.get(inner)
                if entry is None:
                    entry = totals[inner] = mark.written.add(edge=inner.edge, partition=inner.partition)
                entry.records += passed.records
                entry.bytes += passed.size
        if previous.given_up:
            del mark.given_up[:]
            mark.given_up.extend(not_passed(previous.given_up, mark))
        return mark

    def _pass_on(self, mark: mark_pb2.Mark, units: Sequence[Unit], discarded: Counter[str]) -> Iterator[MemberCounts]:
        """Add the records that passed through the vertices of the chain to the mark. Returns those of each vertex in
        this commit."""
        own = {member.vertex for member in self.members}
        # The account of a vertex that left the chain stays: it was published, and must not appear lost.
        mark.members.extend(one for one in self._stored.mark.members if one.vertex not in own)
        for place, member in enumerate(self.members):
            now = MemberCounts()
            for unit in units:
                if unit.passed:
                    now.add(unit.passed[place])
            total = account_of(member.vertex, self._lane, self._stored.mark)
            total.add(now.account)
            total.discarded += sum(discarded[edge] for edge in member.writes)
            mark.members.add(vertex=member.vertex, edge=member.edge, account=total.to_message())
            yield now


def _note_inputs(mark: mark_pb2.Mark, units: Sequence[Unit]) -> None:
    """Note in the mark of a lane that reads several buffers what these units have read of each."""
    inputs = {done.edge: done for done in mark.inputs}
    for unit in units:
        done = inputs.get(unit.edge)
        if done is None:
            done = inputs[unit.edge] = mark.inputs.add(edge=unit.edge)
        if unit.position is not None:
            done.sequence, done.record_index = unit.position
        done.records += unit.account.inputs
        done.bytes += unit.account.input_bytes
        if unit.witnesses:
            read = merged(done.read, unit.witnesses)
            del done.read[:]
            done.read.extend(read)


def _keep(mark: mark_pb2.Mark, undelivered: Sequence[SinkRecords]) -> None:
    """Make a mark keep records for the sink, instead of those that it has kept so far."""
    del mark.undelivered[:]
    for one in undelivered:
        mark.undelivered.add(prefix=one.prefix, first=one.first, frame=one.frame.encode())
    mark.undelivered_records = records_of(undelivered)


def _left_out(
    frames: Sequence[tuple[BufferId, Frame | Pack]], kept: Sequence[tuple[BufferId, Frame | Pack]]
) -> Counter[str]:
    """Number of records in frames that are left out, by edge."""
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
    """The same records in the same order per buffer, with small neighbouring frames of one form joined. `joins_below`:
    see `Router`."""
    runs: dict[BufferId, list[list[Frame]]] = {}
    for buffer, frame in frames:
        buffer_runs = runs.setdefault(buffer, [])
        last = buffer_runs[-1] if buffer_runs else None
        below = joins_below(buffer)
        if (
            last is not None
            and frame.records < below
            and last[-1].records < below
            and last[-1].form == frame.form
            and sum(part.records for part in last) + frame.records <= JOINED_RECORDS_MAX
            and sum(part.size for part in last) + frame.size <= FRAME_BYTES_MAX
        ):
            last.append(frame)
        else:
            buffer_runs.append([frame])
    return [(buffer, join_frames(run)) for buffer, buffer_runs in runs.items() for run in buffer_runs]


def packed(
    frames: Sequence[tuple[BufferId, Frame]], limits: Callable[[BufferId], FrameLimits]
) -> Sequence[tuple[BufferId, Frame | Pack]]:
    """The same frames in the same order, with neighbours of one form to the same buffer in packs. `limits`: see
    `Router.pack`."""
    made: list[tuple[BufferId, list[Frame]]] = []
    records = size = 0
    for buffer, frame in frames:
        records, size = records + frame.records, size + frame.size
        joins = bool(made) and made[-1][0] == buffer and made[-1][1][-1].form == frame.form
        if joins and _fits(records, size, limits(buffer)):
            made[-1][1].append(frame)
        else:
            made.append((buffer, [frame]))
            records, size = frame.records, frame.size
    return [(buffer, Pack(some) if len(some) > 1 else some[0]) for buffer, some in made]
