"""The pipelines that are simulated, and the settings that a seed draws."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from millstream.plan import resolved
from millstream.plan.resolved import ResolvedPipeline
from millstream.spec.graph import Graph
from tests.simulation.outside import BASE_US, KEYS, Given, Split
from tests.simulation.silence import arrivals

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline and what its sources give."""

    name: str
    spec: Spec
    behaviours: Mapping[str, str]
    """What the functions of its maps do."""
    gives_ids: bool = False
    max_delay_s: float = 1.0
    late: float = 0.0
    """Share of records that are later than `maxDelay` says."""
    loses_logs: bool = False
    """The logs of its windows may be lost with their disks."""
    keeps: bool = False
    """Some of its sinks keep positions in their targets."""
    silent: bool = False
    """Its sources fall silent and wake up, and an idle policy is drawn."""
    crowds: bool = False
    """Many of its records come at the same moment, and commits hardly join them: most commits are packs."""


def _source(name: str, partitions: int = 1) -> Spec:
    return {"name": name, "partitions": partitions, "source": {"udsource": {"command": ["simulated"]}}}


def _map(name: str, partitions: int = 1, replicas: int = 1, on_failure: str = "stop") -> Spec:
    retries = {"backoff": {"interval": "10ms", "steps": 1000}, "onFailure": on_failure}
    return {
        "name": name,
        "partitions": partitions,
        "replicas": replicas,
        "udf": {"command": ["simulated"], "retryStrategy": retries},
    }


def _sink(name: str, partitions: int = 1) -> Spec:
    retries = {"backoff": {"interval": "10ms", "steps": 1000}, "onFailure": "retry"}
    return {
        "name": name,
        "partitions": partitions,
        # Targets are compared by the values of records, dead letters included.
        "sink": {"udsink": {"command": ["simulated"]}, "retryStrategy": retries, "envelope": False},
    }


def _edge(begin: str, end: str, kind: str = "", tags: tuple[str, ...] = (), *, chain: bool = False) -> Spec:
    edge: dict[str, Any] = {"from": begin, "to": end}
    if chain:
        edge["chain"] = True
    if kind:
        edge["kind"] = kind
    if tags:
        edge["conditions"] = {"tags": {"values": list(tags)}}
    return edge


def _pipeline(name: str, vertices: list[Spec], edges: list[Spec], max_delay_s: float, **more: Any) -> Spec:
    # Chains have shapes of their own.
    watermark = {"maxDelay": f"{max_delay_s:g}s"}
    spec = {"chain": False, "watermark": watermark, "vertices": vertices, "edges": edges, **more}
    return {"apiVersion": "millstream.io/v1alpha1", "kind": "Pipeline", "metadata": {"name": name}, "spec": spec}


def _maps() -> Shape:
    vertices = [_source("a", 2), _map("fan", 2, 2, "deadLetter"), _sink("even", 2), _sink("all"), _sink("dead")]
    edges = [
        _edge("a", "fan"),
        _edge("fan", "even", tags=("even",)),
        _edge("fan", "all"),
        _edge("fan", "dead", "deadLetter"),
    ]
    return Shape("maps", _pipeline("maps", vertices, edges, 1.0), {"fan": "fan"})


def _joins() -> Shape:
    """Two vertices and more before a map, a reduce and a sink."""
    vertices = [
        _source("a", 2),
        _source("b"),
        _map("plain", 2),
        _map("fan", 1, on_failure="deadLetter"),
        _reduce("sum", {"fixed": {"length": "600ms"}}, 2),
        _sink("out", 2),
    ]
    edges = [_edge(begin, end) for begin, end in (("a", "plain"), ("b", "plain"), ("a", "fan"), ("plain", "fan"))]
    edges += [_edge("plain", "sum"), _edge("b", "sum"), _edge("sum", "out")]
    edges += [_edge("b", "out"), _edge("fan", "out"), _edge("fan", "out", "deadLetter")]
    behaviours = {"plain": "plain", "fan": "fan"}
    return Shape("joins", _pipeline("joins", vertices, edges, 0.4), behaviours, max_delay_s=0.4)


def _ids() -> Shape:
    vertices = [_source("a"), _map("plain"), _sink("out")]
    edges = [_edge("a", "plain"), _edge("plain", "out")]
    return Shape("ids", _pipeline("ids", vertices, edges, 1.0), {"plain": "plain"}, gives_ids=True)


def _reduce(name: str, window: Spec, partitions: int = 1, **group_by: Any) -> Spec:
    retries = {"backoff": {"interval": "10ms", "steps": 1000}, "onFailure": "stop"}
    return {
        "name": name,
        "partitions": partitions,
        "udf": {
            "groupBy": {"window": window, "keyed": True, **group_by},
            "python": "simulated:contents",
            "retryStrategy": retries,
        },
    }


def _fixed() -> Shape:
    """Two edges into a reduce of two partitions; nothing is late."""
    vertices = [_source("a"), _source("b", 2), _reduce("sum", {"fixed": {"length": "700ms"}}, 2), _sink("out")]
    edges = [_edge("a", "sum"), _edge("b", "sum"), _edge("sum", "out")]
    return Shape("fixed", _pipeline("fixed", vertices, edges, 0.5), {}, max_delay_s=0.5)


def _late() -> Shape:
    """Late records go to an edge of their own, behind a map that gives several outputs."""
    group_by = {"allowedLateness": "200ms", "onLate": "edge"}
    vertices = [
        _source("a", 2),
        _map("fan", 2, on_failure="deadLetter"),
        _reduce("sum", {"sliding": {"length": "900ms", "slide": "300ms"}}, 2, **group_by),
        _sink("out"),
        _sink("late"),
        _sink("dead"),
    ]
    edges = [
        _edge("a", "fan"),
        _edge("fan", "sum"),
        _edge("fan", "dead", "deadLetter"),
        _edge("sum", "out"),
        _edge("sum", "late", "late"),
    ]
    return Shape("late", _pipeline("late", vertices, edges, 0.3), {"fan": "fan"}, max_delay_s=0.3, late=0.15)


def _sessions() -> Shape:
    vertices = [_source("a", 2), _reduce("sum", {"session": {"timeout": "150ms"}}, 2), _sink("out")]
    edges = [_edge("a", "sum"), _edge("sum", "out")]
    return Shape("sessions", _pipeline("sessions", vertices, edges, 0.4), {}, max_delay_s=0.4)


def _late_sessions() -> Shape:
    vertices = [_source("a"), _source("b"), _reduce("sum", {"session": {"timeout": "100ms"}}, 2), _sink("out")]
    edges = [_edge("a", "sum"), _edge("b", "sum"), _edge("sum", "out")]
    return Shape("late-sessions", _pipeline("late-sessions", vertices, edges, 0.1), {}, max_delay_s=0.1, late=0.1)


def _counts() -> Shape:
    vertices = [_source("a", 2), _reduce("sum", {"global": {"trigger": {"count": 3}}}), _sink("out")]
    edges = [_edge("a", "sum"), _edge("sum", "out")]
    return Shape("counts", _pipeline("counts", vertices, edges, 0.4), {}, max_delay_s=0.4)


def _chain() -> Shape:
    """A reduce of reduces: the watermark of one closes the windows of the next."""
    vertices = [
        _source("a"),
        _source("b"),
        _reduce("short", {"fixed": {"length": "250ms"}}, 2),
        _reduce("long", {"fixed": {"length": "1s"}}),
        _sink("out"),
    ]
    edges = [_edge("a", "short"), _edge("b", "short"), _edge("short", "long"), _edge("long", "out")]
    return Shape("chain", _pipeline("chain", vertices, edges, 0.3), {}, max_delay_s=0.3)


def _early() -> Shape:
    """Early results, of input that is kept until its windows are committed."""
    group_by = {"early": {"count": 4}, "keepInput": True}
    window = {"fixed": {"length": "1s", "streaming": True}}
    vertices = [_source("a", 2), _reduce("sum", window, 2, **group_by), _sink("out")]
    edges = [_edge("a", "sum"), _edge("sum", "out")]
    return Shape("early", _pipeline("early", vertices, edges, 0.4), {}, max_delay_s=0.4, loses_logs=True)


def _lost_sessions() -> Shape:
    """Late records too, and sessions whose logs may be lost."""
    window = {"session": {"timeout": "150ms"}}
    vertices = [_source("a", 2), _source("b"), _reduce("sum", window, 2, keepInput=True, onLate="edge")]
    vertices += [_sink("out"), _sink("late")]
    edges = [_edge("a", "sum"), _edge("b", "sum"), _edge("sum", "out"), _edge("sum", "late", "late")]
    spec = _pipeline("lost-sessions", vertices, edges, 0.1)
    return Shape("lost-sessions", spec, {}, max_delay_s=0.1, late=0.2, loses_logs=True)


def _lost_periods() -> Shape:
    window = {"global": {"trigger": {"every": "500ms"}}}
    vertices = [_source("a", 2), _reduce("sum", window, 2, keepInput=True), _sink("out")]
    edges = [_edge("a", "sum"), _edge("sum", "out")]
    spec = _pipeline("lost-periods", vertices, edges, 0.2)
    return Shape("lost-periods", spec, {}, max_delay_s=0.2, late=0.1, loses_logs=True)


def _lost_sliding() -> Shape:
    """Late records, early results, and logs that may be lost."""
    window = {"sliding": {"length": "900ms", "slide": "300ms", "streaming": True}}
    group_by = {"early": {"count": 5}, "keepInput": True, "allowedLateness": "100ms"}
    vertices = [_source("a", 2), _source("b"), _reduce("sum", window, 2, **group_by), _sink("out")]
    edges = [_edge("a", "sum"), _edge("b", "sum"), _edge("sum", "out")]
    spec = _pipeline("lost-sliding", vertices, edges, 0.2)
    return Shape("lost-sliding", spec, {}, max_delay_s=0.2, late=0.1, loses_logs=True)


def _periods() -> Shape:
    """A result of each key whenever the watermark passes half a second, over what came since the last one."""
    window = {"global": {"trigger": {"every": "500ms"}}}
    vertices = [_source("a", 2), _reduce("sum", window, 2), _sink("out")]
    edges = [_edge("a", "sum"), _edge("sum", "out")]
    return Shape("periods", _pipeline("periods", vertices, edges, 0.4), {}, max_delay_s=0.4)


def _narrow() -> Shape:
    """Buffers that are full soon: a slow sink holds all others up, as far as the source."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, 2, on_failure="deadLetter"),
        _reduce("sum", {"fixed": {"length": "400ms"}}),
        _sink("out"),
        _sink("all"),
        _sink("dead"),
    ]
    edges = [
        _edge("a", "fan"),
        _edge("fan", "sum"),
        _edge("fan", "all"),
        _edge("fan", "dead", "deadLetter"),
        _edge("sum", "out"),
    ]
    limits = {"bufferMaxLength": 12}
    return Shape("narrow", _pipeline("narrow", vertices, edges, 0.4, limits=limits), {"fan": "fan"}, max_delay_s=0.4)


def _source_chain() -> Shape:
    """A source, two maps and no buffer between them. What the first map makes of a record is not stored anywhere, so
    only the first of a chain makes something that depends on the record."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, on_failure="deadLetter"),
        _map("plain", 2),
        _sink("out", 2),
        _sink("all"),
        _sink("dead"),
    ]
    edges = [
        _edge("a", "fan", chain=True),
        _edge("fan", "plain", chain=True),
        _edge("plain", "out"),
        _edge("plain", "all"),
        _edge("fan", "dead", "deadLetter"),
    ]
    spec = _pipeline("source-chain", vertices, edges, 1.0)
    return Shape("source-chain", spec, {"fan": "fan", "plain": "plain"})


def _map_chain() -> Shape:
    """Three maps behind a buffer, and windows behind them."""
    vertices = [
        _source("a", 2),
        _source("b"),
        _map("fan", 2, 2, on_failure="deadLetter"),
        _map("plain", 2, 2),
        _map("third", 2, 2),
        _reduce("sum", {"fixed": {"length": "600ms"}}),
        _sink("out"),
        _sink("dead"),
    ]
    edges = [
        _edge("a", "fan"),
        _edge("b", "fan"),
        _edge("fan", "plain", chain=True),
        _edge("plain", "third", chain=True),
        _edge("third", "sum"),
        _edge("fan", "dead", "deadLetter"),
        _edge("sum", "out"),
    ]
    behaviours = {"fan": "fan", "plain": "plain", "third": "plain"}
    return Shape("map-chain", _pipeline("map-chain", vertices, edges, 0.4), behaviours, max_delay_s=0.4)


def _copies() -> Shape:
    """Maps, windows and sinks that read one stored copy, each in a process of its own; two more share another."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, 2, on_failure="deadLetter"),
        _map("plain", 2, 2),
        _reduce("sum", {"fixed": {"length": "500ms"}}, 2),
        _sink("one", 2),
        _sink("two", 2),
        _sink("even"),
        _sink("too"),
        _sink("out"),
        _sink("dead"),
    ]
    edges = [_edge("a", "fan"), *(_edge("fan", name) for name in ("plain", "sum", "one", "two"))]
    edges += [_edge("fan", name, tags=("even",)) for name in ("even", "too")]
    edges += [_edge("fan", "dead", "deadLetter"), _edge("plain", "out"), _edge("sum", "out")]
    behaviours = {"fan": "fan", "plain": "plain"}
    return Shape("copies", _pipeline("copies", vertices, edges, 0.4), behaviours, max_delay_s=0.4)


def _narrow_copies() -> Shape:
    """A copy whose readers have little room, and sessions among them."""
    vertices = [
        _source("a"),
        _map("plain", 2),
        _reduce("sum", {"session": {"timeout": "150ms"}}, 2),
        _sink("one", 2),
        _sink("out"),
    ]
    edges = [_edge("a", "plain"), _edge("a", "sum"), _edge("a", "one"), _edge("plain", "out"), _edge("sum", "out")]
    spec = _pipeline("narrow-copies", vertices, edges, 0.3, limits={"bufferMaxLength": 12})
    return Shape("narrow-copies", spec, {"plain": "plain"}, max_delay_s=0.3)


def _chained_copies() -> Shape:
    """A chain whose last vertex has a copy that two read, in the ledger of its first."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, on_failure="deadLetter"),
        _map("plain", 2),
        _sink("one", 2),
        _sink("two", 2),
        _sink("dead"),
    ]
    edges = [
        _edge("a", "fan", chain=True),
        _edge("fan", "plain", chain=True),
        _edge("plain", "one"),
        _edge("plain", "two"),
        _edge("fan", "dead", "deadLetter"),
    ]
    spec = _pipeline("chained-copies", vertices, edges, 1.0)
    return Shape("chained-copies", spec, {"fan": "fan", "plain": "plain"})


def _kept() -> Shape:
    """Sinks that keep positions behind buffers: of a map, and of windows."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, 2, on_failure="deadLetter"),
        _reduce("sum", {"fixed": {"length": "500ms"}}, 2),
        _sink("out", 2),
        _sink("sums"),
        _sink("dead"),
    ]
    edges = [_edge("a", "fan"), _edge("fan", "out"), _edge("fan", "sum"), _edge("sum", "sums")]
    edges += [_edge("fan", "dead", "deadLetter")]
    behaviours = {"fan": "fan", "out": "refuses", "sums": "keeps"}
    return Shape("kept", _pipeline("kept", vertices, edges, 0.4), behaviours, max_delay_s=0.4, keeps=True)


def _to_the_end(name: str, behaviour: str, max_delay_s: float = 1.0, **more: Any) -> Shape:
    """From the source to the target without a buffer."""
    vertices = [_source("a", 2), _map("fan", 2, on_failure="deadLetter"), _map("plain", 2), _sink("out", 2)]
    edges = [_edge(begin, end, chain=True) for begin, end in (("a", "fan"), ("fan", "plain"), ("plain", "out"))]
    vertices, edges = [*vertices, _sink("dead")], [*edges, _edge("fan", "dead", "deadLetter")]
    behaviours = {"fan": "fan", "plain": "plain", "out": behaviour}
    spec = _pipeline(name, vertices, edges, max_delay_s)
    return Shape(name, spec, behaviours, max_delay_s=max_delay_s, **more)


def _straight(name: str, behaviour: str, **more: Any) -> Shape:
    """A source and a sink, and nothing between them."""
    vertices = [_source("a", 2), _sink("out", 2)]
    return Shape(name, _pipeline(name, vertices, [_edge("a", "out", chain=True)], 1.0), {"out": behaviour}, **more)


def _buffer_to_the_end() -> Shape:
    """Maps and a sink behind a buffer that two sources fill."""
    vertices = [
        _source("a", 2),
        _source("b"),
        _map("fan", 2, 2, on_failure="deadLetter"),
        _map("plain", 2, 2),
        {**_sink("out", 2), "replicas": 2},
        _sink("dead"),
    ]
    edges = [_edge("a", "fan"), _edge("b", "fan"), _edge("fan", "plain", chain=True), _edge("plain", "out", chain=True)]
    edges += [_edge("fan", "dead", "deadLetter")]
    name, behaviours = "buffer-to-the-end", {"fan": "fan", "plain": "plain", "out": "refuses"}
    return Shape(name, _pipeline(name, vertices, edges, 1.0), behaviours, keeps=True)


def _packs(name: str, max_delay_s: float = 0.3, **more: Any) -> Shape:
    """Packs that maps and a sink without positions read in parts, and windows and a sink that has them as a whole."""
    vertices = [
        _source("a"),
        _map("several"),
        _map("plain"),
        _reduce("sum", {"fixed": {"length": "400ms"}}),
        _sink("all"),
        _sink("kept"),
        _sink("out"),
    ]
    edges = [_edge("a", "several"), *(_edge("several", name) for name in ("plain", "sum", "all", "kept"))]
    edges += [_edge("plain", "out"), _edge("sum", "out")]
    spec = _pipeline(name, vertices, edges, max_delay_s, **more)
    behaviours = {"several": "several", "plain": "plain", "kept": "refuses"}
    return Shape(name, spec, behaviours, max_delay_s=max_delay_s, keeps=True, crowds=True)


def _packs_to_the_end(name: str, behaviour: str, **more: Any) -> Shape:
    """Packs that a chain reads in parts, with a sink at its end."""
    vertices = [_source("a"), _map("plain"), _map("several"), _sink("out")]
    edges = [_edge("a", "plain"), _edge("plain", "several"), _edge("several", "out", chain=True)]
    behaviours = {"several": "several", "plain": "plain", "out": behaviour}
    return Shape(name, _pipeline(name, vertices, edges, 1.0), behaviours, crowds=True, **more)


def _silent(name: str, behind: list[Spec], edges: list[Spec], behaviours: Mapping[str, str], **more: Any) -> Shape:
    """Two sources that fall silent, and what is behind them. Some records are older than a step of the watermark."""
    vertices = [_source("a", 2), _source("b"), *behind]
    spec = _pipeline(name, vertices, edges, 0.1)
    return Shape(name, spec, behaviours, max_delay_s=0.1, late=0.2, silent=True, **more)


def _silent_windows() -> Shape:
    """Windows that only silence closes, behind maps and a copy of their input; late records have an edge."""
    group_by = {"allowedLateness": "100ms", "onLate": "edge"}
    behind = [
        _map("fan", 2, 2, on_failure="deadLetter"),
        _reduce("sum", {"fixed": {"length": "400ms"}}, 2, **group_by),
        _sink("all"),
        _sink("out"),
        _sink("late"),
        _sink("dead"),
    ]
    edges = [_edge("a", "fan"), _edge("b", "fan"), _edge("fan", "sum"), _edge("fan", "all")]
    edges += [_edge("fan", "dead", "deadLetter"), _edge("sum", "out"), _edge("sum", "late", "late")]
    return _silent("silent-windows", behind, edges, {"fan": "fan"})


def _silent_sessions() -> Shape:
    """Sessions straight behind sources that give ids and repeat themselves."""
    behind = [_reduce("sum", {"session": {"timeout": "150ms"}}, 2), _sink("out")]
    edges = [_edge("a", "sum"), _edge("b", "sum"), _edge("sum", "out")]
    return _silent("silent-sessions", behind, edges, {}, gives_ids=True)


def _silent_chain() -> Shape:
    """A chain of a source and two maps, which promises for all of them, and windows behind it."""
    vertices = [
        _source("a", 2),
        _map("fan", 2, on_failure="deadLetter"),
        _map("plain", 2),
        _reduce("sum", {"sliding": {"length": "600ms", "slide": "200ms"}}),
        _sink("out"),
        _sink("dead"),
    ]
    edges = [_edge("a", "fan", chain=True), _edge("fan", "plain", chain=True), _edge("plain", "sum")]
    edges += [_edge("fan", "dead", "deadLetter"), _edge("sum", "out")]
    behaviours = {"fan": "fan", "plain": "plain"}
    spec = _pipeline("silent-chain", vertices, edges, 0.1)
    return Shape("silent-chain", spec, behaviours, max_delay_s=0.1, late=0.2, silent=True)


COPIED: Mapping[str, Shape] = {shape.name: shape for shape in (_copies(), _narrow_copies(), _chained_copies())}
"""Several edges read one stored copy."""

CHAINED: Mapping[str, Shape] = {shape.name: shape for shape in (_source_chain(), _map_chain())}

KEPT: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _kept(),
        _to_the_end("to-the-end", "refuses", keeps=True),
        _to_the_end("to-any-end", ""),
        _straight("straight", "keeps", keeps=True),
        _straight("straight-ids", "refuses", gives_ids=True, keeps=True),
        _buffer_to_the_end(),
    )
}
"""Chains that end in a sink, and sinks that keep positions: `to-any-end` has one that keeps none."""

SILENT: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _silent_windows(),
        _silent_sessions(),
        _silent_chain(),
        _to_the_end("silent-to-the-end", "refuses", 0.1, keeps=True, late=0.2, silent=True),
        _to_the_end("silent-to-any-end", "", 0.1, late=0.2, silent=True),
    )
}
"""Sources fall silent, and a timer moves their watermarks."""

PACKED: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _packs("packs"),
        _packs("narrow-packs", limits={"bufferMaxLength": 60}),
        _packs_to_the_end("packs-to-the-end", "refuses", keeps=True),
        _packs_to_the_end("packs-to-any-end", ""),
    )
}
"""Most commits are packs."""

BESIDE: Mapping[str, Shape] = {**CHAINED, **COPIED, **KEPT, **SILENT, **PACKED}
"""Beside `SHAPES`, so that the seeds of those stay what they are."""

SHAPES: Mapping[str, Shape] = {
    shape.name: shape
    for shape in (
        _maps(),
        _joins(),
        _ids(),
        _fixed(),
        _late(),
        _sessions(),
        _late_sessions(),
        _counts(),
        _chain(),
        _early(),
        _lost_sessions(),
        _lost_periods(),
        _lost_sliding(),
        _periods(),
        _narrow(),
    )
}


@cache
def resolved_of(name: str, idle_source: str = "") -> ResolvedPipeline:
    """The pipeline as its processes get it. `idle_source`: an idle policy, as JSON."""
    pipeline = dict({**SHAPES, **BESIDE}[name].spec)
    if idle_source:
        spec = pipeline["spec"]
        pipeline["spec"] = {**spec, "watermark": {**spec["watermark"], "idleSource": json.loads(idle_source)}}
    return resolved.load(json.dumps({"format": 1, "baseDir": "/", "pipeline": pipeline}))


def _crowds(rng: random.Random, span_s: float) -> list[float]:
    """When the records of a split arrive: some at a time."""
    moments = [rng.random() * span_s for _ in range(rng.choice((2, 4, 8)))]
    return sorted(at_s + 0.01 * rng.random() for at_s in moments for _ in range(rng.choice((5, 10, 20))))


def given(rng: random.Random, graph: Graph, shape: Shape, span_s: float) -> dict[tuple[str, int], Split]:
    """What each split of the sources will give, made up."""
    splits = {}
    for vertex in graph.sources:
        for split in range(vertex.partitions):
            if shape.silent:
                times, ends_s = arrivals(rng, span_s)
            elif shape.crowds:
                times, ends_s = _crowds(rng, span_s), 0.0
            else:
                count = rng.choice((0, 3, 20, 40))
                times, ends_s = sorted(rng.random() * span_s for _ in range(count)), 0.0
            records = []
            for number, arrives_s in enumerate(times):
                back_s = rng.random() * 0.999 * shape.max_delay_s
                if rng.random() < shape.late:
                    back_s += rng.random() * 5 * shape.max_delay_s
                value = f"{vertex.name}.{split}#{number}"
                records.append(
                    Given(
                        value.encode(),
                        rng.choice(KEYS),
                        BASE_US + round((arrives_s - back_s) * 1e6),
                        f"id-{value}" if shape.gives_ids else "",
                        arrives_s,
                    )
                )
            splits[vertex.name, split] = Split(records, shape.gives_ids, ends_s)
    return splits
