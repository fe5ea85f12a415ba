"""A reduce lane's milestones in its ledger, and the way along them to the position of the mark.

    committed with what depends on them ─► buffer "window" of the lane ─► read at the opening ─► trimmed with the input

Used by lanes that keep their input until its windows are committed. Above it: the reduce lane. Below it: the ledger of
the lane's own vertex. It does not know about windows.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import REPAIR, DamageError
from millstream.frame import Frame, build_frame
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import GivenUp, Ledger
from millstream.record import BufferId, LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.milestones import is_at_or_before
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit


class StoredMilestones:
    """The milestones that are committed and may still be needed. Created by `open_milestones`."""

    def __init__(self, buffer: BufferId, trimmer: Trimmer, stored: Iterable[tuple[int, wal_pb2.Milestone]]) -> None:
        """`stored`: with the stream sequence of each one's frame, or of a later one."""
        self._buffer = buffer
        self._stored = deque(stored)
        self._trimmer = trimmer

    def frame(self, milestone: wal_pb2.Milestone, now_us: int) -> tuple[BufferId, Frame]:
        """The frame that is committed for it."""
        return self._buffer, build_frame([milestone.SerializeToString()], array("q", [now_us]), ingest_time_us=now_us)

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> None:
        """These units were committed, some with milestones; `sequences`: of the last frame in each buffer."""
        for frame in (frame for unit in units for buffer, frame in unit.frames if buffer == self._buffer):
            milestones = map(wal_pb2.Milestone.FromString, frame.values())
            self._stored.extend((sequences[self._buffer], milestone) for milestone in milestones)

    def release(self, kept: Mapping[str, int]) -> None:
        """The input up to these sequences will not be read again. Of the milestones up to there, the last one says what
        was closed by then."""
        while len(self._stored) > 1 and is_at_or_before(self._stored[1][1], kept):
            sequence, _ = self._stored.popleft()
            if sequence < self._stored[0][0]:
                self._trimmer.consumed(self._buffer, sequence)

    def all(self) -> list[wal_pb2.Milestone]:
        """All of them, in order."""
        return [milestone for _, milestone in self._stored]

    def way(self, progress: mark_pb2.ReduceProgress, positions: Mapping[str, int]) -> list[wal_pb2.Milestone]:
        """The milestones from a log that has reached `positions` to the position of the mark, which is the last one."""
        mark = [wal_pb2.InputPosition(edge=done.edge, sequence=done.sequence) for done in progress.inputs]
        return [
            *(milestone for _, milestone in self._stored if not _is_passed(milestone, positions)),
            wal_pb2.Milestone(inputs=mark, closed_us=progress.closed_us),
        ]


async def open_milestones(
    ledger: Ledger, lane: LaneId, trimmer: Trimmer, given_up: Sequence[GivenUp] = ()
) -> StoredMilestones:
    """The milestones of a lane, after it was taken over. `trimmer`: of the same ledger. `given_up`: those that a repair
    has given up."""
    buffer = BufferId(lane.input, lane.partition)
    stored: list[tuple[int, wal_pb2.Milestone]] = []
    # The last one is never trimmed.
    last = await ledger.last_sequence(buffer)
    if last:
        async with ledger.read(buffer, 0, given_up=given_up) as frames:
            async for frame in frames:
                values = decoded(ledger.vertex, buffer, frame).values()
                try:
                    stored.extend((frame.sequence, wal_pb2.Milestone.FromString(value)) for value in values)
                except DecodeError as error:
                    raise DamageError(
                        codes.MILESTONE_UNREADABLE,
                        f"a milestone of lane {lane} at sequence {frame.sequence} cannot be read: {error}. Its log "
                        f"could not be rebuilt from its input. {REPAIR}",
                    ) from error
                if frame.sequence >= last:
                    break
    return StoredMilestones(buffer, trimmer, stored)


class Retracing:
    """A log that is being rebuilt, on its way to the position of the mark."""

    def __init__(self, way: Sequence[wal_pb2.Milestone], stored: Mapping[str, int]) -> None:
        """`way`: at least one. `stored`: the last sequence in the buffer of each edge, at the opening."""
        self._way = deque(way)
        self._stored = stored

    @property
    def gate(self) -> Mapping[str, int]:
        """How far each edge is read before the next milestone. Input that is gone already is not waited for."""
        return {
            position.edge: min(position.sequence, self._stored.get(position.edge, 0))
            for position in self._way[0].inputs
        }

    def passed(self) -> wal_pb2.Milestone:
        """The next milestone, which has been reached."""
        return self._way.popleft()

    @property
    def has_ended(self) -> bool:
        """Whether the mark is reached."""
        return not self._way


def _is_passed(milestone: wal_pb2.Milestone, positions: Mapping[str, int]) -> bool:
    """A log that has reached exactly that position may lack what was done there; repeating it changes nothing."""
    at = {position.edge: position.sequence for position in milestone.inputs}
    return is_at_or_before(milestone, positions) and any(
        sequence > at.get(edge, 0) for edge, sequence in positions.items()
    )
