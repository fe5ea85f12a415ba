"""What a lane learns from its neighbours' OT stores: its input watermark, the end of its input, and how full a buffer
is. Pure.

Above it: the lanes of the vertex process. Below it: `follow` in `store.py`, which passes in the updates. It reads no
clock and no broker. A `BufferFill` sets `news` whenever an answer may have changed, for a task that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
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

    def add(self, update: OtUpdate) -> bool:
        """Process an update of the upstream vertex's OT store; updates of other lanes are ignored. Returns whether an
        answer may have changed."""
        timeline = self._timelines.get(update.key)
        if timeline is None:
            return False
        entry, state = update.entry, update.outputs.get(self.buffer)
        sequence = state.sequence if state is not None else 0
        return timeline.add(entry.epoch, sequence, entry.watermark_us, ended=entry.ended)

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

    def forget(self, sequence: int) -> None:
        """Forget everything below `sequence`, which the caller will not ask about again. Call it with the committed
        sequence."""
        for timeline in self._timelines.values():
            timeline.forget(sequence)


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

    def on_writer(self, update: OtUpdate) -> None:
        """A listener for the OT store of the vertex that writes the buffer."""
        if (state := update.outputs.get(self.buffer)) is not None:
            self.wrote(update.key, state.records, state.bytes)

    def on_reader(self, update: OtUpdate) -> None:
        """A listener for the OT store of the vertex that reads the buffer."""
        if (state := update.inputs.get(self.buffer)) is not None:
            self.consumed(state.records, state.bytes)
