"""What follows from the pipeline for a vertex before anything runs: routes, and bounds of ledgers and buffers. Pure.

Above it: the assembly. Below it: the graph.
"""

from __future__ import annotations

from millstream.ledger.protocol import LedgerLimits
from millstream.limits import BUFFER_FRAMES_MAX, COMMIT_BYTES_MAX, IDS_BYTES_MAX, LEDGER_SLACK_BYTES
from millstream.spec.graph import Graph
from millstream.spec.lanes import buffers_of, lanes_of
from millstream.spec.models import Edge, Source
from millstream_writer.room import RoomLimits
from millstream_writer.routing import Route, tag_condition

USER_SOURCE_ID_TTL_S = 86_400.0
"""How long the record ids of a user-defined source that may repeat itself are remembered."""


def route(graph: Graph, edge: Edge) -> Route:
    tags = edge.conditions.tags if edge.conditions is not None else None
    return Route(
        edge=edge.name,
        partitions=graph.vertex(edge.to).partitions,
        condition=tag_condition(tags.operator, tags.values) if tags is not None else None,
        discard_when_full=edge.on_full == "discardLatest",
    )


def ledger_limits(graph: Graph, vertex: str) -> LedgerLimits:
    """What the vertex's ledger may hold: the same for every process that opens it."""
    source = graph.vertex(vertex).source
    ttl_s = ids_ttl_s(source) if source is not None else 0.0
    buffers_bytes = sum(
        graph.limits_of(edge.to).buffer_max_bytes * len(buffers_of(graph, edge)) for edge in graph.edges_out[vertex]
    )
    # The bound of a buffer is soft: each lane may overshoot it by what it has in flight. And a frame that holds its
    # lane's mark stays when it is consumed.
    overshoot_bytes = 3 * COMMIT_BYTES_MAX * len(lanes_of(graph, vertex))
    ids_bytes = IDS_BYTES_MAX if ttl_s else 0
    return LedgerLimits(
        frames_per_buffer_max=BUFFER_FRAMES_MAX,
        bytes_max=buffers_bytes + overshoot_bytes + ids_bytes + LEDGER_SLACK_BYTES,
        ids_ttl_s=ttl_s,
    )


def ids_ttl_s(source: Source) -> float:
    """How long record ids are remembered; 0 for a source that gives none."""
    if source.http is not None:
        return source.http.id_ttl_s
    return USER_SOURCE_ID_TTL_S if source.udsource is not None else 0.0


def room_limits(graph: Graph, edge: Edge) -> RoomLimits:
    limits = graph.limits_of(edge.to)
    return RoomLimits(limits.buffer_max_length, limits.buffer_max_bytes, limits.usable_length, limits.usable_bytes)
