"""How much progress of a lane counts as little: such progress may be published some tens of milliseconds later. If it
has no output, it may also be committed later.

Above it: `lane`. It knows counts; it does not know what waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.limits import OT_LITTLE_SHARE
from millstream.plan.plan import Plan
from millstream.spec.topology import reachable


@dataclass(frozen=True, slots=True)
class Little:
    """The thresholds for one lane."""

    records: int
    """Progress of at least this many records is not little."""
    size: int
    """The same threshold in bytes."""
    watermark: bool
    """Whether an advance of the watermark alone is little, because no window waits for it."""

    def covers(self, records: int, size: int) -> bool:
        return records < self.records and size < self.size


NOTHING_IS_LITTLE = Little(0, 0, watermark=False)


def little_of(plan: Plan, vertex: str) -> Little:
    """The thresholds for the lanes of a vertex: small shares of every buffer that they read or write."""
    edges = [edge for edge in plan.edges if vertex in (edge.from_, edge.to)]
    limits = [plan.limits_of(edge.to) for edge in edges]
    behind = reachable([edge.to for edge in plan.edges_out[vertex]], [(edge.from_, edge.to) for edge in plan.edges])
    return Little(
        min((each.usable_length // OT_LITTLE_SHARE for each in limits), default=0),
        min((each.usable_bytes // OT_LITTLE_SHARE for each in limits), default=0),
        watermark=not any(plan.vertex(name).definition.has_windows for name in behind),
    )
