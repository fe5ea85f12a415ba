"""How soon a run recovers from a fault. Pure: entries of the OT stores and times are passed in.

The **time to resume** is the time from the fault (from its end, if it lasts) until every lane that the struck process
served has committed again:

- the lane reports more than before: records read or, after a fault of Spark's, results written;
- it published that after the replacement of the struck process was started, because what was in flight before may
  still be committed by others; for a vertex that is the next epoch of the lane;
- lanes that have ended have nothing to resume.

All clocks are the wall clock of this one machine, in microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millstream.record import ALL_INPUTS, LaneId
from millstream.watermark.store import OtUpdate
from millstream.wire.watermark.v1.ot_pb2 import OtEntry


@dataclass(slots=True)
class OpenFault:
    """One fault from which the run has not recovered yet."""

    struck_us: int
    results: bool
    """Only results count, not records that were read."""
    lanes: dict[LaneId, list[int]]
    """Lanes that must recover, and when each has reported progress since the fault."""
    since_us: int | None
    """Progress counts from this time on; None until it is known."""
    newer_epochs: bool
    """Progress counts only under an epoch that is newer than the one at the fault."""
    epochs: Mapping[LaneId, int] = field(default_factory=dict)

    def resumed_us(self) -> int | None:
        """When the last lane recovered; None until all have."""
        if self.since_us is None or self.absent():
            return None
        # Each lane has a commit after it.
        moments = (min(at for at in commits if at > self.since_us) for commits in self.lanes.values())
        return max(moments, default=self.struck_us)

    def absent(self) -> list[LaneId]:
        """Lanes that have not recovered."""
        since_us = self.since_us
        if since_us is None:
            return list(self.lanes)
        return [lane for lane, commits in self.lanes.items() if not any(at > since_us for at in commits)]


class Board:
    """What every lane published last, and the faults from which the run has not recovered."""

    def __init__(self) -> None:
        self._entries: dict[LaneId, OtEntry] = {}
        self._waiting: list[OpenFault] = []

    def observe(self, lane: LaneId, update: OtUpdate) -> None:
        """Record what a lane has published."""
        entry, before = update.entry, self._entries.get(lane)
        if before is not None and entry.epoch < before.epoch:
            return
        self._entries[lane] = entry
        for waiting in self._waiting:
            if lane not in waiting.lanes or (waiting.newer_epochs and entry.epoch <= waiting.epochs.get(lane, 0)):
                continue
            known = before if before is not None else OtEntry()
            count = _results if waiting.results else _records
            if entry.ended or count(entry) > count(known):
                waiting.lanes[lane].append(entry.published_us)

    def wait(
        self,
        lanes: Iterable[LaneId],
        struck_us: int,
        *,
        since_us: int | None,
        newer_epochs: bool = False,
        results: bool = False,
    ) -> OpenFault:
        """A fault has struck the process that serves these lanes. Those that have ended are left out."""
        open_lanes = [lane for lane in lanes if not (lane in self._entries and self._entries[lane].ended)]
        waiting = OpenFault(
            struck_us,
            results,
            {lane: [] for lane in open_lanes},
            since_us,
            newer_epochs,
            {lane: self._entries[lane].epoch for lane in open_lanes if lane in self._entries},
        )
        self._waiting.append(waiting)
        return waiting

    def forget(self, waiting: OpenFault) -> None:
        """Stop waiting for it."""
        self._waiting.remove(waiting)

    def ended(self, lanes: Collection[LaneId]) -> bool:
        """Whether all of these have ended."""
        return all(lane in self._entries and self._entries[lane].ended for lane in lanes)

    def records(self, lanes: Iterable[LaneId]) -> int:
        """Records that these lanes have completed."""
        return sum(_own_records(lane, self._entries[lane]) for lane in lanes if lane in self._entries)


def _records(entry: OtEntry) -> int:
    return sum(state.records for state in entry.inputs)


def _own_records(lane: LaneId, entry: OtEntry) -> int:
    """Without those that were passed on inside a chain, each of which is a record of the lane's own input."""
    # Of a lane that reads all edges into its vertex, those that were passed on have no sequences.
    own = [
        state.records
        for state in entry.inputs
        if state.edge == lane.input or (lane.input == ALL_INPUTS and state.sequence)
    ]
    return sum(own) if own else _records(entry)


def _results(entry: OtEntry) -> int:
    return sum(state.records for state in entry.outputs)
