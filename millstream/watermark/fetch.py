"""What a lane learns from its neighbours' OT stores: its input watermark and its end; how full a buffer is. Pure.

Above it: the lanes of the vertex process. Below it: `follow` in `store.py`, which hands in the updates. It reads no
clock and no broker; `news` is set whenever an answer may have changed, for a task that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.record import BufferId, LaneId
from millstream.watermark.store import OtUpdate
from millstream.watermark.timeline import Timeline


class WatermarkFetcher:
    """The input watermark of one lane: the minimum over all upstream lanes that write its buffer."""

    def __init__(self, buffer: BufferId, lanes: Collection[LaneId]) -> None:
        """`lanes`: all lanes of the upstream vertex, whichever process owns them, fixed by the spec; not those joined
        by a back edge, which wait for this one. At least one: a lane that only a back edge feeds has no input
        watermark.
        """
        if not lanes:
            raise ValueError(f"buffer {buffer}: a watermark needs at least one upstream lane")
        self._buffer = buffer
        self._timelines = {lane.key: Timeline() for lane in lanes}
        self.news = asyncio.Event()
        """Set by every update that changes something; cleared by the one lane that waits for it."""

    @property
    def buffer(self) -> BufferId:
        return self._buffer

    def observe(self, update: OtUpdate) -> None:
        """Take an update of the upstream vertex's OT store in; those of other lanes are left alone."""
        timeline = self._timelines.get(update.key)
        if timeline is None:
            return
        entry, state = update.entry, update.outputs.get(self._buffer)
        sequence = state.sequence if state is not None else 0
        if timeline.add(entry.epoch, sequence, entry.watermark_us, idle=entry.idle, ended=entry.ended):
            self.news.set()

    def watermark_at(self, sequence: int) -> int:
        """No record older than this follows frame `sequence` of the buffer, late ones excepted; microseconds.

        `START_OF_TIME_US` until every lane has been heard of. For a reader that has read all that was written, idle and
        ended lanes included, these are the newest entries of all lanes; the same question answers both.
        """
        return min(timeline.watermark_at(sequence) for timeline in self._timelines.values())

    def end_sequence(self) -> int | None:
        """The last sequence the buffer will ever have (0: it stays empty), once all upstream lanes have ended."""
        if not all(timeline.ended for timeline in self._timelines.values()):
            return None
        return max(timeline.head_sequence for timeline in self._timelines.values())

    def head_sequence(self) -> int:
        """The last sequence known to be written to the buffer; 0 when none is."""
        return max(timeline.head_sequence for timeline in self._timelines.values())

    def idle(self) -> bool:
        """All upstream lanes say they have nothing to read."""
        return all(timeline.idle or timeline.ended for timeline in self._timelines.values())

    def forget(self, sequence: int) -> None:
        """The lane will not ask about a sequence below `sequence` again: call it with what is committed."""
        for timeline in self._timelines.values():
            timeline.forget(sequence)

    def watermarks(self, sequence: int) -> Mapping[str, int]:
        """The watermark of each upstream lane at `sequence`: tells people which lane holds the others up."""
        return {key: timeline.watermark_at(sequence) for key, timeline in self._timelines.items()}


@dataclass(frozen=True, slots=True)
class Totals:
    """Records and bytes since the lane's first commit."""

    records: int = 0
    bytes: int = 0


class BufferFill:
    """How much of a buffer waits to be consumed: all that was written minus what the downstream lane is done with.

    Totals only grow, so updates may come twice and late; the fill is then a little out of date, and never negative.
    """

    def __init__(self, buffer: BufferId) -> None:
        self._buffer = buffer
        self._written: dict[str, Totals] = {}
        self._consumed = Totals()
        self.news = asyncio.Event()
        """Set when the fill has changed; cleared by the one writer that waits for room."""
        self.upstream = _Upstream(self)
        """Listens to the OT store of the vertex that writes the buffer."""
        self.downstream = _Downstream(self)
        """Listens to the OT store of the vertex that reads the buffer."""

    @property
    def buffer(self) -> BufferId:
        return self._buffer

    @property
    def records(self) -> int:
        """Records written and not consumed."""
        return max(0, sum(totals.records for totals in self._written.values()) - self._consumed.records)

    @property
    def bytes(self) -> int:
        """Their stored bytes."""
        return max(0, sum(totals.bytes for totals in self._written.values()) - self._consumed.bytes)

    @property
    def written(self) -> Totals:
        """All that was ever written."""
        totals = self._written.values()
        return Totals(sum(lane.records for lane in totals), sum(lane.bytes for lane in totals))

    def wrote(self, lane_key: str, records: int, bytes_: int) -> None:
        """A lane's totals. Own lanes tell theirs at every commit, without the way through the store."""
        known = self._written.get(lane_key, Totals())
        if records > known.records or bytes_ > known.bytes:
            self._written[lane_key] = Totals(max(records, known.records), max(bytes_, known.bytes))
            self.news.set()

    def consumed(self, records: int, bytes_: int) -> None:
        """The downstream lane's totals."""
        known = self._consumed
        if records > known.records or bytes_ > known.bytes:
            self._consumed = Totals(max(records, known.records), max(bytes_, known.bytes))
            self.news.set()


class _Upstream:
    def __init__(self, fill: BufferFill) -> None:
        self._fill = fill

    def observe(self, update: OtUpdate) -> None:
        state = update.outputs.get(self._fill.buffer)
        if state is not None:
            self._fill.wrote(update.key, state.records, state.bytes)


class _Downstream:
    def __init__(self, fill: BufferFill) -> None:
        self._fill = fill

    def observe(self, update: OtUpdate) -> None:
        state = update.inputs.get(self._fill.buffer)
        if state is not None:
            self._fill.consumed(state.records, state.bytes)
