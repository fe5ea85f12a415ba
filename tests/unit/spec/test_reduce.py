"""Reduces as users write them: what each field may say, and what of it reaches the other parts."""

import json
from typing import Any

import pytest

from millstream import retry
from millstream.record import BufferId, LaneId
from millstream.spec.graph import Graph
from millstream.spec.loading import load, load_text
from millstream.spec.models import GroupBy, Pipeline, Spark
from millstream.spec.problems import SpecError
from tests.unit.spec.test_graph import IN, MAP, OUT, arrow, pipeline
from tests.unit.spec.test_loading import HEAD, PIPELINES, problems_of

FIXED: dict[str, Any] = {"window": {"fixed": {"length": "60s"}}}


def reduce_of(program: str, group_by: str = "{window: {fixed: {length: 60s}}}", more: str = "") -> str:
    """A file whose reduce is in line 7; its udf begins in column 24, its program in column 25."""
    return (
        f"{HEAD}  vertices:\n    - {{name: in, source: {{generator: {{}}}}}}\n"
        f"    - {{name: sum, udf: {{{program}, groupBy: {group_by}}}}}\n    - {{name: out, sink: {{log: {{}}}}}}\n"
        f"  edges: [{{from: in, to: sum}}, {{from: sum, to: out}}]\n{more}"
    )


def fields(**group_by: str) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in group_by.items()) + "}"


UDF = "spec.vertices[1].udf"
GROUP = f"{UDF}.groupBy"
WINDOW = f"{GROUP}.window"

CASES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "an empty groupBy": (reduce_of("python: a:f", ""), [(GROUP, "`groupBy` is empty")]),
    "no window": (reduce_of("python: a:f", "{keyed: true}"), [(f"{GROUP}.window", "`window` is missing")]),
    "an empty window": (
        reduce_of("python: a:f", "{window: {}}"),
        [(WINDOW, "a window has none of `fixed`, `sliding`, `session`, `global`")],
    ),
    "two windows": (
        reduce_of("python: a:f", "{window: {fixed: {length: 1s}, session: {timeout: 1s}}}"),
        [(WINDOW, "a window has `fixed`, `session` together")],
    ),
    "windows of no length": (
        reduce_of("python: a:f", "{window: {sliding: {length: 0s, slide: 10us}}}"),
        [(f"{WINDOW}.sliding.length", "the duration is too short"), (f"{WINDOW}.sliding.slide", "the duration is too")],
    ),
    "a session of negative length": (
        reduce_of("python: a:f", "{window: {session: {timeout: -1s}}}"),
        [(f"{WINDOW}.session.timeout", "'-1s' is out of range")],
    ),
    "too many windows": (
        reduce_of("python: a:f", "{window: {sliding: {length: 24h, slide: 1s}}}"),
        [(f"{WINDOW}.sliding.slide", "each record would be in 86,400 windows")],
    ),
    "too many parts": (
        reduce_of("python: a:f", "{window: {sliding: {length: 1h, slide: 59m59.999s}}}"),
        [
            (
                f"{WINDOW}.sliding.slide",
                "a window would consist of 3,600,000 parts",
            )
        ],
    ),
    "a trigger that is none": (
        reduce_of("python: a:f", "{window: {global: {trigger: {}, streaming: true}}}"),
        [
            (f"{WINDOW}.global.trigger", "a trigger has none of `count`, `every`"),
            (f"{WINDOW}.global.streaming", "unknown field `streaming`"),
        ],
    ),
    "early results of a window that gives none": (
        reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", early="{every: 1s}")),
        [(f"{GROUP}.early", "`early` has no effect without `streaming: true`")],
    ),
    "early results twice": (
        reduce_of(
            "python: a:f", fields(window="{fixed: {length: 1s, streaming: true}}", early="{every: 1s, count: 1}")
        ),
        [(f"{GROUP}.early", "early has `every`, `count` together")],
    ),
    "storage twice": (
        reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", storage="{emptyDir: {}, no_store: {}}")),
        [(f"{GROUP}.storage", "storage has `emptyDir`, `no_store` together")],
    ),
    "neither storage nor input": (
        reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", storage="{no_store: {}}", keepInput="false")),
        [(f"{GROUP}.keepInput", "without storage, the windows exist only in the input")],
    ),
    "an input that is not enough": (
        reduce_of("python: a:f", fields(window="{global: {trigger: {count: 5}}}", keepInput="true")),
        [(f"{GROUP}.keepInput", "a window with a count trigger cannot be rebuilt from its input")],
    ),
    "an input that is not enough, and nothing else": (
        reduce_of("python: a:f", fields(window="{global: {trigger: {count: 5}}}", storage="{no_store: {}}")),
        [(f"{GROUP}.storage.no_store", "a window with a count trigger cannot be rebuilt from its input")],
    ),
    "a policy for late records that is none": (
        reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", onLate="ignore")),
        [(f"{GROUP}.onLate", "'ignore' is not allowed")],
    ),
    "no program": (
        reduce_of("retryStrategy: {}"),
        [(UDF, "a UDF with `groupBy` has none of `sql`, `python`, `command`, `container`, `address`")],
    ),
    "two programs": (
        reduce_of("python: a:f, address: 'h:1'"),
        [(UDF, "a UDF with `groupBy` has `python`, `address` together")],
    ),
    "a built-in": (
        reduce_of("builtin: {name: cat}"),
        [(f"{UDF}.builtin", "a built-in processes records, not windows")],
    ),
    "settings of maps": (
        reduce_of("python: a:f, concurrency: 2, timeout: 5s, startTimeout: 2m, env: [{name: A, value: b}]"),
        [
            (
                f"{UDF}.concurrency",
                "`concurrency` has no effect in a reduce: Spark computes as many windows at once as it has tasks",
            ),
            (f"{UDF}.timeout", "`timeout` has no effect in a reduce: Spark's tasks call the function"),
            (f"{UDF}.startTimeout", "`startTimeout` has no effect: the function runs inside Spark's Python workers"),
            (f"{UDF}.env", "`env` has no effect: the function runs inside Spark's Python workers"),
        ],
    ),
    "settings of processes": (
        reduce_of("sql: {query: SELECT 1 FROM window}, workingDir: x"),
        [(f"{UDF}.workingDir", "`workingDir` is only for `command` and `python` programs")],
    ),
    "addresses": (
        reduce_of("address: localhost"),
        [(f"{UDF}.address", "'localhost' is not an address")],
    ),
    "a relative socket": (reduce_of("address: 'unix:a.sock'"), [(f"{UDF}.address", "'unix:a.sock' is not an address")]),
    "a port beyond all": (reduce_of("address: 'h:70000'"), [(f"{UDF}.address", "'h:70000' is not an address")]),
    "an empty query": (reduce_of("sql: {query: ' '}"), [(f"{UDF}.sql.query", "the text is empty")]),
    "values without columns": (
        reduce_of("sql: {query: q, value: {}}"),
        [(f"{UDF}.sql.value", "`json` values need `fields`")],
    ),
    "values with settings of others": (
        reduce_of("sql: {query: q, value: {format: avro, avroSchema: '{}', fields: n INT, delimiter: ;;}}"),
        [
            (f"{UDF}.sql.value.fields", "`fields` has no effect on `avro` values"),
            (f"{UDF}.sql.value.delimiter", "`delimiter` has no effect on `avro` values"),
            (f"{UDF}.sql.value.delimiter", "';;' is not a single character"),
        ],
    ),
    "a schema that is not JSON": (
        reduce_of("sql: {query: q, value: {format: avro, avroSchema: '{'}}"),
        [(f"{UDF}.sql.value.avroSchema", "the schema is not JSON: ")],
    ),
    "a format there is not": (
        reduce_of("sql: {query: q, value: {format: xml}}"),
        [(f"{UDF}.sql.value.format", "'xml' is not allowed")],
    ),
    "several partitions without keys": (
        reduce_of("python: a:f").replace("name: sum", "name: sum, partitions: 2"),
        [("spec.vertices[1].partitions", "a reduce that is not keyed has one partition")],
    ),
    "a small storage": (
        reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", storage="{emptyDir: {sizeLimit: 255Mi}}")),
        [(f"{GROUP}.storage.emptyDir.sizeLimit", "the storage is too small for the logs of 1 lane")],
    ),
    "no watermarks": (
        reduce_of("python: a:f", more="  watermark: {disabled: true}\n"),
        [("spec.watermark.disabled", "without watermarks, the windows of a reduce never close")],
    ),
    "two Sparks": (
        reduce_of("python: a:f", more="  spark: {master: 'local[2]', remote: 'sc://h:1', driverMemory: 1Gi}\n"),
        [
            ("spec.spark", "spark has `master`, `remote` together"),
            ("spec.spark.driverMemory", "`driverMemory` is only for a driver that is started here"),
        ],
    ),
    "Sparks that are none": (
        reduce_of("python: a:f", more="  spark: {master: 'local[x]', remote: 'http://h'}\n"),
        [
            ("spec.spark", "spark has `master`, `remote` together"),
            ("spec.spark.master", "'local[x]' is not a Spark master"),
            ("spec.spark.remote", "'http://h' is not a Spark Connect address"),
        ],
    ),
    "settings of Spark": (
        reduce_of(
            "python: a:f",
            more="  spark: {driverMemory: 300Mi, conf: {spark.master: yarn, sql.ansi: 1, spark.x: [1]}}\n",
        ),
        [("spec.spark.conf.spark.x", "a list has the wrong type")],
    ),
    "settings of Spark, read": (
        reduce_of("python: a:f", more="  spark: {driverMemory: 300Mi, conf: {spark.master: yarn, sql.ansi: 1}}\n"),
        [
            ("spec.spark.driverMemory", "Spark does not start with such a small heap"),
            ("spec.spark.conf.spark.master", "`spark.master` has no effect: there is a field for it"),
            ("spec.spark.conf.sql.ansi", "`sql.ansi` is not a Spark setting"),
        ],
    ),
    "an edge named like the windows' input": (
        reduce_of("python: a:f").replace("{from: in, to: sum}", "{from: in, to: sum, name: window}"),
        [("spec.edges[0].name", "the edge name 'window' is reserved")],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_problems_of_reduces(text: str, expected: list[tuple[str, str]]) -> None:
    found = [(path, what) for _, path, what in problems_of(text)]
    assert [path for path, _ in found] == [path for path, _ in expected]
    for (_, what), (_, start) in zip(found, expected, strict=True):
        assert what.startswith(start)


def test_a_map_has_no_program_of_reduces() -> None:
    text = reduce_of("sql: {query: q}, address: 'h:1'").replace(", groupBy: {window: {fixed: {length: 60s}}}", "")
    assert [(path, what) for _, path, what in problems_of(text)] == [
        (f"{UDF}.sql", "`sql` computes windows, and the vertex has no windows"),
    ]


def reduce(**group_by: Any) -> dict[str, Any]:
    return {"udf": {"python": "a:f", "groupBy": {**FIXED, **group_by}}}


SHAPES: dict[str, tuple[dict[str, dict[str, Any]], list[dict[str, Any]], list[tuple[str, str]]]] = {
    "a reduce that reads itself": (
        {"in": IN, "r": reduce(), "out": OUT},
        [arrow("in>r"), arrow("r>r"), arrow("r>out")],
        [("spec.vertices[1]", "`r` is a reduce in a cycle, where no window can close")],
    ),
    "a reduce in a cycle, which its late records close": (
        {"in": IN, "r": reduce(onLate="edge"), "m": MAP, "out": OUT},
        [arrow("in>r"), arrow("r>out"), arrow("r>m", kind="late"), arrow("m>r")],
        [("spec.vertices[1]", "`r` is a reduce in a cycle, where no window can close")],
    ),
    "dead letters that come back are named once": (
        {"in": IN, "r": reduce(), "out": OUT},
        [arrow("in>r"), arrow("r>out"), arrow("r!r")],
        [("spec.edges[2]", "dead letters of `r` would come back to it")],
    ),
    "late records of a map and of a source": (
        {"in": IN, "m": MAP, "out": OUT},
        [arrow("in>m"), arrow("m>out"), arrow("m>out", kind="late"), arrow("in>out", kind="late")],
        [
            ("spec.edges[2].kind", "`m` is not a reduce and has no late records"),
            ("spec.edges[3].kind", "`in` is not a reduce and has no late records"),
        ],
    ),
    "late records that are dropped": (
        {"in": IN, "r": reduce(), "out": OUT},
        [arrow("in>r"), arrow("r>out"), arrow("r>out", kind="late")],
        [("spec.edges[2].kind", "`r` drops its late records")],
    ),
    "late records without an edge": (
        {"in": IN, "r": reduce(onLate="edge"), "out": OUT},
        [arrow("in>r"), arrow("r>out")],
        [("spec.vertices[1].udf.groupBy.onLate", "`r` has no late edge")],
    ),
    "late records alone": (
        {"in": IN, "r": reduce(onLate="edge"), "out": OUT},
        [arrow("in>r"), arrow("r>out", kind="late")],
        [("spec.vertices[1]", "`r` has no output")],
    ),
    "dead letters of windows without an edge": (
        {
            "in": IN,
            "r": {"udf": {"python": "a:f", "groupBy": FIXED, "retryStrategy": {"onFailure": "deadLetter"}}},
            "out": OUT,
        },
        [arrow("in>r"), arrow("r>out")],
        [("spec.vertices[1].udf.retryStrategy.onFailure", "`r` has no dead-letter edge")],
    ),
    "dead letters of windows that never come": (
        {
            "in": IN,
            "r": {"udf": {"python": "a:f", "groupBy": FIXED, "retryStrategy": {"onFailure": "stop"}}},
            "out": OUT,
        },
        [arrow("in>r"), arrow("r>out"), arrow("r!out")],
        [("spec.edges[2].kind", "`r` has no dead letters")],
    ),
}


@pytest.mark.parametrize(("vertices", "edges", "expected"), SHAPES.values(), ids=SHAPES)
def test_problems_of_shapes_with_reduces(
    vertices: dict[str, dict[str, Any]], edges: list[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    with pytest.raises(SpecError) as caught:
        Graph.of(pipeline(vertices, edges))
    assert [(problem.path, problem.what) for problem in caught.value.problems] == expected


def test_a_late_edge_takes_every_late_record() -> None:
    text = reduce_of("python: a:f", fields(window="{fixed: {length: 1s}}", onLate="edge")).replace(
        "to: out}]", "to: out}, {from: sum, to: out, kind: late, conditions: {tags: {values: [a]}}}]"
    )
    assert [(path, what) for _, path, what in problems_of(text)] == [
        ("spec.edges[2].conditions", "a late edge takes every late record of its vertex")
    ]


def test_a_reduce_has_a_lane_for_each_partition_which_reads_every_edge() -> None:
    vertices = {
        "in": IN,
        "m": MAP,
        "r": {**reduce(keyed=True, onLate="edge"), "partitions": 3, "replicas": 2},
        "out": OUT,
    }
    edges = [arrow("in>m"), arrow("in>r"), arrow("m>r"), arrow("r>out"), arrow("r!out"), arrow("r>out", kind="late")]
    graph = Graph.of(pipeline(vertices, edges))
    assert [vertex.name for vertex in graph.reduces] == ["r"]
    assert [edge.name for edge in graph.edges_of("r", "data")] == ["r-out"]
    assert [edge.name for edge in graph.edges_of("r", "late")] == ["r-out-late"]
    assert [edge.name for edge in graph.edges_of("r", "deadLetter")] == ["r-out-dead-letter"]
    assert graph.owned_lanes("r", 0) == (LaneId("r", "window", 0), LaneId("r", "window", 2))
    assert graph.inputs_of(LaneId("r", "window", 2)) == (BufferId("in-r", 2), BufferId("m-r", 2))
    assert graph.upstream_lanes(BufferId("r-out-late", 0)) == graph.lanes_of("r")
    policy = graph.retry_policy("r")
    assert policy is not None
    assert policy.on_failure is retry.OnFailure.DEAD_LETTER


def group_by(**written: Any) -> GroupBy:
    return GroupBy.model_validate({**FIXED, **written})


def test_what_a_reduce_keeps() -> None:
    assert not group_by().keeps_input
    assert group_by(keepInput=True).keeps_input
    assert group_by(storage={"no_store": {}}).keeps_input
    assert group_by(storage={"no_store": {}}).log_bytes_max(3, 2) is None
    assert group_by().log_bytes_max(1, 1) is None
    assert group_by(storage={"emptyDir": {}}).log_bytes_max(1, 1) is None
    assert group_by(storage={"emptyDir": {"sizeLimit": "1Gi"}}).log_bytes_max(1, 1) == 1 << 30
    assert group_by(storage={"persistentVolumeClaim": {}}).log_bytes_max(3, 2) == 10 << 30, "one replica has two lanes"


def test_when_early_results_are_given() -> None:
    streaming = {"window": {"session": {"timeout": "1s", "streaming": True}}}
    assert group_by().early_results is None
    early = group_by(**streaming).early_results
    assert early is not None
    assert early.every_s == 10.0
    counted = group_by(**streaming, early={"count": 7}).early_results
    assert counted is not None
    assert (counted.every_s, counted.count) == (None, 7)
    assert group_by(window={"global": {"trigger": {"count": 1}}}).early_results is None


@pytest.mark.parametrize(
    "master",
    [
        "local", "local[*]", "local[2]", "local[2,4]", "local[*, 4]", "local-cluster[2, 1, 1024]", "yarn",
        "spark://host:7077,other:7077", "k8s://https://host:6443",
    ],
)  # fmt: skip
def test_masters_are_spark_s(master: str) -> None:
    assert Spark.model_validate({"master": master}).master == master


def test_settings_of_spark_are_texts() -> None:
    conf = {"spark.a": True, "spark.b": 4, "spark.c": 0.5, "spark.d": "x"}
    spark = Spark.model_validate({"remote": "sc://host:15002/;use_ssl=true", "conf": conf})
    assert spark.conf == {"spark.a": "true", "spark.b": "4", "spark.c": "0.5", "spark.d": "x"}


def test_notes_on_reduces() -> None:
    text = reduce_of(
        "command: [x]",
        fields(window="{global: {trigger: {count: 5}, accumulate: true}}", allowedLateness="1s"),
    ).replace("{from: in, to: sum}", "{from: in, to: m}, {from: m, to: m}, {from: m, to: sum}")
    text = text.replace("  vertices:\n", "  vertices:\n    - {name: m, udf: {python: 'a:f'}}\n")
    notes = load_text(text, "p.yaml").notes
    here = "spec.vertices[2]"
    assert [note.path for note in notes] == [
        here,
        f"{here}.udf.groupBy.window.global.accumulate",
        f"{here}.udf.groupBy.allowedLateness",
    ]
    kept = reduce_of("python: a:f", fields(window="{session: {timeout: 1s}}", storage="{no_store: {}}"))
    (note,) = load_text(kept, "p.yaml").notes
    assert note.path == "spec.vertices[1].udf.groupBy.storage.no_store"
    (note,) = load_text(f"{HEAD}  spark: {{}}\n{MAPS}", "p.yaml").notes
    assert (note.path, note.what) == ("spec.spark", "`spark` has no effect in a pipeline without a reduce")


MAPS = (
    "  vertices: [{name: in, source: {generator: {}}}, {name: out, sink: {log: {}}}]\n  edges: [{from: in, to: out}]\n"
)


def test_a_result_that_never_comes_is_noted() -> None:
    text = reduce_of("python: a:f", "{window: {global: {}}}")
    (note,) = load_text(text, "p.yaml").notes
    assert note.what == "without a `trigger` the result comes when every source has ended, but `in` never ends"
    assert load_text(text.replace("generator: {}", "generator: {records: 5}"), "p.yaml").notes == ()


def test_numaflow_s_rule_for_partitions_is_numaflow_s_alone() -> None:
    text = (PIPELINES / "sum.yaml").read_text()
    assert load_text(text, "p.yaml").pipeline.vertex("total").partitions == 1
    ours = text.replace("numaflow.numaproj.io/v1alpha1", "millstream.io/v1alpha1")
    assert [path for _, path, _ in problems_of(ours)] == ["spec.vertices[3].partitions"]


def test_a_reduce_survives_json() -> None:
    written = load(PIPELINES / "flights-hourly.yaml").pipeline
    assert Pipeline.model_validate(json.loads(json.dumps(written.as_written(given_only=True)))) == written
