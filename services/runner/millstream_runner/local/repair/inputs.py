"""The stages of a repair that check the logs of reduce lanes, and compare buffers with what their readers have read.

A reader keeps its sequence. Everything up to it counts as read; everything after it is read, if it exists and is
usable. The frames that this omits, and their number of records, are written into the reader's mark, so that the account
says what was accepted and still balances.

Above it: the repair. Below it: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.account import consumed, has_inputs, inputs_in
from millstream.ledger.packs import finished_bytes, frames_in
from millstream.ledger.protocol import GivenUp, Ledger, StoredFrame, Witness
from millstream.ledger.rewriting import rewritten
from millstream.ledger.witness import from_messages, given_up_of
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.local.repair.finding import Finding, LostStretch, bare, records_text
from millstream_runner.local.repair.reading import Look, Reading, ReadUpTo
from millstream_runner.local.stored import StoredPipeline
from millstream_runner.local.view import stored_frames

if TYPE_CHECKING:
    from millstream_runner.local.repair.logs import LogLook, ReduceLogs

_OWNER = "repair"
_END = 2**63
"""After every sequence."""


class StageInputs:
    """The stages for one pipeline."""

    def __init__(self, stored: StoredPipeline, windows: Path) -> None:
        self._stored = stored
        self._windows = windows

    async def logs(self) -> AsyncIterator[Finding]:
        for lane in self._stored.known(self._stored.plan.all_lanes()):
            if not self._stored.plan.vertex(lane.vertex).definition.has_windows:
                continue
            ledger, mark = await self._stored.ledger_and_mark(lane)
            look = self._reduce_logs().look(lane, ledger, mark)
            if not look.faults and not look.is_behind:
                continue
            can_be_made = ledger is not None and await self._log_can_be_made_anew(lane, mark)
            if look.faults and (ledger is None or can_be_made):
                yield self._removable_log(look, mark, is_orphan=ledger is None)
            elif look.faults or not can_be_made:
                assert ledger is not None
                yield self._lost_log(look, ledger, mark)

    def _removable_log(self, look: LogLook, mark: mark_pb2.Mark, *, is_orphan: bool) -> Finding:
        async def accept() -> str:
            self._reduce_logs().remove(look)
            if is_orphan:
                return f"the log of lane {look.lane} is removed"
            return f"the log of lane {look.lane} is removed; the next run rebuilds it from the input that it keeps"

        return Finding(
            "log",
            f"the log of lane {look.lane} in {look.directory} is damaged: {'; '.join(map(bare, look.faults))}",
            f"the windows of lane {look.lane}, which are lost with its ledger"
            if is_orphan
            else (
                f"nothing is lost: lane {look.lane} keeps its input, which is complete, and reads its "
                f"{counted(mark.account.open, 'open record')} from there again"
            ),
            accept,
            records=None if is_orphan else 0,
        )

    def _lost_log(self, look: LogLook, ledger: Ledger, mark: mark_pb2.Mark) -> Finding:
        async def accept() -> str:
            lost = await self._reduce_logs().begin_anew(look, ledger)
            return f"lane {look.lane} starts a new log after what it has read; {records_text(lost)}"

        faults = look.faults or [
            "it has lost entries that the lane's mark relies on, and so has the input that the lane keeps"
        ]
        return Finding(
            "log",
            f"the log of lane {look.lane} in {look.directory} is damaged: {'; '.join(map(bare, faults))}",
            f"all windows of lane {look.lane} that are not committed: {counted(mark.account.open, 'record')}. These "
            "windows get no result; records that are read from now on start new windows",
            accept,
            [LostStretch(look.windows_text)] if look.windows else [],
            records=mark.account.open,
        )

    async def _log_can_be_made_anew(self, lane: LaneId, mark: mark_pb2.Mark) -> bool:
        """Whether the log can be rebuilt from the input that the lane keeps."""
        if not self._stored.plan.keeps_input(lane.vertex) or mark.reduce.closing or mark.reduce.result_records:
            return False
        for buffer in self._stored.plan.inputs_of(lane):
            upstream = await self._stored.ledger(self._stored.plan.edge(buffer.edge).from_)
            if upstream is None:
                return False
            if (await self._kept_input(upstream, lane, buffer, mark)).is_incomplete:
                return False
        own = await self._stored.ledger(lane.vertex)
        return own is not None and not (await self._milestones(own, lane, mark)).is_incomplete

    async def _kept(self, holder: Ledger, lane: LaneId, buffer: BufferId, mark: mark_pb2.Mark, through: int) -> Reading:
        """What is wrong with frames that a lane keeps, up to a sequence."""
        up_to = ReadUpTo(lane, buffer, through, (), given_up_of(mark, buffer.edge))
        return await Look(holder.vertex, up_to, self._stored.naming).before_position(_frames(holder, buffer, through))

    async def _kept_input(self, upstream: Ledger, lane: LaneId, buffer: BufferId, mark: mark_pb2.Mark) -> Reading:
        """What is wrong with the input that was read and is kept."""
        return await self._kept(upstream, lane, buffer, mark, _read_up_to(lane, mark, buffer)[0])

    async def _milestones(self, own: Ledger, lane: LaneId, mark: mark_pb2.Mark) -> Reading:
        return await self._kept(own, lane, BufferId(lane.input, lane.partition), mark, _END)

    async def buffers(self) -> AsyncIterator[Finding]:
        for lane in self._stored.known(self._stored.plan.all_lanes()):
            own, mark = await self._stored.ledger_and_mark(lane)
            if own is None:
                continue
            look = self._reduce_logs().look(lane, own, mark) if mark.HasField("reduce") else None
            is_kept = self._stored.plan.keeps_input(lane.vertex)
            for buffer in self._stored.plan.inputs_of(lane):
                upstream = await self._stored.ledger(self._stored.plan.edge(buffer.edge).from_)
                if upstream is None or self._stored.unknown.intersection(self._stored.plan.upstream_lanes(buffer)):
                    continue
                if is_kept and (kept := await self._kept_input(upstream, lane, buffer, mark)).faults:
                    yield self._kept_finding(upstream, own, lane, kept)
                reading = await self._behind(upstream, lane, buffer, mark, look)
                if reading.faults:
                    yield await self._reading_finding(upstream, own, lane, mark, reading, look)
            if is_kept and (milestones := await self._milestones(own, lane, mark)).faults:
                yield self._milestones_finding(own, lane, milestones)

    async def _behind(
        self, upstream: Ledger, lane: LaneId, buffer: BufferId, mark: mark_pb2.Mark, look: LogLook | None
    ) -> Reading:
        """What is wrong between the reader's position and the end of the buffer."""
        sequence, read = _read_up_to(lane, mark, buffer, look)
        written = {}
        for writer in self._stored.plan.upstream_lanes(buffer):
            stored = await self._stored.mark(upstream, writer)
            totals = stored.mark.written if stored is not None else ()
            written[writer.key] = next((total.frames for total in totals if _is(total, buffer)), 0)
        last = await self._stored.repairs.last_sequence(upstream.vertex)
        newest_sequence = max((item.sequence for item in read), default=0)
        there = await upstream.peek(buffer, newest_sequence - 1, 1) if newest_sequence else ()
        up_to = ReadUpTo(lane, buffer, sequence, read, given_up_of(mark, buffer.edge))
        return await Look(upstream.vertex, up_to, self._stored.naming).behind_position(
            there[0] if there else None,
            stored_frames(upstream, buffer, sequence),
            written,
            last,
        )

    async def _reading_finding(
        self, upstream: Ledger, own: Ledger, lane: LaneId, mark: mark_pb2.Mark, reading: Reading, look: LogLook | None
    ) -> Finding:
        up_to = reading.up_to
        records, _ = await self._missing(upstream, lane, mark, reading, look)
        affects = "records that were read, and may be read again"
        if records >= 0:
            affects = "records that were written to the buffer, and will not be read"
        if not reading.last_is_there:
            affects += "; what was read before may differ from what is stored now"
        return Finding(
            "buffer",
            f"lane {lane} has read buffer {up_to.buffer} up to sequence {up_to.sequence}, and what is there does not "
            f"follow: {'; '.join(reading.faults)}",
            affects,
            partial(self._go_on, upstream, own, lane, reading, look),
            reading.lost,
            records,
        )

    async def _go_on(self, upstream: Ledger, own: Ledger, lane: LaneId, reading: Reading, look: LogLook | None) -> str:
        """Make the lane continue after its sequence, and record in its mark what was accepted."""
        buffer = reading.up_to.buffer
        # The published entry has what the lane had counted until now.
        await self._stored.forget(lane)
        async with rewritten(own, lane, _OWNER) as mark:
            # No sequence that was read is used again.
            writer = next(iter(self._stored.plan.upstream_lanes(buffer)))
            last = await self._stored.repairs.last_sequence(upstream.vertex)
            while last < reading.up_to.sequence:
                last = (await upstream.take_over(writer, _OWNER)).sequence
            # There may be records to read again.
            mark.ended = False
            if has_inputs(lane, mark) and buffer.edge not in {done.edge for done in inputs_in(mark)}:
                inputs_in(mark).append(mark_pb2.InputProgress(edge=buffer.edge))
            if not reading.last_is_there and not mark.HasField("reduce"):
                # A frame that was partly read is another frame now.
                of_edges = [done for done in inputs_in(mark) if done.edge == buffer.edge]
                done = of_edges[0] if has_inputs(lane, mark) else mark
                done.record_index = 0
                whole = [item for item in done.read if item.sequence <= done.sequence]
                del done.read[:]
                done.read.extend(whole)
            records, size = await self._missing(upstream, lane, mark, reading, look)
            accepted = next((item for item in mark.accepted if item.edge == buffer.edge), None)
            accepted = accepted or mark.accepted.add(edge=buffer.edge)
            accepted.records += records
            accepted.bytes += size
            _give_up(mark, buffer.edge, reading.gaps)
        await self._remove_unusable(upstream, buffer, reading)
        return f"lane {lane} continues after sequence {reading.up_to.sequence}; {records_text(records)}"

    async def _missing(
        self, upstream: Ledger, lane: LaneId, mark: mark_pb2.Mark, reading: Reading, look: LogLook | None
    ) -> tuple[int, int]:
        """Records and stored bytes that were written to the buffer, minus those that were read and those that wait."""
        buffer = reading.up_to.buffer
        records, size = -reading.waiting_records, -reading.waiting_bytes
        for writer in self._stored.plan.upstream_lanes(buffer):
            stored = await self._stored.mark(upstream, writer)
            for total in stored.mark.written if stored is not None else ():
                if _is(total, buffer):
                    records, size = records + total.records, size + total.bytes
        index = 0
        for done in consumed(lane, mark):
            if done.buffer == buffer:
                records, size = records - done.records, size - done.bytes
                index = done.position.record_index
        if reading.last_is_there and index:
            # What waits includes the whole frame that was read in part.
            records += index
            size += await _counted_bytes(upstream, reading.up_to, index)
        if look is not None and look.contents is not None and not look.is_behind:
            for item in look.contents.unacknowledged:
                for position in item.appended.message.inputs:
                    if position.edge == buffer.edge:
                        records, size = records - position.records, size - position.bytes
        return records, size

    async def _remove_unusable(self, ledger: Ledger, buffer: BufferId, reading: Reading) -> None:
        """Remove unusable frames. A reader that reaches their positions finds a gap that it knows about."""
        for frame in reading.unusable:
            if frame.witness is not None:
                await self._rely_on_it_no_more(ledger, buffer, frame.witness)
            if await self._stored.repairs.holds_mark(ledger.vertex, frame.sequence):
                writer = frame.witness.lane if frame.witness is not None else ""
                plan = self._stored.plan
                lanes = (lane for vertex in plan.stored_with(ledger.vertex) for lane in plan.lanes_of(vertex))
                for lane in (lane for lane in lanes if lane.key == writer):
                    await ledger.take_over(lane, _OWNER)
            await self._stored.repairs.remove(ledger.vertex, buffer, frame.sequence)

    async def _rely_on_it_no_more(self, ledger: Ledger, buffer: BufferId, frame: Witness) -> None:
        """The newest frame that a lane has read has to be stored. Record in the marks of the other readers of the same
        copy, where it is this frame, that it may be missing."""
        plan = self._stored.plan
        edges = {edge.name: edge.to for edge in plan.edges}
        others = [one for one in ledger.sharing.readers(ledger.sharing.stored(buffer)) if one != buffer]
        for other in (one for one in others if one.edge in edges):
            for lane in (lane for lane in plan.lanes_of(edges[other.edge]) if other in plan.inputs_of(lane)):
                own, mark = await self._stored.ledger_and_mark(lane)
                if own is None:
                    continue
                look = self._reduce_logs().look(lane, own, mark) if mark.HasField("reduce") else None
                sequence, read = _read_up_to(lane, mark, other, look)
                if max(read, key=lambda item: item.sequence, default=None) == frame and frame.sequence <= sequence:
                    async with rewritten(own, lane, _OWNER) as changed:
                        _give_up(changed, other.edge, [GivenUp(frame.lane, frame.sequence, frame.number, frame.number)])

    def _kept_finding(self, upstream: Ledger, own: Ledger, lane: LaneId, reading: Reading) -> Finding:
        done = f"lane {lane} relies only on its log for what it read of these"
        return Finding(
            "kept-input",
            f"the input that lane {lane} keeps in buffer {reading.up_to.buffer} is damaged: "
            f"{'; '.join(reading.faults)}",
            "nothing as long as the log of the lane is complete, because it contains these records: if the log is "
            "lost as well, the open windows of the lane are lost too",
            partial(self._give_up_kept, upstream, own, lane, reading, done),
            reading.lost,
            records=0,
        )

    def _milestones_finding(self, own: Ledger, lane: LaneId, reading: Reading) -> Finding:
        return Finding(
            "milestones",
            f"milestones of lane {lane} are damaged: {'; '.join(reading.faults)}",
            "nothing as long as the log of the lane is complete: without the milestones it cannot be rebuilt",
            partial(self._give_up_kept, own, own, lane, reading, f"lane {lane} relies only on its log"),
            records=0,
        )

    async def _give_up_kept(self, holder: Ledger, own: Ledger, lane: LaneId, reading: Reading, done: str) -> str:
        buffer = reading.up_to.buffer
        async with rewritten(own, lane, _OWNER) as mark:
            _give_up(mark, buffer.edge, reading.gaps)
        await self._remove_unusable(holder, buffer, reading)
        return done

    def _reduce_logs(self) -> ReduceLogs:
        # The modules that read logs take half a second to import, and pipelines without a reduce do not need them.
        from millstream_runner.local.repair.logs import ReduceLogs

        return ReduceLogs(self._stored.plan, self._windows)


async def _counted_bytes(upstream: Ledger, up_to: ReadUpTo, records: int) -> int:
    """Stored bytes, of the frame that was read in part, that the account of the lane has. Only lanes that get the
    frames of a pack one by one have such a frame."""
    if up_to.in_part is None:
        return 0
    (stored,) = await upstream.peek(up_to.buffer, up_to.in_part - 1, 1)
    return finished_bytes(frames_in(stored.data), len(stored.data), records)


async def _frames(ledger: Ledger, buffer: BufferId, through: int) -> AsyncIterator[StoredFrame]:
    async for frame in stored_frames(ledger, buffer, 0):
        if frame.sequence > through:
            return
        yield frame


def _give_up(mark: mark_pb2.Mark, edge: str, gaps: Sequence[GivenUp]) -> None:
    mark.given_up.extend(mark_pb2.GivenUp(edge=edge, **gap._asdict()) for gap in gaps)


def _read_up_to(
    lane: LaneId, mark: mark_pb2.Mark, buffer: BufferId, look: LogLook | None = None
) -> tuple[int, list[Witness]]:
    """The sequence up to which a lane has read, and the last frames. `look`: at the log of a reduce lane."""
    if look is not None and look.contents is not None and not look.is_behind:
        # The lane has read beyond its mark, into its log.
        sequences, read = look.contents.sequences, look.contents.read
        return sequences.get(buffer.edge, 0), from_messages(read.get(buffer.edge, ()))
    if not has_inputs(lane, mark):
        return mark.sequence, from_messages(mark.read)
    done = next((done for done in inputs_in(mark) if done.edge == buffer.edge), mark_pb2.InputProgress())
    return done.sequence, from_messages(done.read)


def _is(total: mark_pb2.Written, buffer: BufferId) -> bool:
    return (total.edge, total.partition) == (buffer.edge, buffer.partition)
