"""The shape of a pipeline, on which stored data depends: kept in the data directory, compared by the next run.

Pure. Above it: the runner. Below it: the spec's graph. Users may change functions, and the options of sources and
sinks, between two runs. Buffers and marks are found by names, kinds, partitions and ends of edges: these may change
where no records wait, in ways that keep the meaning of positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from millstream import codes
from millstream.errors import DamageError
from millstream.plurals import counted
from millstream.spec.buffers import DEFAULT
from millstream.spec.graph import Graph, with_edges
from millstream.spec.loading import Loaded
from millstream.spec.models import Edge, GroupBy, Vertex
from millstream.spec.sources import Source
from millstream.spec.values import as_duration

_KEYS = "one to one"
"""The texts that `millstream.keys` gives to keys. Earlier versions wrote nothing."""


def shape_of(graph: Graph) -> dict[str, Any]:
    """The shape as plain values, to be stored as JSON."""
    return {
        "pipeline": graph.pipeline.name,
        "vertices": {
            vertex.name: {
                "kind": vertex.kind,
                "of": _end_of(vertex),
                "partitions": vertex.partitions,
                **({"windows": _windows(vertex.group_by)} if vertex.group_by is not None else {}),
                **({"ledger": graph.ledgers[vertex.name]} if vertex.name in graph.ledgers else {}),
                **({"keys": _KEYS} if _has_byte_keys(vertex) and vertex.name not in graph.former_keys else {}),
            }
            for vertex in graph.vertices
        },
        "edges": {edge.name: {"from": edge.from_, "to": edge.to, **_place(graph, edge)} for edge in graph.edges},
        **({"ledger": technology} if (technology := graph.pipeline.spec.buffer_technology) != DEFAULT else {}),
    }


def as_stored(loaded: Loaded, before: Mapping[str, Any]) -> tuple[Loaded, Sequence[str]]:
    """The pipeline with each vertex in the ledger in which it is stored, with the texts of keys that its stored data
    began with, and with the buffers of the stored data unless the file says otherwise. `before`: the stored shape.

    Returns also the edges that keep a buffer but would be chained with new data. Raises `DamageError` if `before` is
    not a shape.
    """
    pipeline = loaded.pipeline
    with _readable():
        if pipeline.spec.chain is None:
            pipeline = with_edges(pipeline, [_as_stored(edge, before) for edge in pipeline.spec.edges])
        graph = Graph.of(pipeline)
        stored = {vertex: _stored_with(before, vertex) for vertex in graph.stages.order if vertex in before["vertices"]}
        former_keys = [vertex.name for vertex in pipeline.spec.vertices if _has_former_keys(vertex, before)]
        ledgers = {vertex: ledger for vertex, ledger in stored.items() if ledger != vertex}
        graph = Graph.of(pipeline, ledgers, former_keys)
    kept = [edge.name for edge in loaded.graph.edges if edge.chain and not graph.edge(edge.name).chain]
    return replace(loaded, pipeline=pipeline, graph=graph), kept


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
    head = _head(before, vertex)
    ledger: str = before["vertices"][head].get("ledger", head)
    return ledger


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences from the pipeline that wrote the stored data, and what they require of that data."""

    refused: Sequence[str]
    """Differences that never fit, one sentence each, with what to do instead."""
    emptied: Mapping[str, str]
    """Edges of the old pipeline in which no records may wait, each with the reason."""
    closed: Mapping[str, str]
    """Reduces of the old pipeline that may have no open windows, each with the reason."""
    gone: Sequence[str]
    """Vertices whose data is to be removed."""
    separated: Sequence[str] = ()
    """Edges that were chained and have buffers now, one sentence each."""
    removed: Mapping[str, str] = field(default_factory=dict)
    """The vertex that read each edge which is removed, if that vertex stays."""

    @property
    def grown(self) -> Sequence[str]:
        """Reduces that have more lanes now."""
        return [vertex for vertex in self.closed if vertex not in self.gone]

    @property
    def any(self) -> bool:
        return bool(self.texts or self.gone)

    @property
    def texts(self) -> Sequence[str]:
        """The differences, one sentence each."""
        return list(dict.fromkeys([*self.refused, *self.emptied.values(), *self.closed.values(), *self.separated]))


def changes(before: Mapping[str, Any], now: Mapping[str, Any], *, forget: Collection[str] = ()) -> Changes:
    """What a change of shape requires of stored data. `forget`: sources that may be removed with their positions.

    New vertices and edges never conflict: they start with nothing, under names that have never been used. Raises
    `DamageError` if `before` is not a shape.
    """
    with _readable():
        return _changes(before, now, forget)


@contextmanager
def _readable() -> Iterator[None]:
    """Report stored plain values that are not a shape."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise DamageError(
            codes.SHAPE_UNREADABLE,
            f"the shape of the stored data (shape.json) cannot be read ({error!r}): restore that file, or start the "
            "pipeline over with --fresh",
        ) from error


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], forget: Collection[str]) -> Changes:
    refused: list[str] = []
    emptied: dict[str, str] = {}
    closed: dict[str, str] = {}
    gone: list[str] = []
    separated: list[str] = []
    if before["pipeline"] != now["pipeline"]:
        refused.append(f"the pipeline was called {before['pipeline']} and is now called {now['pipeline']}")
    held, wanted = before.get("ledger", DEFAULT), now.get("ledger", DEFAULT)
    if held != wanted:
        refused.append(f"its records were kept by {held}, and are now kept by {wanted}")
    for name, old in before["vertices"].items():
        new = now["vertices"].get(name)
        what = f"vertex {name} was removed" if new is None else _difference(name, old, new)
        if not what:
            continue
        reads = any(ends["to"] == name for ends in before["edges"].values())
        fault = _fault(name, old, new, forget, reads=reads)
        if fault:
            refused.append(f"{what}: {fault}")
            continue
        if new is None:
            gone.append(name)
        emptied.update((edge, what) for edge, ends in before["edges"].items() if ends["to"] == name)
        if "windows" in old:
            closed[name] = what
    for name, old in before["edges"].items():
        new = now["edges"].get(name)
        if new is None:
            emptied.setdefault(name, f"edge {name} ({old['from']} to {old['to']}) was removed")
        elif "chained" in old and "chained" not in new and not _delivers(before, old["from"]):
            separated.append(f"edge {name} was chained and has a buffer now")
        elif new != old and (old["from"], old["to"]) == (new["from"], new["to"]):
            whose = old["to"] if "chained" in old or "chained" in new else old["from"]
            refused.append(
                f"edge {name} {_place_text(old)} in the stored data, but now {_place_text(new)}: undo the change "
                "that led to this (of `chain`, or of what an edge needs to be chained), or rename vertex "
                f"{whose}, which then starts empty, when no records wait"
            )
        elif new != old:
            refused.append(
                f"edge {name} went from {old['from']} to {old['to']} and now goes from {new['from']} to {new['to']}: "
                "give it another name"
            )
    for kind in ("vertices", "edges"):
        refused += [
            f"{'a vertex' if kind == 'vertices' else 'an edge'} called {name} was removed earlier: use another name"
            for name in before.get("gone", {}).get(kind, ())
            if name in now[kind]
        ]
    removed = {
        name: old["to"]
        for name, old in before["edges"].items()
        if name not in now["edges"] and old["to"] in now["vertices"] and "chained" not in old
    }
    return Changes(refused, emptied, closed, gone, separated, removed)


def successor(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The shape to keep after a change; it remembers the names that are used up."""
    gone = {
        kind: sorted({*before.get("gone", {}).get(kind, ()), *(name for name in before[kind] if name not in now[kind])})
        for kind in ("vertices", "edges")
    }
    return {**now, "gone": gone} if any(gone.values()) else dict(now)


def _difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first difference, if there are several; those that never fit come first."""
    if (old["kind"], old["of"]) != (new["kind"], new["of"]):
        return f"vertex {name} was a {_kind_text(old)} and is now a {_kind_text(new)}"
    if old.get("windows") != new.get("windows"):
        return f"vertex {name} had {old.get('windows')} windows and now has {new.get('windows')} windows"
    if old["partitions"] != new["partitions"]:
        return f"vertex {name} had {counted(old['partitions'], 'partition')} and now has {new['partitions']}"
    return ""


def _fault(
    name: str, old: Mapping[str, Any], new: Mapping[str, Any] | None, forget: Collection[str], *, reads: bool
) -> str:
    """Why a difference never fits, even if no records wait; empty if it fits when none do."""
    if not reads:
        if new is not None:
            return "the position of a source is kept for each partition, in a form of its own"
        if name not in forget:
            return (
                "its position would be forgotten, and a source with another name starts at its beginning. Put it "
                f"back, or use `--forget {name}`"
            )
        return ""
    if new is None:
        return ""
    other = "rename it; it then starts empty"
    if old["kind"] != new["kind"] or old.get("windows") != new.get("windows"):
        return other
    return other if new["partitions"] < old["partitions"] else ""


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


def _place(graph: Graph, edge: Edge) -> dict[str, Any]:
    """Where the records of an edge are stored, as far as its ends do not determine it."""
    if edge.chain:
        return {"chained": True}
    ledger = graph.ledger_of(edge.from_)
    return {"ledger": ledger} if ledger != edge.from_ else {}


def _head(before: Mapping[str, Any], vertex: str) -> str:
    """The first vertex of the chain in which a vertex of a stored shape is."""
    heads = {old["to"]: old["from"] for old in before["edges"].values() if "chained" in old}
    while vertex in heads:
        vertex = heads[vertex]
    return vertex


def _delivers(before: Mapping[str, Any], vertex: str) -> bool:
    """Whether the chain with that vertex ends in a sink, which counts its deliveries and not the frames of a buffer."""
    head = _head(before, vertex)
    chained = [old["to"] for old in before["edges"].values() if "chained" in old and _head(before, old["to"]) == head]
    # A vertex that follows in a chain is a map, without an end, or a sink.
    return any(before["vertices"][name]["of"] for name in chained)


def _place_text(edge: Mapping[str, Any]) -> str:
    return "is chained" if "chained" in edge else f"has its buffer in the ledger of {edge.get('ledger', edge['from'])}"


def _kind_text(vertex: Mapping[str, Any]) -> str:
    return f"{vertex['of']} {vertex['kind']}".strip()
