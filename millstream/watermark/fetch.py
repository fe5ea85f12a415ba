"""What a lane learns from its neighbours' OT stores: its input watermark, the end of its input, and how full a buffer
is. Pure.

Above it: the lanes of the vertex process. Below it: `follow` in `store.py`, which passes in the updates. It reads no
clock and no broker. It sets `news` whenever an answer may have changed, for a task that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from millstream.record import BufferId, LaneId
from millstream.watermark.store import OtUpdate
from millstream.watermark.timeline import Timeline


class WatermarkFetcher:
    """The input watermark of one lane: the minimum over all upstream lanes that write its buffer."""

    def __init__(self, buffer: BufferId, lanes: Collection[LaneId]) -> None:
        """`lanes`: all lanes of the upstream vertex, whichever process owns them, as fixed by the spec. Lanes that are
        joined by a back edge are excluded, because they wait for this one. There must be at least one: a lane that only
        a back edge feeds has no input watermark.
        """
        if not lanes:
            raise ValueError(f"buffer {buffer}: a watermark needs at least one upstream lane")
        self.buffer = buffer
        self._timelines = {lane.key: Timeline() for lane in lanes}
        self.news = asyncio.Event()
        """Set by every update that changes something; cleared by the only lane that waits for it."""

    def observe(self, update: OtUpdate) -> None:
        """Process an update of the upstream vertex's OT store; updates of other lanes are ignored."""
        timeline = self._timelines.get(update.key)
        if timeline is None:
            return
        entry, state = update.entry, update.outputs.get(self.buffer)
        sequence = state.sequence if state is not None else 0
        if timeline.add(entry.epoch, sequence, entry.watermark_us, idle=entry.idle, ended=entry.ended):
            self.news.set()

    def watermark_at(self, sequence: int) -> int:
        """No record older than this follows frame `sequence` of the buffer, except late ones; microseconds.

        `START_OF_TIME_US` until every lane has published something. For a reader that has read everything, the answer
        comes from the newest entries of all lanes, including idle and ended ones.
        """
        return min(timeline.watermark_at(sequence) for timeline in self._timelines.values())

    def end_sequence(self) -> int | None:
        """The last sequence the buffer will ever have (0: it stays empty), once all upstream lanes have ended."""
        if not all(timeline.ended for timeline in self._timelines.values()):
            return None
        return max(timeline.head_sequence for timeline in self._timelines.values())

    def head_sequence(self) -> int:
        """The last sequence known to be written to the buffer; 0 if there is none."""
        return max(timeline.head_sequence for timeline in self._timelines.values())

    def idle(self) -> bool:
        """Whether all upstream lanes report that they have nothing to read."""
        return all(timeline.idle or timeline.ended for timeline in self._timelines.values())

    def forget(self, sequence: int) -> None:
        """Forget everything below `sequence`, which the caller will not ask about again. Call it with the committed
        sequence."""
        for timeline in self._timelines.values():
            timeline.forget(sequence)

    def watermarks(self, sequence: int) -> Mapping[str, int]:
        """The watermark of each upstream lane at `sequence`: shows users which lane holds up the others."""
        return {key: timeline.watermark_at(sequence) for key, timeline in self._timelines.items()}


@dataclass(frozen=True, slots=True)
class Totals:
    """Records and bytes since the lane's first commit."""

    records: int = 0
    bytes: int = 0


class BufferFill:
    """How much of a buffer waits to be consumed: everything that was written minus what the downstream lane has
    processed.

    Totals only grow, so updates may arrive twice or late. The fill is then slightly out of date, but never negative.
    """

    def __init__(self, buffer: BufferId) -> None:
        self.buffer = buffer
        self._written_by: dict[str, Totals] = {}
        self.written = Totals()
        """Totals of everything that was ever written."""
        self._consumed = Totals()
        self.news = asyncio.Event()
        """Set when the fill has changed; cleared by the only writer that waits for space."""
        self.upstream = _Side(self._on_writer)
        """Listens to the OT store of the vertex that writes the buffer."""
        self.downstream = _Side(self._on_reader)
        """Listens to the OT store of the vertex that reads the buffer."""

    @property
    def records(self) -> int:
        """Records that were written and not yet consumed."""
        return max(0, self.written.records - self._consumed.records)

    @property
    def bytes(self) -> int:
        """Stored bytes of the records that were written and not yet consumed."""
        return max(0, self.written.bytes - self._consumed.bytes)

    def wrote(self, lane_key: str, records: int, bytes_: int) -> None:
        """Update the totals of a lane that writes the buffer. Lanes of this process call it directly, at every
        commit."""
        known = self._written_by.get(lane_key, Totals())
        if records > known.records or bytes_ > known.bytes:
            newest = Totals(max(records, known.records), max(bytes_, known.bytes))
            self._written_by[lane_key] = newest
            every = self.written
            self.written = Totals(
                every.records + newest.records - known.records, every.bytes + newest.bytes - known.bytes
            )
            self.news.set()

    def consumed(self, records: int, bytes_: int) -> None:
        """Update the totals of the downstream lane."""
        known = self._consumed
        if records > known.records or bytes_ > known.bytes:
            self._consumed = Totals(max(records, known.records), max(bytes_, known.bytes))
            self.news.set()

    def _on_writer(self, update: OtUpdate) -> None:
        if (state := update.outputs.get(self.buffer)) is not None:
            self.wrote(update.key, state.records, state.bytes)

    def _on_reader(self, update: OtUpdate) -> None:
        if (state := update.inputs.get(self.buffer)) is not None:
            self.consumed(state.records, state.bytes)


class _Side:
    """One side of a buffer, as a listener to an OT store."""

    def __init__(self, observe: Callable[[OtUpdate], None]) -> None:
        self.observe = observe
