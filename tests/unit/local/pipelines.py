"""A small pipeline: in (2 partitions) -> map -> out, map -> dead (dead letters)."""

from typing import Any

from millstream.plan.plan import Plan, plan_of
from millstream.spec.graph import Graph
from millstream.spec.models import Pipeline


def small(**changes: Any) -> Plan:
    """`changes`: fields of vertices by vertex name, for example `out={"partitions": 2}`."""
    vertices: list[dict[str, Any]] = [
        {"name": "in", "source": {"generator": {"records": 10, "keyCount": 2}}, "partitions": 2},
        {"name": "map", "udf": {"python": "functions.py:f"}},
        {"name": "out", "sink": {"blackhole": {}}},
        {"name": "dead", "sink": {"log": {}}},
    ]
    pipeline = Pipeline.model_validate(
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
    return plan_of(Graph.of(pipeline))
