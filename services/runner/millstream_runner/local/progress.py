"""The progress of a running pipeline: turns what its lanes publish into figures for people. Pure.

Above it: the screen, `status.json`, the drain. Below it: entries of the OT stores and a clock, both passed in.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.record import BufferId, LaneId, ReplicaId
from millstream.spec.graph import Graph
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry

RATE_WINDOW_S = 3.0
"""Rates are means over this time."""
HELD_MAX_S = 5.0
"""How long the entry of a lane is held back if it has read more than the lanes before it report as written. Those
publish a moment later; a killed one does so when it is back."""
_BUSY_SHARE = 0.5
"""A function or target that is called for less of the time than this does not hold up its chain."""


@dataclass(frozen=True, slots=True)
class PublishedProgress:
    """One lane, as last published."""

    lane: str
    """Its key, unique within the vertex."""
    records: int
    """Input records completed since the lane's first commit."""
    waiting: int
    """Records in the lane's buffer; 0 for a source."""
    watermark_us: int | None
    """None before the first watermark."""
    idle: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class VertexProgress:
    """One vertex, with its lanes summed up."""

    vertex: str
    kind: str
    records: int
    """Input records completed (for a source: records read) since the first commit."""
    records_per_s: float
    written: int
    """Records written to its buffers, counted for each edge."""
    waiting: int
    """Records in the buffers that it reads."""
    fill: float
    """Fill level of its fullest input buffer, 0 to 1."""
    watermark_us: int | None
    """The lowest of its lanes; None until all of them have one."""
    watermark_lag_s: float | None
    """How far the watermark is behind the clock; None without a watermark and when all lanes have ended."""
    lanes_ended: int
    lanes: tuple[PublishedProgress, ...]
    has_input: bool = True
    """Whether it reads buffers, in which records may wait."""
    has_output: bool = True
    """Whether it writes buffers."""
    published: bool = True
    """Whether a lane has published anything; until then there are no figures."""
    takes_dead_letters: bool = False
    """Whether it reads nothing but dead letters."""
    holds_up: float = 0.0
    """In a chain: the share of the time in which it does not read on because of this vertex; 0 if another vertex of the
    chain takes longer."""


@dataclass(slots=True)
class _Rate:
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now_s: float, records: int) -> float:
        """Add a value; returns the mean rate over the window up to now."""
        self.samples.append((now_s, records))
        while len(self.samples) > 2 and self.samples[1][0] <= now_s - RATE_WINDOW_S:
            self.samples.popleft()
        first_s, first = self.samples[0]
        return (records - first) / (now_s - first_s) if now_s > first_s else 0.0


class PipelineProgress:
    """The newest entry of every lane, and what follows from them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # Asked for several times a second during the whole run, and never changes.
        self._definitions = {vertex.name: vertex.definition for vertex in graph.vertices}
        self._limits = {vertex: graph.limits_of(vertex) for vertex in graph.order}
        self._lanes = {vertex: graph.lanes_of(vertex) for vertex in graph.order}
        self._inputs = {lane: graph.inputs_of(lane) for lane in graph.all_lanes()}
        # An edge inside a chain has counts, and no buffers.
        self._writing = {
            buffer: graph.upstream_lanes(buffer)
            for edge in graph.edges
            for buffer in (BufferId(edge.name, number) for number in range(graph.vertex(edge.to).partitions))
        }
        self._entries: dict[tuple[str, str], OtEntry] = {}
        """The last published entries."""
        self._parts: defaultdict[tuple[str, str], dict[str, OtEntry]] = defaultdict(dict)
        """For lanes of vertices that follow in a chain: the parts of the entries of the lanes that they run in."""
        self._moment: dict[tuple[str, str], OtEntry] = {}
        """Those of them that are consistent: no lane has read what was not written."""
        self._held_since_s: dict[tuple[str, str], float] = {}
        self._rates = {vertex.name: _Rate() for vertex in graph.vertices}
        self._held_up = {chain: _Rate() for chain in graph.chains}
        """Microseconds a second in which each chain does not read on."""
        self._busy = {vertex: _Rate() for chain in graph.chains for vertex in chain}
        """Microseconds a second of calls of each vertex in a chain."""

    def observe(self, vertex: str, lane_key: str, entry: OtEntry) -> None:
        """Record what a lane published; repeating the same entry has no effect."""
        chain = self._graph.chain(vertex)
        if len(chain) == 1:
            self._entries[vertex, lane_key] = entry
            return
        partition = int(lane_key.rpartition(".")[2])
        for member in chain:
            edge = self._graph.chained_into(member)
            if edge is None:
                self._entries[member, lane_key] = self._part_of(member, None, entry)
                continue
            # A chain that begins with a join has several lanes of each partition.
            key = LaneId(member, edge.name, partition).key
            parts = self._parts[member, key]
            parts[lane_key] = self._part_of(member, edge.name, entry)
            lanes = sum(lane.partition == partition for lane in self._lanes[vertex])
            self._entries[member, key] = _joined(list(parts.values()), lanes)

    def _part_of(self, member: str, edge: str | None, entry: OtEntry) -> OtEntry:
        """What the entry of a chain's lane says about one of its vertices. `edge`: the edge that leads to it; None for
        the first vertex, which has everything that no other has."""
        inside = {one.name for one in self._graph.edges if one.chain}
        reads = [one for one in entry.inputs if (one.edge == edge if edge is not None else one.edge not in inside)]
        writes = {one.name for one in self._graph.edges_out[member]}
        part = OtEntry()
        part.CopyFrom(entry)
        del part.inputs[:], part.outputs[:]
        part.inputs.extend(reads)
        part.outputs.extend(one for one in entry.outputs if one.edge in writes)
        return part

    def mark_of(self, replica: ReplicaId) -> tuple[tuple[int, bool], ...]:
        """A value that changes whenever a lane of this replica advances."""
        entries = [_entry(lane, self._entries) for lane in self._graph.owned_lanes(replica.vertex, replica.number)]
        return tuple((_records(entry), entry.ended) for entry in entries)

    def waiting(self, vertices: Iterable[str]) -> int:
        """Records in the buffers that these vertices read."""
        lanes = (lane for vertex in vertices for lane in self._lanes[vertex])
        return sum(self._waiting(lane, self._entries)[0] for lane in lanes)

    def written(self, edge: str) -> int:
        """Records written to an edge."""
        return sum(
            state.records
            for lane in self._lanes[self._graph.edge(edge).from_]
            for state in _entry(lane, self._entries).outputs
            if state.edge == edge
        )

    def sample(self, *, now_us: int, now_s: float) -> list[VertexProgress]:
        """All vertices in topological order, as of one moment, with rates up to now."""
        for name in self._graph.order:
            for lane in self._lanes[name]:
                self._take(lane, now_s)
        holding_up = self._holding_up(now_s)
        return [self._sample(name, now_us, now_s, holding_up.get(name, 0.0)) for name in self._graph.order]

    def _holding_up(self, now_s: float) -> dict[str, float]:
        """The vertices that hold up their chains, with the share of the time. See `VertexProgress.holds_up`."""
        found: dict[str, float] = {}
        for chain, held_up_us in self._held_up.items():
            entries = [_entry(lane, self._entries) for lane in self._lanes[chain[0]]]
            held_up = held_up_us.add(now_s, sum(entry.held_up_us for entry in entries))
            busy = {
                vertex: self._busy[vertex].add(
                    now_s, sum(one.us for entry in entries for one in entry.busy if one.vertex == vertex)
                )
                for vertex in chain
            }
            longest = max(busy, key=busy.__getitem__)
            # Otherwise the chain waits for its commits.
            if busy[longest] >= _BUSY_SHARE * MICROSECONDS * len(entries):
                found[longest] = min(1.0, max(0.0, held_up / MICROSECONDS / len(entries)))
        return found

    def _take(self, lane: LaneId, now_s: float) -> None:
        """Advance a lane to what it published last, if that is consistent with what the lanes before it had written by
        then.

        Every lane publishes separately, so one may be known to have read what its writer has not published yet. Its
        previous entry is just as true, for an earlier moment.
        """
        key = (lane.vertex, lane.key)
        entry = self._entries.get(key)
        if entry is None:
            return
        reads = {buffer for buffer in self._inputs[lane] if buffer.edge not in self._graph.back_edges}
        if all(self._is_written(state) for state in entry.inputs if BufferId(state.edge, state.partition) in reads):
            self._held_since_s.pop(key, None)
        elif now_s - self._held_since_s.setdefault(key, now_s) < HELD_MAX_S:
            return
        self._moment[key] = entry

    def _is_written(self, read: BufferState) -> bool:
        writers = self._writers(BufferId(read.edge, read.partition), self._moment)
        return read.records <= sum(state.records for state in writers)

    def _sample(self, name: str, now_us: int, now_s: float, holds_up: float) -> VertexProgress:
        definition, limits = self._definitions[name], self._limits[name]
        lanes, fill = [], 0.0
        for lane in self._lanes[name]:
            entry = _entry(lane, self._moment)
            records, size = self._waiting(lane, self._moment)
            fill = max(fill, records / limits.buffer_max_length, size / limits.buffer_max_bytes)
            known = (name, lane.key) in self._moment and entry.watermark_us != START_OF_TIME_US
            lanes.append(
                PublishedProgress(
                    lane.key,
                    _records(entry),
                    records,
                    entry.watermark_us if known else None,
                    entry.idle,
                    entry.ended,
                )
            )
        done = sum(lane.records for lane in lanes)
        watermark_us = lowest([lane.watermark_us for lane in lanes])
        lag_s = None
        if watermark_us is not None and watermark_us < END_OF_TIME_US:
            lag_s = (now_us - watermark_us) / MICROSECONDS
        into = self._graph.edges_in.get(name, ())
        return VertexProgress(
            vertex=name,
            kind=definition.name,
            records=done,
            records_per_s=self._rates[name].add(now_s, done),
            written=self._written_by(name),
            waiting=sum(lane.waiting for lane in lanes),
            fill=fill,
            watermark_us=watermark_us,
            watermark_lag_s=lag_s,
            lanes_ended=sum(lane.ended for lane in lanes),
            lanes=tuple(lanes),
            has_input=definition.has_input,
            has_output=definition.has_output,
            published=any((name, lane.key) in self._moment for lane in self._lanes[name]),
            takes_dead_letters=bool(into) and all(edge.kind == "deadLetter" for edge in into),
            holds_up=holds_up,
        )

    def _waiting(self, lane: LaneId, entries: _Entries) -> tuple[int, int]:
        """Records and bytes in the buffers that a lane reads. The two sides publish separately, so it lags a little."""
        read = {BufferId(state.edge, state.partition): state for state in _entry(lane, entries).inputs}
        records = size = 0
        for buffer in self._inputs[lane]:
            done = read.get(buffer, _NOTHING_READ)
            states = self._writers(buffer, entries)
            records += max(0, sum(state.records for state in states) - done.records)
            size += max(0, sum(state.bytes for state in states) - done.bytes)
        return records, size

    def _writers(self, buffer: BufferId, entries: _Entries) -> list[BufferState]:
        """What each lane that writes to a buffer has written to it."""
        return [
            state
            for upstream in self._writing[buffer]
            for state in _entry(upstream, entries).outputs
            if BufferId(state.edge, state.partition) == buffer
        ]

    def _written_by(self, vertex: str) -> int:
        return sum(
            state.records
            for lane in self._lanes[vertex]
            for state in _entry(lane, self._moment).outputs
            if BufferId(state.edge, state.partition) in self._writing
        )


_Entries = Mapping[tuple[str, str], OtEntry]
_NOTHING_READ = BufferState()
_NOTHING = OtEntry(watermark_us=START_OF_TIME_US)


def _entry(lane: LaneId, entries: _Entries) -> OtEntry:
    return entries.get((lane.vertex, lane.key), _NOTHING)


def _joined(parts: Sequence[OtEntry], lanes: int) -> OtEntry:
    """One entry for what so many lanes have published."""
    if len(parts) == lanes == 1:
        return parts[0]
    whole = len(parts) == lanes
    joined = OtEntry(
        epoch=max(part.epoch for part in parts),
        watermark_us=min(part.watermark_us for part in parts) if whole else START_OF_TIME_US,
        idle=whole and all(part.idle for part in parts),
        ended=whole and all(part.ended for part in parts),
        published_us=max(part.published_us for part in parts),
    )
    for states, given in (
        (joined.inputs, [state for part in parts for state in part.inputs]),
        (joined.outputs, [state for part in parts for state in part.outputs]),
    ):
        for buffer, of_one in groupby(sorted(given, key=_place), key=_place):
            sequences, records, sizes = zip(*((one.sequence, one.records, one.bytes) for one in of_one), strict=True)
            edge, partition = buffer
            states.add(edge=edge, partition=partition, sequence=max(sequences), records=sum(records), bytes=sum(sizes))
    return joined


def _place(state: BufferState) -> tuple[str, int]:
    return state.edge, state.partition


def _records(entry: OtEntry) -> int:
    return sum(state.records for state in entry.inputs)


def lowest(watermarks: Sequence[int | None]) -> int | None:
    """The lowest watermark; None until all are known."""
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None


def vertex_from_json(data: Mapping[str, Any]) -> VertexProgress:
    """Inverse of `dataclasses.asdict`, for `status.json`."""
    return VertexProgress(**{**data, "lanes": tuple(PublishedProgress(**lane) for lane in data["lanes"])})
