"""What is little of a lane's progress: it may be published, and without output committed, some tens of milliseconds
later.

Above it: `lane`. It knows counts; it does not know what waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import OT_LITTLE_SHARE
from millstream.spec.graph import Graph
from millstream.spec.topology import reachable


@dataclass(frozen=True, slots=True)
class Little:
    """For one lane."""

    records: int
    """From so many on it is not little."""
    size: int
    """Bytes, the same."""
    watermark: bool
    """A watermark that moves on is little by itself: no window waits for it."""

    def covers(self, records: int, size: int) -> bool:
        return records < self.records and size < self.size


NOTHING_IS_LITTLE = Little(0, 0, watermark=False)


def little_of(graph: Graph, vertex: str) -> Little:
    """For the lanes of a vertex: little beside each buffer that they read or write."""
    edges = [edge for edge in graph.edges if vertex in (edge.from_, edge.to)]
    limits = [graph.limits_of(edge.to) for edge in edges]
    behind = reachable([edge.to for edge in graph.edges_out[vertex]], [(edge.from_, edge.to) for edge in graph.edges])
    return Little(
        min((each.usable_length // OT_LITTLE_SHARE for each in limits), default=0),
        min((each.usable_bytes // OT_LITTLE_SHARE for each in limits), default=0),
        watermark=not any(graph.vertex(name).definition.has_windows for name in behind),
    )
