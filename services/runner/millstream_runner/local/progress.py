"""How far a running pipeline is: what its lanes publish, turned into the numbers people look at. Pure.

Above it: the screen, `status.json`, the drain. Below it: entries of the OT stores and a clock, both handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.record import BufferId, LaneId, ReplicaId
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of, inputs_of, lanes_of, owned_lanes, upstream_lanes
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry

RATE_WINDOW_S = 3.0
"""Rates are means over this long."""


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """One lane, as it last published."""

    lane: str
    """Its key, unique in the vertex."""
    records: int
    """Input records done with since the lane's first commit."""
    waiting: int
    """Records in the lane's buffer; 0 for a source."""
    watermark_us: int | None
    """None before the first promise."""
    idle: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """One vertex, its lanes together."""

    vertex: str
    kind: str
    records: int
    """Input records done with (for a source: records read) since the first commit."""
    records_per_s: float
    written: int
    """Records written to its buffers, each edge counted."""
    waiting: int
    """Records in the buffers it reads."""
    fill: float
    """Of its fullest input buffer, 0 to 1."""
    watermark_us: int | None
    """The lowest of its lanes; None as long as one has promised nothing."""
    watermark_lag_s: float | None
    """How far that is behind the clock; None without a watermark and when all has ended."""
    lanes_ended: int
    lanes: tuple[LaneProgress, ...]
    has_input: bool = True
    """Whether it reads buffers, in which records may wait."""


@dataclass(slots=True)
class _Rate:
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now_s: float, records: int) -> float:
        """The mean rate over the window up to now."""
        self.samples.append((now_s, records))
        while len(self.samples) > 2 and self.samples[1][0] <= now_s - RATE_WINDOW_S:
            self.samples.popleft()
        first_s, first = self.samples[0]
        return (records - first) / (now_s - first_s) if now_s > first_s else 0.0


class PipelineProgress:
    """The newest entry of every lane, and what follows from them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._entries: dict[tuple[str, str], OtEntry] = {}
        self._rates = {vertex.name: _Rate() for vertex in graph.vertices}

    def observe(self, vertex: str, lane_key: str, entry: OtEntry) -> None:
        """Take in what a lane published; the same entry again does no harm."""
        self._entries[vertex, lane_key] = entry

    def mark_of(self, replica: ReplicaId) -> tuple[tuple[int, bool], ...]:
        """A value that changes whenever a lane of this replica gets on."""
        entries = [self._entry(lane) for lane in owned_lanes(self._graph, replica.vertex, replica.number)]
        return tuple((_records(entry), entry.ended) for entry in entries)

    def waiting(self, vertices: Iterable[str]) -> int:
        """Records in the buffers these vertices read."""
        return sum(self._waiting(lane)[0] for vertex in vertices for lane in lanes_of(self._graph, vertex))

    def records(self) -> int:
        """Input records done with by all vertices: changes whenever anything happens."""
        return sum(_records(entry) for entry in self._entries.values())

    def sample(self, *, now_us: int, now_s: float) -> list[VertexProgress]:
        """All vertices in topological order, rates up to now."""
        return [self._sample(name, now_us, now_s) for name in self._graph.order]

    def _sample(self, name: str, now_us: int, now_s: float) -> VertexProgress:
        vertex, limits = self._graph.vertex(name), self._graph.limits_of(name)
        lanes, fill = [], 0.0
        for lane in lanes_of(self._graph, name):
            entry = self._entry(lane)
            records, size = self._waiting(lane)
            fill = max(fill, records / limits.buffer_max_length, size / limits.buffer_max_bytes)
            known = (name, lane.key) in self._entries and entry.watermark_us != START_OF_TIME_US
            lanes.append(
                LaneProgress(
                    lane.key,
                    _records(entry),
                    records,
                    entry.watermark_us if known else None,
                    entry.idle,
                    entry.ended,
                )
            )
        done = sum(lane.records for lane in lanes)
        watermark_us = _lowest(lanes)
        lag_s = None
        if watermark_us is not None and watermark_us < END_OF_TIME_US:
            lag_s = (now_us - watermark_us) / MICROSECONDS
        return VertexProgress(
            vertex=name,
            kind=vertex.kind,
            records=done,
            records_per_s=self._rates[name].add(now_s, done),
            written=self._written_by(name),
            waiting=sum(lane.waiting for lane in lanes),
            fill=fill,
            watermark_us=watermark_us,
            watermark_lag_s=lag_s,
            lanes_ended=sum(lane.ended for lane in lanes),
            lanes=tuple(lanes),
            has_input=vertex.definition.has_input,
        )

    def _entry(self, lane: LaneId) -> OtEntry:
        return self._entries.get((lane.vertex, lane.key), _NOTHING)

    def _waiting(self, lane: LaneId) -> tuple[int, int]:
        """Records and bytes in the buffers a lane reads. The two sides publish apart, so it lags a little."""
        read = {BufferId(state.edge, state.partition): state for state in self._entry(lane).inputs}
        records = size = 0
        for buffer in inputs_of(self._graph, lane):
            done = read.get(buffer, _NOTHING_READ)
            states = [
                state
                for upstream in upstream_lanes(self._graph, buffer)
                for state in self._entry(upstream).outputs
                if BufferId(state.edge, state.partition) == buffer
            ]
            records += max(0, sum(state.records for state in states) - done.records)
            size += max(0, sum(state.bytes for state in states) - done.bytes)
        return records, size

    def _written_by(self, vertex: str) -> int:
        buffers = {buffer for edge in self._graph.edges_out[vertex] for buffer in buffers_of(self._graph, edge)}
        return sum(
            state.records
            for lane in lanes_of(self._graph, vertex)
            for state in self._entry(lane).outputs
            if BufferId(state.edge, state.partition) in buffers
        )


_NOTHING_READ = BufferState()
_NOTHING = OtEntry(watermark_us=START_OF_TIME_US)


def _records(entry: OtEntry) -> int:
    return sum(state.records for state in entry.inputs)


def _lowest(lanes: Iterable[LaneProgress]) -> int | None:
    watermarks = [lane.watermark_us for lane in lanes]
    if not watermarks or None in watermarks:
        return None
    return min(watermark for watermark in watermarks if watermark is not None)


def vertex_from_json(data: Mapping[str, Any]) -> VertexProgress:
    """Inverse of `dataclasses.asdict`, for `status.json`."""
    lanes = tuple(LaneProgress(**lane) for lane in data["lanes"])
    return VertexProgress(**{**data, "lanes": lanes})
