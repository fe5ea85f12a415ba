"""A small pipeline as a graph: in (2 partitions) -> map -> out, map -> dead (dead letters)."""

from typing import Any

from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline


def small(**changes: Any) -> Graph:
    """`changes`: fields of vertices by vertex name, for example `out={"partitions": 2}`."""
    vertices: list[dict[str, Any]] = [
        {"name": "in", "source": {"generator": {"records": 10}}, "partitions": 2},
        {"name": "map", "udf": {"python": "functions.py:f"}},
        {"name": "out", "sink": {"blackhole": {}}},
        {"name": "dead", "sink": {"log": {}}},
    ]
    return Graph.of(
        Pipeline.model_validate(
            {
                "apiVersion": "millstream.io/v1alpha1",
                "kind": "Pipeline",
                "metadata": {"name": "small"},
                "spec": {
                    "vertices": [{**vertex, **changes.get(vertex["name"], {})} for vertex in vertices],
                    "edges": [
                        {"from": "in", "to": "map"},
                        {"from": "map", "to": "out"},
                        {"from": "map", "to": "dead", "kind": "deadLetter"},
                    ],
                },
            }
        )
    )
