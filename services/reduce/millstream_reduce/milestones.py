"""The moments of a lane's input that must be known to rebuild its log from that input. Pure.

Which window a record is in follows from its time, from the records that came before it, and from the windows that were
closed by then. The last is not in the input. It matters where a record is older than the closed windows: there it
begins a window, or is late, where it would have joined them. Nor does the input say which records of several edges
came first. That matters for a record whose own session has ended: it is late, unless it joins one that is open. And
early results are numbered by how often they were made. So those moments are milestones, and, for the sake of the log
that is rebuilt, one after every so many bytes: what was closed by then need not be kept any longer.

Used by the queue, which writes milestones into its log, and the lane, which commits them and reads them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from millstream.clock import START_OF_TIME_US
from millstream.limits import MIB
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.queued_frames import QueuedFrame, rows_of_frames
from millstream_reduce.values import Rows

BETWEEN_BYTES = 16 * MIB
"""Stored bytes of input between two milestones at most, about, as long as windows close."""


class Milestones:
    """Decides when a lane's queue records one."""

    def __init__(self) -> None:
        self._closed_us = START_OF_TIME_US
        """As in the last milestone."""
        self._bytes = 0
        """Bytes of input since then."""

    def before(
        self,
        positions: Mapping[str, int],
        closed_us: int,
        size: int,
        *,
        depends: bool,
        joined: Sequence[wal_pb2.Joined] = (),
    ) -> wal_pb2.Milestone | None:
        """The lane's position before an append of this many stored bytes; None if it does not matter. `depends`:
        whether the windows of these records depend on what is closed. `joined`: records that joined sessions."""
        self._bytes += size
        moves = closed_us > self._closed_us and (depends or self._bytes >= BETWEEN_BYTES)
        if not moves and not joined:
            return None
        milestone = self._note(positions, closed_us)
        milestone.joined.extend(joined)
        return milestone

    def early(self, positions: Mapping[str, int], closed_us: int, rows_min: int) -> wal_pb2.Milestone:
        """The position at which early results are computed, of windows with this many new rows."""
        milestone = self._note(positions, closed_us)
        milestone.early, milestone.early_rows = True, rows_min
        return milestone

    def _note(self, positions: Mapping[str, int], closed_us: int) -> wal_pb2.Milestone:
        self._closed_us, self._bytes = closed_us, 0
        return wal_pb2.Milestone(
            inputs=[wal_pb2.InputPosition(edge=edge, sequence=number) for edge, number in sorted(positions.items())],
            closed_us=closed_us,
        )


class SessionMembership:
    """Which records had joined open sessions, according to the milestones of a lane."""

    def __init__(self, milestones: Iterable[wal_pb2.Milestone]) -> None:
        self._rows = {(one.edge, one.sequence): list(one.rows) for milestone in milestones for one in milestone.joined}

    def among(self, frames: Sequence[QueuedFrame]) -> Rows:
        """Indexes over all records of these frames."""
        rows = [
            begin + row
            for item, begin, _ in rows_of_frames(frames)
            for row in self._rows.get((item.edge, item.sequence), ())
        ]
        return np.array(rows, np.int64)


def is_at_or_before(milestone: wal_pb2.Milestone, positions: Mapping[str, int]) -> bool:
    """Whether every input has been read at least that far."""
    return all(positions.get(position.edge, 0) >= position.sequence for position in milestone.inputs)
