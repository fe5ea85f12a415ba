"""What a target keeps of a lane beside the records, and whether the lane may go on from it.

Above it: the lanes of sinks that keep a position in their target. Below it: nothing; a lane reads and writes the
position in its target's own way, in the transaction of the records.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream import codes
from millstream.errors import DamageError, FencedError
from millstream.record import Position
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import frame_at


class Kept(NamedTuple):
    """How far a lane is in its target."""

    run: str
    epoch: int
    owner: str
    """A new name whenever a lane is opened: a connection that was given up commits nothing late."""
    position: Position
    frame: str
    """Name of the frame with the last record."""


async def check_kept(owner: SinkOwner, kept: Kept, target: str, remedy: str, *, ours: bool) -> None:
    """Raises unless `owner` may write behind what `target` keeps of the lane. `remedy` removes that; `ours`: this very
    lane has put it there, and lost the answer.

    A target of another run, one that is ahead of what the buffer holds, and one that has lost what it confirmed are
    damage; a newer owner ends this one.
    """
    if kept.run != owner.ledger_id:
        raise DamageError(
            codes.SINK_AHEAD,
            f"{owner.where}: another run of the pipeline wrote into {target}, up to sequence "
            f"{kept.position.sequence} of lane {owner.name}. Nothing was written now. Run with the data directory "
            f"of that run; or see to the records that it wrote, and then start over: {remedy}",
        )
    if not ours and kept.epoch >= owner.epoch:
        raise fenced(owner, target)
    if owner.fallback:
        # It gets some records only, and maybe others when they are offered again.
        return
    if owner.start.record_index == 0 and kept.position < owner.start:
        raise DamageError(
            codes.SINK_BEHIND,
            f"{owner.where}: {target} is at sequence {kept.position.sequence} of lane {owner.name}, and had "
            f"confirmed sequence {owner.start.sequence}: it was restored from an older copy, or lost what it had "
            "acknowledged. Nothing was written now. Restore it to a later state; or go on without these records: "
            f"{remedy}",
        )
    if not kept.frame or not owner.start < kept.position:
        return
    sequence = frame_at(kept.position)
    held = await owner.held_instead(sequence, kept.frame)
    if held is not None:
        raise DamageError(
            codes.SINK_AHEAD,
            f"{owner.where}: {target} has records of frame {kept.frame} at sequence {sequence}, where the buffer "
            f"holds {held} now, and the lane's mark is at {owner.start.sequence}: what the pipeline keeps "
            f"is older than {target}, or was written again since. Nothing was written now. Put back the data "
            f"directory that was there; or see to the records behind the mark, and then go on from it: {remedy}",
        )


def fenced(owner: SinkOwner, target: str) -> FencedError:
    """Another owner has opened the lane since."""
    return FencedError(codes.OUTPUT_TAKEN_OVER, f"{owner.where}: another owner writes lane {owner.name} into {target}")
