"""Loads the ids of records that a lane has already accepted, from the ledger into memory.

Above it: the assembly, once the lane is taken over. Below it: the ledger and what the lane remembers.
"""

from __future__ import annotations

from millstream.clock import Clock
from millstream.ledger.protocol import Ledger
from millstream.plan.plan import Plan
from millstream.record import LaneId
from millstream_reader.ids import SeenIds
from millstream_vertex.settings import id_bounds, ids_max
from millstream_writer.committer import Committer


async def open_seen_ids(plan: Plan, ledger: Ledger, lane: LaneId, committer: Committer, clock: Clock) -> SeenIds | None:
    """Load the ids that `committer` stores; None for a vertex that remembers no ids."""
    bounds = id_bounds(plan, lane.vertex)
    if bounds is None:
        return None
    committer.ids_ttl_s = bounds.ttl_s
    seen = SeenIds(ttl_s=bounds.ttl_s, ids_max=ids_max(plan, lane.vertex), clock=clock)
    async for stored in ledger.ids(lane):
        seen.restore(stored.digests, stored.age_s)
    return seen
