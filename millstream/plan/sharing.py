"""Which edges of a pipeline carry the same frames, so that one stored copy is enough for all of them. Pure.

    map ─┬─► a        the same records under the same conditions, in the same partitions: stored once
         ├─► b
         └─► c        with other conditions: stored separately

Above it: whatever opens a ledger or checks a pipeline against one. Below it: the plan.
"""

import zlib
from collections import defaultdict
from collections.abc import Mapping

from millstream.plan.plan import Plan
from millstream.spec.models import Edge

_PREFIX = "_"
"""The prefix of a shared copy's name. The name of an edge cannot begin with it."""


def same_frames(plan: Plan, vertex: str) -> Mapping[str, tuple[str, ...]]:
    """The groups of edges in a vertex's ledger that carry the same frames: for each group of two or more, the name of
    its copy in a new ledger, and the names of the edges in file order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for edge in plan.edges_out[vertex]:
        copy = copy_of(plan, edge)
        if copy is not None:
            groups[copy].append(edge.name)
    return {copy: tuple(edges) for copy, edges in groups.items() if len(edges) > 1}


def copy_of(plan: Plan, edge: Edge) -> str | None:
    """The name of the copy that an edge shares with all others that carry the same frames. None for an edge whose
    buffers depend on more than its condition and its reader's mark."""
    in_cycle = any(edge.from_ in group and edge.to in group for group in plan.sccs)
    if edge.kind != "data" or edge.chain or edge.on_full == "discardLatest" or plan.keeps_input(edge.to) or in_cycle:
        return None
    # A chain writes the edges of all its vertices to one ledger, and only those of one vertex carry the same frames.
    name = f"{_PREFIX}{plan.graph.edge(edge.name).from_}-{plan.vertex(edge.to).partitions}"
    tags = edge.conditions.tags if edge.conditions is not None else None
    if tags is None or not tags.values:
        return name
    condition = "\n".join([tags.operator, *sorted(set(tags.values))])
    return f"{name}-{zlib.crc32(condition.encode()):08x}"
