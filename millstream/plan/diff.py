"""What a change of a pipeline requires of what is stored of it. Pure.

    the stored shape, the new plan ─► restart, drain first, or refused and why

Above it: whatever runs a pipeline again. Below it: shapes. Users may change functions, and the options of sources and
sinks, between two runs. Buffers and marks are found by names, kinds, partitions and ends of edges: these may change
where no records wait, in ways that keep the meaning of positions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from millstream.plan.shape import head_of, readable
from millstream.plurals import counted
from millstream.spec.buffers import DEFAULT
from millstream.spec.models import Pipeline


class Effect(Enum):
    """What a difference requires."""

    RESTART = "restart"
    """It takes effect when the pipeline is started again."""
    DRAIN = "drain"
    """The same, if no records wait where the difference is; otherwise the pipeline has to be drained first."""
    REFUSED = "refused"
    """It never fits what is stored."""


class Difference(NamedTuple):
    """One difference between two pipelines of one name."""

    effect: Effect
    what: str
    """A sentence without its full stop; if it is refused, with the reason and what to do instead."""


@dataclass(frozen=True, slots=True)
class Diff:
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
    added: Sequence[str] = ()
    """Vertices and edges that start with nothing, one sentence each."""
    gathered: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Vertices whose lanes of each edge become one lane of each partition, because they remember something now: the
    edges with buffers that they have read."""
    moved: Mapping[str, int] = field(default_factory=dict)
    """Vertices whose state has to move to other lanes, each with the number of partitions that it had."""

    @property
    def grown(self) -> Sequence[str]:
        """Reduces that have more lanes now."""
        return [vertex for vertex in self.closed if vertex not in self.gone]

    @property
    def any(self) -> bool:
        """Whether stored data has to change."""
        return bool(self.refused or self.emptied or self.closed or self.separated or self.gone)

    @property
    def differences(self) -> Sequence[Difference]:
        """All of them, in the order of what they require: most first."""
        asked = dict.fromkeys([*self.emptied.values(), *self.closed.values()])
        forgotten = [f"vertex {name} was removed" for name in self.gone]
        found = [Difference(Effect.REFUSED, what) for what in self.refused]
        found += [Difference(Effect.DRAIN, what) for what in asked]
        found += [
            Difference(Effect.RESTART, what) for what in (*forgotten, *self.separated, *self.added) if what not in asked
        ]
        return found


def diff(before: Mapping[str, Any], now: Mapping[str, Any], *, forget: Collection[str] = ()) -> Diff:
    """What a change of shape requires of stored data. `forget`: sources that may be removed with their positions.

    New vertices and edges never conflict: they start with nothing, under names that have never been used. Raises
    `DamageError` if `before` is not a shape.
    """
    with readable():
        return _diff(before, now, forget)


def settings_changed(before: Pipeline, now: Pipeline) -> Sequence[Difference]:
    """Differences in what does not decide where records are: functions, options, limits. A restart is enough for each.
    Those of vertices and edges that are in only one of the two are not listed."""
    found = [f"`{name}` changed" for name in _changed(_rest(before), _rest(now))]
    for noun, old, new in (
        ("vertex", {one.name: one for one in before.spec.vertices}, {one.name: one for one in now.spec.vertices}),
        ("edge", {one.name: one for one in before.spec.edges}, {one.name: one for one in now.spec.edges}),
    ):
        for name in old.keys() & new.keys():
            members = _changed(old[name].as_written(given_only=True), new[name].as_written(given_only=True))
            found += [f"`{member}` of {noun} {name} changed" for member in members if member not in _OF_SHAPE]
    return [Difference(Effect.RESTART, what) for what in sorted(found)]


_OF_SHAPE = frozenset({"partitions", "from", "to", "chain"})
"""Members of vertices and edges that `diff` compares."""


def _rest(pipeline: Pipeline) -> Mapping[str, Any]:
    written = pipeline.spec.as_written(given_only=True)
    return {name: value for name, value in written.items() if name not in ("vertices", "edges", "chain")}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in before.keys() | now.keys():
        if before.get(name) != now.get(name):
            yield name


def _diff(before: Mapping[str, Any], now: Mapping[str, Any], forget: Collection[str]) -> Diff:
    refused: list[str] = []
    emptied: dict[str, str] = {}
    closed: dict[str, str] = {}
    gone: list[str] = []
    separated: list[str] = []
    moved = {name: old["partitions"] for name, old in before["vertices"].items() if _moves(name, before, now)}
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
        if name in moved:
            what += "; what it remembers moves with its keys"
        reads = any(ends["to"] == name for ends in before["edges"].values())
        fault = _fault(name, old, new, forget, reads=reads)
        if fault and not _moves_along(name, before, now, moved):
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
            head = head_of(before, old["from"])
            if head in moved and now["vertices"][head]["partitions"] < moved[head]:
                refused.append(
                    f"edge {name} was chained and has a buffer now, and vertex {head} has fewer partitions: make one "
                    "of these changes, run the pipeline, then make the other"
                )
        elif new != old:
            refused.append(_edge_fault(name, old, new))
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
    added = [f"vertex {name} is new" for name in now["vertices"] if name not in before["vertices"]]
    added += [f"edge {name} is new" for name in now["edges"] if name not in before["edges"]]
    gathered = {
        name: [edge for edge, ends in before["edges"].items() if ends["to"] == name and "chained" not in ends]
        for name, old in before["vertices"].items()
        if "state" not in old and "state" in now["vertices"].get(name, {})
    }
    for name in gathered:
        # What a chain keeps for its sink is in marks of its lanes.
        emptied |= {
            edge: f"vertex {name} had no state and now has one"
            for edge, ends in before["edges"].items()
            if "chained" in ends and head_of(before, ends["from"]) == name
        }
    return Diff(refused, emptied, closed, gone, separated, removed, added, gathered, moved)


def _moves(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether all that has changed of a vertex that remembers something for each key is its number of partitions."""
    old, new = before["vertices"][name], now["vertices"].get(name)
    if new is None or old["partitions"] == new["partitions"]:
        return False
    return bool(old.get("state") == new.get("state") == "key" and old["kind"] == new["kind"])


def _moves_along(name: str, before: Mapping[str, Any], now: Mapping[str, Any], moved: Collection[str]) -> bool:
    """Whether a vertex is, or follows in the lanes of, one whose state moves: what lanes have done is counted in
    others when there are fewer."""
    head = head_of(before, name)
    return head in moved and head_of(now, name) == head


def _difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first difference, if there are several; those that never fit come first."""
    if (old["kind"], old["of"]) != (new["kind"], new["of"]):
        return f"vertex {name} was a {_kind_text(old)} and is now a {_kind_text(new)}"
    if old.get("windows") != new.get("windows"):
        return f"vertex {name} had {old.get('windows')} windows and now has {new.get('windows')} windows"
    if old["partitions"] != new["partitions"]:
        return f"vertex {name} had {counted(old['partitions'], 'partition')} and now has {new['partitions']}"
    if old.get("state") != new.get("state"):
        states = [f"a state for each {one['state']}" if "state" in one else "no state" for one in (old, new)]
        return f"vertex {name} had {states[0]} and now has {states[1]}"
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
        if "state" in old and name not in forget:
            return f"what it remembers would be forgotten. Put it back, or use `--forget {name}`"
        return ""
    if "state" in old:
        return (
            "what it remembers belongs to its partitions, and would be lost. Undo the change; or rename the vertex, "
            "which then starts without"
        )
    other_kind = old["kind"] != new["kind"] or old.get("windows") != new.get("windows")
    return "rename it; it then starts empty" if other_kind or new["partitions"] < old["partitions"] else ""


def _edge_fault(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why an edge that is another one now never fits."""
    if (old["from"], old["to"]) != (new["from"], new["to"]):
        return (
            f"edge {name} went from {old['from']} to {old['to']} and now goes from {new['from']} to {new['to']}: "
            "give it another name"
        )
    if fault := table_fault(name, old, new):
        return fault
    whose = old["to"] if "chained" in old or "chained" in new else old["from"]
    return (
        f"edge {name} {_place_text(old)} in the stored data, but now {_place_text(new)}: undo the change "
        "that led to this (of `chain`, or of what an edge needs to be chained), or rename vertex "
        f"{whose}, which then starts empty, when no records wait"
    )


def table_fault(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Why an edge that has become a table, or is one no longer, never fits; empty if it fits."""
    if old.get("table") == new.get("table"):
        return ""
    return (
        f"the records of edge {name} went {_read_as(old)} and now go {_read_as(new)}, which would lack those "
        "before: undo the change, or give the edge another name, which then starts without any"
    )


def _delivers(before: Mapping[str, Any], vertex: str) -> bool:
    """Whether the chain with that vertex ends in a sink, which counts its deliveries and not the frames of a buffer."""
    head = head_of(before, vertex)
    chained = [old["to"] for old in before["edges"].values() if "chained" in old and head_of(before, old["to"]) == head]
    # A vertex that follows in a chain is a map, without an end, or a sink.
    return any(before["vertices"][name]["of"] for name in chained)


def _read_as(edge: Mapping[str, Any]) -> str:
    return f"into table {edge['table']}" if "table" in edge else f"to {edge['to']} as they are"


def _place_text(edge: Mapping[str, Any]) -> str:
    return "is chained" if "chained" in edge else f"has its buffer in the ledger of {edge.get('ledger', edge['from'])}"


def _kind_text(vertex: Mapping[str, Any]) -> str:
    return f"{vertex['of']} {vertex['kind']}".strip()
