"""What stored data depends on: the shape of a pipeline, kept in the data directory and compared with the next.

Pure. Above it: the runner. Below it: the spec's graph. What a function does, and the options of sources and sinks, are
the user's to change between two runs; names, kinds, partitions and ends of edges are not, because buffers and marks
are found by them; nor are the windows of a reduce, because records wait in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.spec.graph import Graph
from millstream.spec.models import GroupBy, Vertex
from millstream.spec.values import as_duration


def shape_of(graph: Graph) -> dict[str, Any]:
    """Plain values, to be stored as JSON."""
    return {
        "pipeline": graph.pipeline.name,
        "vertices": {
            vertex.name: {
                "kind": vertex.kind,
                "of": _program_kind(vertex),
                "partitions": vertex.partitions,
                **({"windows": _windows(vertex.group_by)} if vertex.group_by is not None else {}),
            }
            for vertex in graph.vertices
        },
        "edges": {edge.name: {"from": edge.from_, "to": edge.to} for edge in graph.edges},
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes data of one shape useless for another, one sentence each; empty when a run can go on.

    New vertices and edges are no hindrance: they start with nothing. An edge that is gone would leave its records
    behind, and a vertex or partition that is gone its work.
    """
    found = []
    if before["pipeline"] != now["pipeline"]:
        found.append(f"the pipeline was called {before['pipeline']} and is now called {now['pipeline']}")
    for name, old in before["vertices"].items():
        new = now["vertices"].get(name)
        if new is None:
            found.append(f"vertex {name} is gone")
            continue
        if (old["kind"], old["of"]) != (new["kind"], new["of"]):
            found.append(f"vertex {name} was a {_kind_text(old)} and is now a {_kind_text(new)}")
        if old["partitions"] != new["partitions"]:
            found.append(f"vertex {name} had {old['partitions']} partition(s) and now has {new['partitions']}")
        if old.get("windows") != new.get("windows") and "windows" in old and "windows" in new:
            found.append(f"vertex {name} had {old['windows']} windows and now has {new['windows']} windows")
    for name, old in before["edges"].items():
        new = now["edges"].get(name)
        if new is None:
            found.append(f"edge {name} ({old['from']} to {old['to']}) is gone")
        elif new != old:
            found.append(
                f"edge {name} led from {old['from']} to {old['to']} and now leads from {new['from']} to {new['to']}"
            )
    return found


def _windows(group_by: GroupBy) -> str:
    """What decides which window a record is in, for example `fixed 1h`."""
    window = group_by.window
    text = str(window)
    # Windows of fixed length are those of all keys; the others belong to one key each.
    if group_by.keyed and window.kind in ("session", "global"):
        text += " per key"
    if window.global_ is not None and window.global_.accumulate:
        text += " accumulating"
    lateness = f" {as_duration(group_by.allowed_lateness_s)} late" if group_by.allowed_lateness_s else ""
    return text + lateness


def _program_kind(vertex: Vertex) -> str:
    program = vertex.source or vertex.sink
    return program.kind if program is not None else ""


def _kind_text(vertex: Mapping[str, Any]) -> str:
    return f"{vertex['of']} {vertex['kind']}".strip()
