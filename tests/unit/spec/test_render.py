"""Drawings and promises of a pipeline, and the pages made from the models."""

import json
from pathlib import Path

import pytest

from millstream.spec.connectors import GuaranteeId
from millstream.spec.graph import guarantees_of
from millstream.spec.loading import load
from millstream.spec.models import Pipeline
from millstream.spec.render import to_mermaid, to_text
from tools import connector_pages, spec_reference

PIPELINES = Path(__file__).parent / "pipelines"

CYCLE_TEXT = """\
pipeline cycle-to-previous

in  source (http)
└──► input

input  map (steps:prepare)
└──► retry

retry  map (./retry --limit 3)
├──► input  tags or [again], ↺
├──► retry  tags or [self], ↺
└──► out    tags not [again, self]

out  sink (log)
"""

FLIGHTS_MERMAID = """\
flowchart LR
    v0(["flights<br/>source (file) x2"])
    v1["enrich<br/>map (enrich.py:enrich) x4"]
    v2[("all<br/>sink (file) x2")]
    v3[("hook<br/>sink (http)")]
    v4[("broken<br/>sink (file)")]
    v0 --> v1
    v1 --> v2
    v1 -->|"tags or [late]"| v3
    v0 -.->|"dead letters"| v4
    v1 -.->|"dead letters"| v4
"""


def test_a_graph_as_text() -> None:
    assert to_text(load(PIPELINES / "cycle.yaml").graph) == CYCLE_TEXT


def test_a_graph_as_mermaid() -> None:
    assert to_mermaid(load(PIPELINES / "flights.yaml").graph) == FLIGHTS_MERMAID


REDUCES_TEXT = """\
carrier-hours  reduce (SQL) fixed 1h, keyed x4
├──► totals
├╌╌► rest    late records
└╌╌► rest    dead letters

moving  reduce (unix:/run/moving.sock) sliding 3h every 1h
└──► totals

planes  reduce (planes.py:Day) session 26h, keyed
└──► out

totals  reduce (./totals) global every 24h
└──► out
"""


def test_reduces_say_how_they_group() -> None:
    graph = load(PIPELINES / "flights-hourly.yaml").graph
    assert REDUCES_TEXT in to_text(graph)
    mermaid = to_mermaid(graph)
    assert '    v1[["carrier-hours<br/>reduce (SQL) fixed 1h, keyed x4"]]\n' in mermaid
    assert '    v1 -.->|"late records"| v6\n' in mermaid


def test_every_source_and_sink_states_its_guarantee() -> None:
    guarantees = guarantees_of(load(PIPELINES / "flights.yaml").graph)
    assert {name: guarantee.id for name, guarantee in guarantees.items()} == {
        "flights": GuaranteeId.POSITION,
        "all": GuaranteeId.TRANSACTIONAL,
        "hook": GuaranteeId.IDEMPOTENT,
        "hook (fallback)": GuaranteeId.AT_LEAST_ONCE,
        "broken": GuaranteeId.TRANSACTIONAL,
    }
    assert "`Idempotency-Key`" in guarantees["hook"].sentence
    assert guarantees["hook"].sentence.endswith("go to the fallback")
    others = guarantees_of(load(PIPELINES / "even-odd.yaml").graph)
    assert others["even-sink"].id is GuaranteeId.AT_LEAST_ONCE
    assert others["number-sink"].id is GuaranteeId.NO_TARGET


def test_the_reference_is_what_the_models_say() -> None:
    assert spec_reference.main(["--check"]) == 0


def test_a_stale_reference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(spec_reference, "ROOT", tmp_path)
    assert spec_reference.main(["--check"]) == 1
    assert spec_reference.main([]) == 0
    assert spec_reference.main(["--check"]) == 0
    page = tmp_path / "docs" / "spec.md"
    page.write_text(page.read_text() + "more")
    assert spec_reference.main(["--check"]) == 1


@pytest.mark.slow
def test_a_page_describes_each_connector() -> None:
    assert connector_pages.main(["--check"]) == 0
    # Where this fails: put the two lines that CONTRIBUTING names into the connector's page, and run the tool.
    assert sorted(connector_pages.described()) == sorted(connector_pages.existing())


def test_a_stale_page_of_a_connector_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "docs" / "connectors" / "kafka.md"
    page.parent.mkdir(parents=True)
    for other in ("sources.md", "sinks.md"):
        (tmp_path / "docs" / other).write_text("")
    page.write_text(
        f"Before.\n\n{connector_pages.BEGIN.format('source', 'kafka')}\n\n{connector_pages.END}\n\nBehind.\n"
    )
    monkeypatch.setattr(connector_pages, "ROOT", tmp_path)
    assert connector_pages.main(["--check"]) == 1
    assert connector_pages.main([]) == 0
    assert connector_pages.main(["--check"]) == 0
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert "| `consumerGroup` |" in text
    assert text.endswith("Behind.\n")


@pytest.mark.slow
def test_every_field_has_a_meaning() -> None:
    schema = Pipeline.model_json_schema()
    models = {"Pipeline": schema, **schema["$defs"]}
    silent = [
        f"{name}.{field}"
        for name, model in models.items()
        for field, contents in model.get("properties", {}).items()
        if not contents.get("description") and "$ref" not in contents
    ]
    assert silent == []
    assert all(model.get("description") for model in models.values())


def test_the_schema_takes_the_good_pipelines_field_names() -> None:
    schema = json.loads(spec_reference.contents()[spec_reference.ROOT / "docs" / "pipeline.schema.json"])
    vertex = schema["$defs"]["Vertex"]
    assert set(vertex["properties"]) == {
        "name",
        "source",
        "udf",
        "sink",
        "partitions",
        "replicas",
        "limits",
        "placement",
    }
    assert vertex["additionalProperties"] is False
