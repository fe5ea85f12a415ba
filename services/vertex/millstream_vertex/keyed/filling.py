"""Fills the state of a lane that has none, from entries that do not fit into memory together: they pass through.

    take over ─► entries ─► COMMIT: changelog + mark ─► entries ─► COMMIT ─► ...

The lane has no state in memory meanwhile, so every entry has to be given once, and no slot is written anew: the next
owner of the lane does that, as after any other changes.

Above it: the restore of a savepoint. Below it: the changelog of the lane, and the committer.
"""

from __future__ import annotations

from millstream.clock import Clock
from millstream.compression import Compression
from millstream.ledger.protocol import Ledger
from millstream.limits import FRAME_BYTES_MAX
from millstream.record import LaneId
from millstream_vertex.keyed.changelog import changelog_buffer, frame_of_steps
from millstream_vertex.keyed.committing import commit_in_time, committer_to
from millstream_vertex.keyed.steps import Entries, encode_steps
from millstream_writer.committer import Committer, Unit


class StateFilling:
    """The state of a lane that is being filled. Made by `begin_filling`; for one task."""

    def __init__(self, lane: LaneId, committer: Committer, clock: Clock) -> None:
        self._lane = lane
        self._committer = committer
        self._clock = clock
        self._steps: list[bytes] = []
        self._size = 0

    async def add(self, entries: Entries) -> None:
        """Add entries, of states by the numbers that the mark will give them. Raises `FencedError` if the lane has
        another owner, and `InfrastructureError` if its ledger has no room."""
        for data in encode_steps(entries):
            if self._steps and self._size + len(data) > FRAME_BYTES_MAX:
                await self._commit()
            self._steps.append(data)
            self._size += len(data)

    async def finish(self) -> None:
        """Return when everything is committed. Raises as `add`."""
        if self._steps:
            await self._commit()

    async def _commit(self) -> None:
        frame = frame_of_steps(self._steps, self._clock.now_us())
        unit = Unit(frames=[(changelog_buffer(self._lane), frame)], size=frame.size, pieces=0)
        await commit_in_time(self._committer, self._lane, unit, "Make room, then repeat the command")
        self._steps, self._size = [], 0


async def begin_filling(
    ledger: Ledger, lane: LaneId, owner: str, *, compression: Compression, clock: Clock
) -> StateFilling:
    """Take over a lane without a state."""
    taken_over = await ledger.take_over(lane, owner)
    committer = await committer_to(ledger, lane, taken_over, changelog_buffer(lane), compression)
    return StateFilling(lane, committer, clock)
