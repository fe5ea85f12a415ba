"""The pipelines that are simulated, and the settings that a seed draws."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from millstream.spec import resolved
from millstream.spec.resolved import Resolved

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
        "sink": {"udsink": {"command": ["simulated"]}, "retryStrategy": retries},
    }


def _edge(begin: str, end: str, kind: str = "", tags: tuple[str, ...] = ()) -> Spec:
    edge: dict[str, Any] = {"from": begin, "to": end}
    if kind:
        edge["kind"] = kind
    if tags:
        edge["conditions"] = {"tags": {"values": list(tags)}}
    return edge


def _pipeline(name: str, vertices: list[Spec], edges: list[Spec], max_delay_s: float, **more: Any) -> Spec:
    spec = {"watermark": {"maxDelay": f"{max_delay_s:g}s"}, "vertices": vertices, "edges": edges, **more}
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


def _ids() -> Shape:
    vertices = [_source("a"), _map("plain"), _sink("out")]
    edges = [_edge("a", "plain"), _edge("plain", "out")]
    return Shape("ids", _pipeline("ids", vertices, edges, 1.0), {"plain": "plain"}, gives_ids=True)


SHAPES: Mapping[str, Shape] = {shape.name: shape for shape in (_maps(), _ids())}


@cache
def resolved_of(name: str) -> Resolved:
    """The pipeline as its processes get it."""
    return resolved.load(json.dumps({"format": 1, "baseDir": "/", "pipeline": SHAPES[name].spec}))
