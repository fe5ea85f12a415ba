"""Derives a vertex's settings from the pipeline before anything runs: routes, bounds of ledgers and buffers, what
counts as little progress. Pure.

Above it: the assembly. Below it: the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.clock import MICROSECONDS, Clock
from millstream.ledger.protocol import LedgerLimits
from millstream.ledger.sharing import Sharing
from millstream.limits import (
    BUFFER_FRAMES_MAX,
    COMMIT_BYTES_MAX,
    FRAME_RECORDS_MAX,
    ID_STORED_BYTES,
    LEDGER_MARKS_BYTES,
    LEDGER_SLACK_BYTES,
    LOG_SEGMENT_BYTES,
    LOG_SEGMENT_BYTES_MIN,
    OT_LITTLE_SHARE,
)
from millstream.plan.plan import Plan
from millstream.spec.connectors import IdBounds
from millstream.spec.graph import Graph, Network
from millstream.spec.models import Edge, Pipeline
from millstream.spec.topology import reachable
from millstream.watermark.future import FutureBound
from millstream.watermark.source import IdlePolicy, SourceWatermark
from millstream_vertex.pacing import Little
from millstream_writer.backpressure import BufferLimits
from millstream_writer.committer import Member
from millstream_writer.routing import FrameLimits, Route, tag_condition

_PIECES = 4
"""A writer fills the usable part of a buffer in at least this many pieces. With the default `bufferUsageLimit`, one
writer then never exceeds `bufferMaxLength`."""
_KEPT_SEGMENTS = 4
"""If input is kept: the minimum number of segments of a lane's log whose input fits in its buffers."""
_LOGGED_FRAME_BYTES = 64
"""Minimum size of a one-record frame in a log; as a separate entry, it takes ten times as much."""


def route(network: Network, edge: Edge) -> Route:
    limits, reader = network.limits_of(edge.to), network.vertex(edge.to)
    tags = edge.conditions.tags if edge.conditions is not None else None
    return Route(
        edge=edge.name,
        partitions=reader.partitions,
        condition=tag_condition(tags.operator, tags.values) if tags is not None else None,
        discard_when_full=edge.on_full == "discardLatest",
        keeps=network.keeps_input(edge.to),
        piece=FrameLimits(max(1, limits.usable_length // _PIECES), max(1, limits.usable_bytes // _PIECES)),
        takes_arrow=reader.definition.takes_arrow(reader.settings),
        is_table=edge.name in network.tables,
    )


def members_of(graph: Graph, vertex: str) -> Sequence[Member]:
    """The vertices that follow a vertex in its chain, for the marks of its lanes."""
    found = []
    for name in graph.chain(vertex)[1:]:
        edge = graph.chained_into(name)
        assert edge is not None, "it follows in a chain"
        found.append(Member(name, edge.name, frozenset(one.name for one in graph.edges_out[name] if not one.chain)))
    return found


def ledger_limits(plan: Plan, vertex: str) -> LedgerLimits:
    """The limits of the vertex's ledger, which are the same for every process that opens it, and for all vertices that
    are stored there."""
    first, *others = (_own_limits(plan, one) for one in plan.stored_with(vertex))
    for other in others:
        first = LedgerLimits(
            frames_per_buffer_max=max(first.frames_per_buffer_max, other.frames_per_buffer_max),
            bytes_max=first.bytes_max + other.bytes_max,
            ids_ttl_s=max(first.ids_ttl_s, other.ids_ttl_s),
            sharing=Sharing({**first.sharing.stores, **other.sharing.stores}),
        )
    return first


def _own_limits(plan: Plan, vertex: str) -> LedgerLimits:
    """What one of the vertices that are stored in a ledger needs there."""
    ids = id_bounds(plan, vertex)
    buffers_bytes = sum(
        plan.limits_of(edge.to).buffer_max_bytes * len(plan.buffers_of(edge)) for edge in plan.edges_out[vertex]
    )
    lanes = len(plan.lanes_of(vertex))
    frames = [_frames_max(plan, edge.to) for edge in plan.edges_out[vertex]]
    if plan.keeps_input(vertex):
        # Each milestone has its own frame, and follows a frame of some input, which is kept as well.
        frames.append(_frames_max(plan, vertex) * len(plan.edges_in[vertex]))
    step = plan.vertex(vertex)
    kept_bytes = step.definition.kept_bytes(step.settings) * lanes
    if kept_bytes:
        # Two cycles of a changelog. The same for all stores, because less would cut what another one has written.
        frames.append(4 * BUFFER_FRAMES_MAX)
    # The bound of a buffer is soft: each lane may exceed it by what it has in flight. In addition, a frame that holds
    # its lane's mark stays after it is consumed.
    writes = bool(plan.edges_out[vertex] or kept_bytes)
    overshoot_bytes = (3 * COMMIT_BYTES_MAX * lanes + LEDGER_SLACK_BYTES) if writes else 0
    ids_bytes = ids_max(plan, vertex) * ID_STORED_BYTES * lanes
    return LedgerLimits(
        frames_per_buffer_max=max(frames, default=BUFFER_FRAMES_MAX),
        bytes_max=buffers_bytes + kept_bytes + overshoot_bytes + ids_bytes + LEDGER_MARKS_BYTES * (1 + lanes),
        ids_ttl_s=ids.ttl_s if ids is not None else 0.0,
        sharing=Sharing.of(plan.same_frames(vertex)),
    )


def ids_max(plan: Plan, vertex: str) -> int:
    """The number of record ids that each lane of a vertex may remember; 0 for a vertex without `id_bounds`."""
    ids = id_bounds(plan, vertex)
    return max(FRAME_RECORDS_MAX, ids.ids_max // len(plan.lanes_of(vertex))) if ids is not None else 0


def id_bounds(network: Network, vertex: str) -> IdBounds | None:
    """Bounds on the ids that the lanes of a vertex remember; None if they remember none."""
    step = network.vertex(vertex)
    return step.definition.id_bounds(step.settings)


def source_watermark(pipeline: Pipeline, restored_us: int) -> SourceWatermark:
    """The watermark of a source's lane that had reached `restored_us`."""
    spec = pipeline.spec.watermark
    idle = None
    if spec.idle_source is not None:
        idle = IdlePolicy(
            threshold_s=spec.idle_source.threshold_s,
            increment_by_s=spec.idle_source.increment_by_s,
            step_interval_s=spec.idle_source.step_interval_s,
            init_source_delay_s=spec.idle_source.init_source_delay_s,
        )
    return SourceWatermark(max_delay_us=round(spec.max_delay_s * MICROSECONDS), idle=idle, restored_us=restored_us)


def future_bound(graph: Graph, vertex: str, clock: Clock, where: str) -> FutureBound | None:
    """The bound of event times for a lane of a source; None if there is no bound, and for other vertices."""
    max_s = graph.max_future_s(vertex)
    return FutureBound(clock, max_s, graph.on_future(vertex), where=where) if max_s is not None else None


def buffer_limits(plan: Plan, edge: Edge) -> BufferLimits:
    limits = plan.limits_of(edge.to)
    return BufferLimits(
        limits.buffer_max_length,
        limits.buffer_max_bytes,
        limits.usable_length,
        limits.usable_bytes,
        # Partitions of one edge have the same writers.
        writers=len(plan.lanes_of(edge.from_)),
    )


def little_of(plan: Plan, vertex: str) -> Little:
    """The thresholds for the lanes of a vertex: small shares of every buffer that they read or write."""
    edges = [edge for edge in plan.edges if vertex in (edge.from_, edge.to)]
    limits = [plan.limits_of(edge.to) for edge in edges]
    downstream = reachable([edge.to for edge in plan.edges_out[vertex]], [(edge.from_, edge.to) for edge in plan.edges])
    return Little(
        min((each.usable_length // OT_LITTLE_SHARE for each in limits), default=0),
        min((each.usable_bytes // OT_LITTLE_SHARE for each in limits), default=0),
        watermark=not any(plan.vertex(name).definition.has_windows for name in downstream),
    )


def log_segment_bytes(network: Network, vertex: str) -> int:
    """Maximum size of a segment of a lane's log. Kept input is released by whole segments."""
    if not network.keeps_input(vertex):
        return LOG_SEGMENT_BYTES
    fitting = min(network.limits_of(vertex).buffer_max_bytes, _frames_max(network, vertex) * _LOGGED_FRAME_BYTES)
    return min(LOG_SEGMENT_BYTES, max(LOG_SEGMENT_BYTES_MIN, fitting // _KEPT_SEGMENTS))


def _frames_max(network: Network, vertex: str) -> int:
    """The server's bound on frames in one of a vertex's buffers."""
    return max(BUFFER_FRAMES_MAX, network.limits_of(vertex).buffer_max_length)
