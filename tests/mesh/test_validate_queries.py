"""`millstream validate` on pipelines with SQL: Spark itself says what is wrong, where, and what is slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream_reduce.spark import aot
from tests.mesh.running import called

HEAD = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: queries}
spec:
  spark: {conf: {spark.sql.ansi.enabled: false, spark.executor.memory: 64g}}
  vertices:
    - {name: in, source: {generator: {records: 5}}}
    - {name: out, sink: {log: {}}}
"""
"""Eight lines."""
REDUCE = """\
    - name: {name}
      udf:
        groupBy: {{window: {{fixed: {{length: 1h}}}}, keyed: true}}
        sql:
          query: |
            {query}
          value: {value}
"""
"""Seven lines; the query is in the fifth, the value in the last."""
FIELDS = '{fields: "delay DOUBLE, origin STRING"}'


def write(directory: Path, queries: dict[str, tuple[str, str]]) -> None:
    reduces = [REDUCE.format(name=name, query=query, value=value) for name, (query, value) in queries.items()]
    edges = [f"    - {{from: in, to: {name}}}\n    - {{from: {name}, to: out}}\n" for name in queries]
    (directory / "pipeline.yaml").write_text("".join([HEAD, *reduces, "  edges:\n", *edges]))


async def validated(directory: Path, exit_code: int) -> dict[str, Any]:
    ended = await called(directory, "validate", "-o", "json", "pipeline.yaml")
    assert ended.exit_code == exit_code, ended.err
    first, *more = ended.err.splitlines()
    assert first == f"asking Spark about {ended.err.split()[3]} queries; this takes some seconds"
    assert more in ([], [aot.advice()]), "nothing but how Spark may start sooner"
    answer: dict[str, Any] = json.loads(ended.out)
    return answer


async def test_what_spark_refuses_is_a_problem_in_its_place_and_what_is_slow_a_note(tmp_path: Path) -> None:
    queries = {
        "good": ("SELECT key, count(*) AS n, percentile(value.delay, 0.95) AS p95 FROM window GROUP BY key", FIELDS),
        "misspelt": ("SELECT key, cuont(*) AS n FROM window GROUP BY key", FIELDS),
        "no-column": ("SELECT key, max(value.dely) AS n FROM window GROUP BY key", FIELDS),
        "no-type": ("SELECT 1 AS n FROM window", "{fields: delay DOUBLEE}"),
        "no-record": ("SELECT 1 AS n FROM window", "{format: avro, avroSchema: '\"bytes\"'}"),
        "no-query": ("DROP TABLE window", "{format: raw}"),
        "unfinished": ("SELECT key FROM window GROUP BY", FIELDS),
        "slow": ("SELECT key, (SELECT count(*) FROM window) AS n FROM window", "{format: raw}"),
    }
    write(tmp_path, queries)
    answer = await validated(tmp_path, 2)
    found = [
        (problem["line"], problem["path"].removeprefix("spec.vertices"), problem["what"])
        for problem in answer["problems"]
    ]
    assert [problem[:2] for problem in found] == [
        (20, "[3].udf.sql.query"),
        (27, "[4].udf.sql.query"),
        (36, "[5].udf.sql.value.fields"),
        (43, "[6].udf.sql.value"),
        (48, "[7].udf.sql.query"),
        (55, "[8].udf.sql.query"),
    ]
    assert "cuont" in found[0][2]
    assert "`count`" in found[0][2], "it says what may have been meant"
    assert "dely" in found[1][2]
    assert "DOUBLEE" in found[2][2]
    assert found[3][2] == "the Avro schema does not describe a record"
    assert all(problem["expected"] for problem in answer["problems"])
    (note,) = answer["notes"]
    assert (note["line"], note["path"]) == (62, "spec.vertices[9].udf.sql.query")
    assert "one by one, which is slower: a query inside an expression" in note["what"]


@pytest.mark.sweep
async def test_a_misspelt_field_does_not_hide_what_spark_says(tmp_path: Path) -> None:
    write(tmp_path, {"bad": ("SELECT nope FROM window", FIELDS), "good": ("SELECT value.delay FROM window", FIELDS)})
    file = tmp_path / "pipeline.yaml"
    file.write_text(file.read_text().replace("sink: {log: {}}", "sink: {log: {}}, replikas: 1"))
    places = [problem["path"] for problem in (await validated(tmp_path, 2))["problems"]]
    assert places == ["spec.vertices[1].replikas", "spec.vertices[2].udf.sql.query"]


async def test_a_spark_that_does_not_start_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"one": ("SELECT 1 AS n", FIELDS), "two": ("SELECT 1 AS n", FIELDS)})
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    (problem,) = (await validated(tmp_path, 2))["problems"]
    assert problem["path"] == "spec.spark"
    assert "nowhere" in problem["what"]


async def test_the_file_alone_is_only_doubted(tmp_path: Path) -> None:
    write(tmp_path, {"unfinished": ("SELECT count(* FROM window", FIELDS)})
    ended = await called(tmp_path, "validate", "--file-only", "pipeline.yaml")
    assert ended.exit_code == 0
    assert ended.err == ""
    assert (
        "the query may not be valid SQL near `FROM` (line 1, column 19 of the query); without `--file-only`, "
        "Spark checks it" in ended.out
    )
