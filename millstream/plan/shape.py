"""The shape of a pipeline, on which stored data depends: kept in the data directory, compared by the next run.

Pure. Above it: `diff`, and the runner. Below it: the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from millstream import codes
from millstream.errors import DamageError
from millstream.plan.plan import Plan, plan_of
from millstream.spec.buffers import DEFAULT
from millstream.spec.graph import Graph, with_edges
from millstream.spec.loading import LoadedPipeline
from millstream.spec.models import Edge, GroupBy, Vertex
from millstream.spec.sources import Source
from millstream.spec.values import as_duration

_KEYS = "one to one"
"""The texts that `millstream.keys` gives to keys. Earlier versions wrote nothing."""


def shape_of(plan: Plan) -> dict[str, Any]:
    """The shape as plain values, to be stored as JSON."""
    graph = plan.graph
    return {
        "pipeline": graph.pipeline.name,
        "vertices": {
            vertex.name: {
                "kind": vertex.definition.stored_as or vertex.kind,
                "of": _end_of(vertex),
                "partitions": vertex.partitions,
                **({"windows": _windows(vertex.group_by)} if vertex.group_by is not None else {}),
                **({"state": state} if (state := vertex.definition.remembers(vertex.settings)) else {}),
                **({"ledger": plan.ledgers[vertex.name]} if vertex.name in plan.ledgers else {}),
                **({"keys": _KEYS} if _has_byte_keys(vertex) and vertex.name not in plan.former_keys else {}),
            }
            for vertex in graph.vertices
        },
        "edges": {edge.name: {"from": edge.from_, "to": edge.to, **_place(plan, edge)} for edge in graph.edges},
        **({"ledger": technology} if (technology := graph.pipeline.spec.buffer_technology) != DEFAULT else {}),
    }


def as_stored(loaded: LoadedPipeline, before: Mapping[str, Any]) -> tuple[LoadedPipeline, Sequence[str]]:
    """The pipeline with each vertex in the ledger in which it is stored, with the texts of keys that its stored data
    began with, and with the buffers of the stored data unless the file says otherwise. `before`: the stored shape.

    Returns also the edges that keep a buffer but would be chained with new data. Raises `DamageError` if `before` is
    not a shape.
    """
    pipeline = loaded.pipeline
    with readable():
        if pipeline.spec.chain is None:
            pipeline = with_edges(pipeline, [_as_stored(edge, before) for edge in pipeline.spec.edges])
        graph = Graph.of(pipeline)
        stored = {
            vertex: _stored_with(before, vertex) for vertex in plan_of(graph).order if vertex in before["vertices"]
        }
        former_keys = [vertex.name for vertex in pipeline.spec.vertices if _has_former_keys(vertex, before)]
        ledgers = {vertex: ledger for vertex, ledger in stored.items() if ledger != vertex}
    kept = [edge.name for edge in loaded.graph.edges if edge.chain and not graph.edge(edge.name).chain]
    return replace(loaded, plan=plan_of(graph, ledgers, former_keys)), kept


def with_former_keys(loaded: LoadedPipeline, before: Mapping[str, Any]) -> LoadedPipeline:
    """The pipeline with the texts of keys that a stored shape has, and nothing else of it."""
    with readable():
        former = [one.name for one in loaded.pipeline.spec.vertices if _has_former_keys(one, before)]
    return replace(loaded, plan=plan_of(loaded.graph, former_keys=former)) if former else loaded


def _has_byte_keys(vertex: Vertex) -> bool:
    return any(isinstance(one.end, Source) and one.end.connector.keys_are_bytes for one in vertex.ends)


def _end_of(vertex: Vertex) -> str:
    """The connector of a source or sink; empty for other vertices."""
    return next((placed.end.kind for placed in vertex.ends), "")


def _has_former_keys(vertex: Vertex, before: Mapping[str, Any]) -> bool:
    """Whether the stored data of a source began with the texts that earlier versions gave to keys."""
    old = before["vertices"].get(vertex.name)
    if old is None or not _has_byte_keys(vertex):
        return False
    return bool(old["of"] == _end_of(vertex) and old.get("keys") != _KEYS)


def former_keys_text(vertex: str) -> str:
    """What it means that a source has the keys of earlier versions."""
    return (
        f"the keys of {vertex} that are not UTF-8 become their hexadecimal digits, as in the stored data, so two "
        "different keys may become one; a new data directory (--fresh, or a source of another name) keeps their bytes"
    )


def _as_stored(edge: Edge, before: Mapping[str, Any]) -> Edge:
    old = before["edges"].get(edge.name)
    was_chained = old is not None and "chained" in old
    # What is stored of the vertex is in another ledger than that of the vertex before it.
    keeps_buffer = edge.chain is None and edge.to in before["vertices"] and not was_chained
    return edge.model_copy(update={"chain": False}) if keeps_buffer else edge


def _stored_with(before: Mapping[str, Any], vertex: str) -> str:
    """The vertex in whose ledger a vertex of a stored shape is."""
    head = head_of(before, vertex)
    ledger: str = before["vertices"][head].get("ledger", head)
    return ledger


@contextmanager
def readable() -> Iterator[None]:
    """Reports stored plain values that are not a shape."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            codes.SHAPE_UNREADABLE,
            f"the shape of the stored data (shape.json) cannot be read ({error!r}): restore that file, or start the "
            "pipeline over with --fresh",
        ) from error


def successor(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The shape to keep after a change; it remembers the names that are used up."""
    gone = {
        kind: sorted({*before.get("gone", {}).get(kind, ()), *(name for name in before[kind] if name not in now[kind])})
        for kind in ("vertices", "edges")
    }
    return {**now, "gone": gone} if any(gone.values()) else dict(now)


def _windows(group_by: GroupBy) -> str:
    """What decides which window a record belongs to, for example `fixed 1h`."""
    window = group_by.window
    text = str(window)
    # Windows of fixed length are shared by all keys; other windows belong to one key each.
    if group_by.keyed and window.kind in ("session", "global"):
        text += " per key"
    if window.global_ is not None and window.global_.accumulate:
        text += " accumulating"
    lateness = f" {as_duration(group_by.allowed_lateness_s)} late" if group_by.allowed_lateness_s else ""
    return text + lateness


def _place(plan: Plan, edge: Edge) -> dict[str, Any]:
    """Where the records of an edge are stored, as far as its ends do not determine it, and as what they are read."""
    if edge.chain:
        return {"chained": True}
    ledger = plan.ledger_of(edge.from_)
    table = {"table": plan.tables[edge.name].name} if edge.name in plan.tables else {}
    return table | ({"ledger": ledger} if ledger != edge.from_ else {})


def head_of(before: Mapping[str, Any], vertex: str) -> str:
    """The first vertex of the chain in which a vertex of a stored shape is."""
    heads = {old["to"]: old["from"] for old in before["edges"].values() if "chained" in old}
    while vertex in heads:
        vertex = heads[vertex]
    return vertex
