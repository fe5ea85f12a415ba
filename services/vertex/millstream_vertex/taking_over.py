"""What is checked and loaded when a lane is taken over, before it does anything: is its ledger as new as what was
published from it, and as what was written to its target; are its edges where its pipeline has them; which ids are
remembered.

An entry of the OT store is in another stream, and is made only after the mark that it describes was committed. If the
entry is ahead of the ledger, the ledger has lost its end, was rolled back, or lacks the message with the mark. The same
holds for a file that has records of frames after the mark.

The runner compares the shapes of pipelines before it starts one (`millstream.plan.diff`). Processes that are started in
another way have only the mark.

Above it: the assembly. Below it: the ledgers, and what the lane remembers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from millstream import codes
from millstream.account import Account, consumed
from millstream.clock import Clock
from millstream.errors import REPAIR, DamageError, UserError
from millstream.ledger.protocol import GivenUp, Ledger, StoredMark
from millstream.plan.plan import Plan
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream.statistics import LaneStatistics
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1 import ot_pb2
from millstream_reader.ids import SeenIds
from millstream_vertex.settings import id_bounds, ids_max
from millstream_writer.committer import Member

log = logging.getLogger(__name__)


def check_not_older(lane: LaneId, stored: StoredMark | None, entry: ot_pb2.OtEntry) -> None:
    """Raise `DamageError` if the mark is behind the entry, which was read before it."""
    lacking = list(_lacking(lane, stored.mark if stored is not None else mark_pb2.Mark(), entry))
    if not lacking:
        return
    state = "is gone" if stored is None else f"is back at epoch {stored.mark.epoch}"
    raise DamageError(
        codes.LEDGER_CUT,
        f"the mark of lane {lane} in the ledger of vertex {lane.vertex} {state}, but the lane had published more: "
        f"{'; '.join(lacking)}. The ledger lost its latest data or was rolled back, or its mark is damaged. {REPAIR}",
    )


async def held_instead(
    upstream: Ledger, buffer: BufferId, given_up: Sequence[GivenUp], sequence: int, name: str
) -> str | None:
    """Describe what the buffer holds at that sequence instead of the frame with that name.

    None if it holds that frame, or if a repair has given up that frame.
    """
    lane, number, _ = name.split(" ")
    if any(gap.lane == lane and gap.after < int(number) <= gap.through for gap in given_up):
        return None
    stored = next(iter(await upstream.peek(buffer, sequence - 1, 1)), None)
    if stored is None or stored.sequence != sequence or stored.witness is None:
        return "no frame"
    return None if stored.witness.name == name else f"frame {stored.witness.name}"


def _lacking(lane: LaneId, mark: mark_pb2.Mark, entry: ot_pb2.OtEntry) -> Iterator[str]:
    if entry.epoch > mark.epoch:
        yield f"epoch {entry.epoch}"
    read = {done.buffer: done for done in consumed(lane, mark)}
    for state in entry.inputs:
        done = next((one for buffer, one in read.items() if (buffer.edge, buffer.partition) == _key(state)), None)
        sequence, records = (done.position.sequence, done.records) if done is not None else (0, 0)
        if state.sequence > sequence or state.records > records:
            yield (
                f"{counted(state.records, 'processed record')} of {state.edge}.{state.partition}, up to sequence "
                f"{state.sequence} (the mark has {records:,}, up to {sequence})"
            )
    written = {(total.edge, total.partition): total.records for total in mark.written}
    for state in entry.outputs:
        if state.records > written.get(_key(state), 0):
            yield (
                f"{counted(state.records, 'record')} written to {state.edge}.{state.partition} (the mark has "
                f"{written.get(_key(state), 0):,})"
            )


def _key(state: ot_pb2.BufferState) -> tuple[str, int]:
    return state.edge, state.partition


def check_places(lane: LaneId, mark: mark_pb2.Mark, members: Sequence[Member], buffers: Collection[str]) -> None:
    """Raise `UserError` if an edge had a buffer and is chained now, or was chained and has a buffer now. `buffers`: the
    names of all edges of the pipeline that have buffers."""
    chained = {member.edge for member in members}
    for written in mark.written:
        if written.frames and written.edge in chained:
            raise _moved(lane, written.edge, "had a buffer, in which records may wait, and is chained now", "false")
    for former in mark.members:
        if former.edge in buffers:
            raise _moved(lane, former.edge, "was chained, and has a buffer now", "true")


def _moved(lane: LaneId, edge: str, what: str, chain: str) -> UserError:
    return UserError(
        codes.DATA_OF_ANOTHER_PIPELINE,
        f"lane {lane}: edge {edge} {what}. Write `chain: {chain}` to this edge in the pipeline file; or rename the "
        "vertex that it leads to, which then starts empty, when no records wait",
    )


async def open_seen_ids(plan: Plan, ledger: Ledger, lane: LaneId, clock: Clock) -> SeenIds | None:
    """Load the ids that the lane has stored; None for a vertex that remembers no ids."""
    bounds = id_bounds(plan, lane.vertex)
    if bounds is None:
        return None
    seen = SeenIds(ttl_s=bounds.ttl_s, ids_max=ids_max(plan, lane.vertex), clock=clock)
    async for stored in ledger.ids(lane):
        seen.restore(stored.digests, stored.age_s)
    return seen


def log_opened(lane: LaneId, mark: mark_pb2.Mark) -> None:
    """Log where the lane begins or resumes."""
    inputs = Account.from_message(mark.account).inputs
    fields: dict[str, object] = {"lane": lane.key, "epoch": mark.epoch, "inputs": inputs}
    places = [done for done in consumed(lane, mark) if done.position.sequence]
    if mark.ended:
        log.info("lane %s ended in an earlier run: it has read %s records", lane, f"{inputs:,}", extra=fields)
    elif inputs or places or mark.position:
        where = "".join(f", {done.buffer.key} up to sequence {done.position.sequence}" for done in places)
        if places:
            fields["sequence"] = max(done.position.sequence for done in places)
        log.info("lane %s resumes after %s records%s (epoch %d)", lane, f"{inputs:,}", where, mark.epoch, extra=fields)
    else:
        log.info("lane %s begins (epoch %d)", lane, mark.epoch, extra=fields)


def log_finished(statistics: LaneStatistics) -> None:
    """Log the lane's account since its first commit."""
    counts = {
        "processed": statistics.processed,
        "filtered": statistics.filtered,
        "dead-lettered": statistics.dead_lettered,
        "dropped": sum(statistics.dropped.values()),
        "sent to a late edge": statistics.diverted,
        "kept for open windows": statistics.open,
    }
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    log.info(
        "lane %s %s: %s records read%s",
        statistics.lane,
        "ended" if statistics.ended else "stopped",
        f"{statistics.inputs:,}",
        f": {parts}" if parts else "",
        extra={"lane": statistics.lane.key, "epoch": statistics.epoch, "inputs": statistics.inputs},
    )
