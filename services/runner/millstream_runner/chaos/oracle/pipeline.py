"""The pipeline as stored by the run (`pipeline.json` in its data directory), as far as it is needed. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class OracleEdge:
    """A connection, with the names of its buffers."""

    name: str
    source: str
    target: str
    conditional: bool
    """It does not take all records."""
    partitions: int
    lossy: bool
    """A full buffer drops records."""


@dataclass(frozen=True, slots=True)
class OraclePipeline:
    """Vertices and edges."""

    name: str
    vertices: dict[str, dict[str, Any]]
    """As stored, by name."""
    edges: tuple[OracleEdge, ...]
    ledger: str
    """What stores the records."""

    def kind(self, vertex: str) -> str:
        """source, map, reduce or sink."""
        body = self.vertices[vertex]
        if "source" in body:
            return "source"
        if "sink" in body:
            return "sink"
        return "reduce" if "groupBy" in body["udf"] else "map"

    def lanes(self, vertex: str) -> list[str]:
        """The tails `<input>.<partition>` of the subjects of its lanes."""
        partitions = range(self.vertices[vertex].get("partitions", 1))
        kind = self.kind(vertex)
        if kind in ("source", "reduce"):
            return [f"{'source' if kind == 'source' else 'window'}.{number}" for number in partitions]
        if kind == "map" and "state" in self.vertices[vertex]["udf"]:
            return [f"_all.{number}" for number in partitions]
        names = [edge.name for edge in self.edges if edge.target == vertex]
        return [f"{name}.{number}" for name in names for number in partitions]

    @property
    def sinks(self) -> list[str]:
        return [name for name in self.vertices if self.kind(name) == "sink"]


def read_pipeline(path: Path) -> OraclePipeline:
    """What `pipeline.json` says. Raises `ValueError` for another format."""
    contents = json.loads(path.read_bytes())
    if contents["format"] != 1:
        raise ValueError(f"{path} has format {contents['format']}, and only 1 is known here")
    body = contents["pipeline"]
    vertices = {vertex["name"]: vertex for vertex in body["spec"]["vertices"]}
    edges = tuple(
        OracleEdge(
            edge["name"],
            edge["from"],
            edge["to"],
            bool(edge.get("conditions")) or edge.get("kind", "data") != "data",
            vertices[edge["to"]].get("partitions", 1),
            edge.get("onFull") == "discardLatest",
        )
        for edge in body["spec"].get("edges", ())
    )
    ledger = next(iter(body["spec"].get("interStepBuffer") or {"jetstream": {}}))
    return OraclePipeline(body["metadata"]["name"], vertices, edges, ledger)
