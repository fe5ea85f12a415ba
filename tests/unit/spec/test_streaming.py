"""`udf.streaming`: where a function may send its outputs while it makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.spec.graph import Graph
from millstream.spec.programs import Udf
from millstream.udf.native.protocol import NATIVE
from tests.unit.spec.test_graph import IN, OUT, arrow, pipeline
from tests.unit.spec.test_state import PROGRAM, WINDOW, problems_of

STREAMING = {"udf": {**PROGRAM, "streaming": True}}
EDGES = [arrow("in>v"), arrow("v>out")]


def test_it_is_a_setting_of_a_map() -> None:
    graph = Graph.of(pipeline({"in": IN, "v": STREAMING, "out": OUT}, EDGES))
    settings = graph.vertex("v").settings
    assert isinstance(settings, Udf)
    assert settings.streaming


@pytest.mark.parametrize(
    ("udf", "says"),
    [
        ({"builtin": {"name": "cat"}}, "`streaming` has no effect on a built-in; no `streaming`, or a function"),
        ({**PROGRAM, "state": {}}, "counts with all of its outputs, so they are sent together; no `streaming`, or"),
        ({**PROGRAM, "groupBy": WINDOW}, "`streaming` has no effect in a reduce: its results are always sent as they"),
    ],
    ids=["built-in", "state", "reduce"],
)
def test_elsewhere_it_is_refused(tmp_path: Path, udf: dict[str, Any], says: str) -> None:
    vertices = {"in": IN, "v": {"udf": {**udf, "streaming": True}}, "out": OUT}
    (found,) = problems_of(tmp_path / "p.yaml", vertices, EDGES)
    assert says in found
    assert "udf.streaming" in found


def test_a_protocol_may_not_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(NATIVE), "streams", False)
    (found,) = problems_of(tmp_path / "p.yaml", {"in": IN, "v": STREAMING, "out": OUT}, EDGES)
    assert "the protocol `millstream` sends each answer as a whole; no `streaming`" in found
