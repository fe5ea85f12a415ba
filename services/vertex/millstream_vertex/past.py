"""Checks whether the ledger is at least as new as what was published from it, and what was written from it to a target.

An entry of the OT store is in another stream, and is made only after the mark that it describes was committed. If the
entry is ahead of the ledger, the ledger has lost its end, was rolled back, or lacks the message with the mark. The same
holds for a file that has records of frames after the mark.

Above it: the assembly, before a lane does anything. Below it: the ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream import codes
from millstream.account import consumed
from millstream.errors import DamageError
from millstream.ledger.protocol import GivenUp, Ledger, StoredMark
from millstream.ledger.witness import REPAIR
from millstream.plurals import counted
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1 import ot_pb2


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
