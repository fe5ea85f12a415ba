"""Whether a lane has used its target before, according to its mark.

    opening: the target stores the lane's position ─► the mark names the target ─► the first record
    later:   the mark names the target, and the target has no position of the lane ─► refused

Each step is durable before the next one, so a target that the mark names has a position of the lane. If it has none, it
is not the one that the lane has written to: it is on another disk, or was emptied. A kill between the steps leaves a
target that the mark does not name, which is opened as at the first time. Other settings are another target.

Above it: the vertex process, which has the mark. Below it: sinks that can tell whether the target knows the lane.
"""

from __future__ import annotations

from hashlib import blake2b

from millstream.durable import step
from millstream_writer.committer import Committer


class KnownTarget:
    """What the mark of a lane says about the target of one sink."""

    def __init__(self, committer: Committer, vertex: str, kind: str, place: str) -> None:
        """`place`: where the settings of the sink say that the target is."""
        self._committer = committer
        self._vertex = vertex
        self._number = _digest(vertex, kind, place)

    @property
    def is_known(self) -> bool:
        """Whether the target must have a position of the lane."""
        return self._committer.mark.target == self._number

    async def note(self) -> None:
        """Store that it has one, which is durable there. Called before the first record is written, while the lane
        commits nothing. Waits while the ledger cannot store it; raises `FencedError` if the lane has another owner."""
        if not self.is_known:
            with step("sink.note_target", self._vertex):
                await self._committer.note_target(self._number)


def _digest(*names: str) -> int:
    """A number of 64 bits, which is not 0."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest()) or 1
