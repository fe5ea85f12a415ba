"""Good files load with exact notes; bad ones give exactly the problems that are in them."""

from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import UserError
from millstream.spec.loading import FILE_BYTES_MAX, load, load_text
from millstream.spec.problems import PROBLEMS_SHOWN_MAX, SpecError
from millstream_connectors.file.settings import FileSink

PIPELINES = Path(__file__).parent / "pipelines"

HEAD = "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n"
"""Four lines; what is tested begins in line 5."""
IN = "    - {name: in, source: {generator: {}}}\n"
OUT = "    - {name: out, sink: {log: {}}}\n"
EDGE = "  edges: [{from: in, to: out}]\n"


def problems_of(text: str) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        load_text(text, "p.yaml")
    problems = caught.value.problems
    assert all(problem.file == "p.yaml" and problem.expected for problem in problems)
    return [(f"{problem.line}:{problem.column}", problem.path, problem.what) for problem in problems]


def vertices(*lines: str) -> str:
    """A whole file whose vertices are these, from line 6 on, joined in a row."""
    return f"{HEAD}  vertices:\n{''.join(lines)}{EDGE}"


@pytest.mark.parametrize(
    ("name", "order", "notes"),
    [
        ("simple-pipeline", ("in", "cat", "out"), ["spec.vertices[1].scale"]),
        (
            "even-odd",
            ("in", "even-or-odd", "even-sink", "odd-sink", "number-sink"),
            [
                "spec.interStepBufferServiceName",
                "spec.vertices[1].udf.container.imagePullPolicy",
                "spec.vertices[1].udf.container.resources",
            ],
        ),
        (
            "join-on-map",
            ("in-0", "in-1", "cat", "out"),
            ["spec.lifecycle.desiredPhase", "spec.vertices[3].sink.retryStrategy.backoff.steps"],
        ),
        ("cycle", ("in", "input", "retry", "out"), []),
        ("flights", ("flights", "enrich", "all", "hook", "broken"), []),
        (
            "flights-hourly",
            ("flights", "carrier-hours", "moving", "planes", "totals", "out", "rest"),
            ["spec.vertices[1].udf.groupBy.keepInput"],
        ),
        (
            "sum",
            ("in", "compute-sum", "sessions", "total", "out"),
            [
                "spec.vertices[2].udf.groupBy.storage.no_store",
                "spec.vertices[3].partitions",
                "spec.vertices[3].udf.groupBy.window.sliding.slide",
                "spec.vertices[3].udf.groupBy.storage.emptyDir.medium",
            ],
        ),
    ],
)
def test_good_pipelines_load_with_their_notes(name: str, order: tuple[str, ...], notes: list[str]) -> None:
    loaded = load(PIPELINES / f"{name}.yaml")
    assert loaded.graph.order == order
    assert [note.path for note in loaded.notes] == notes
    assert loaded.base_dir == PIPELINES


def test_values_mean_what_the_file_says() -> None:
    pipeline = load(PIPELINES / "flights.yaml").pipeline
    enrich = pipeline.vertex("enrich")
    limits = pipeline.limits_of(enrich)
    assert limits.buffer_max_bytes == 64 << 20, "a merge key brings the pipeline's limits along"
    assert pipeline.concurrency_of(enrich) == 8
    assert limits.buffer_max_length == 1_000_000
    assert limits.usable_length == 800_000
    assert pipeline.spec.watermark.max_delay_s == 86_400
    assert enrich.udf is not None
    assert enrich.udf.retry_strategy.backoff.cap_s == 2.0
    all_sink = pipeline.vertex("all").sink
    assert all_sink is not None
    assert isinstance(all_sink.settings, FileSink)
    assert all_sink.settings.rolling.max_age_s == 60


def test_notes_tell_file_line_and_column() -> None:
    note = load(PIPELINES / "simple-pipeline.yaml").notes[0]
    assert (note.line, note.column) == (13, 7)
    assert str(note) == (
        f"{PIPELINES / 'simple-pipeline.yaml'}:13:7: spec.vertices[1].scale: `scale` has no effect on "
        "`millstream run`; `replicas` says how many replicas it has"
    )


FIELD_CASES = {
    "nothing but a version": (
        "apiVersion: v1\n",
        [
            ("1:1", "kind", "`kind` is missing"),
            ("1:1", "metadata", "`metadata` is missing"),
            ("1:1", "spec", "`spec` is missing"),
            ("1:13", "apiVersion", "'v1' is not allowed"),
        ],
    ),
    "not a mapping": ("- a\n", [("1:1", "", "the file is not a mapping")]),
    "a test case": ("inputs: {}\noutputs: {}\n", [("1:1", "", "the file is a test case, not a pipeline")]),
    "vertices empty": (
        HEAD + "  vertices: []\n",
        [("5:3", "spec.vertices", "the list is empty")],
    ),
    "two kinds of vertex": (
        vertices(IN, "    - name: out\n      sink: {log: {}}\n      udf: {builtin: {name: cat}}\n"),
        [("7:7", "spec.vertices[1]", "a vertex has `udf`, `sink` together")],
    ),
    "no kind of vertex": (
        vertices(IN, "    - name: out\n"),
        [("7:7", "spec.vertices[1]", "a vertex has none of `source`, `udf`, `sink`")],
    ),
    "a kind of vertex that is misspelt": (
        vertices(IN, "    - name: out\n      sinc: {log: {}}\n"),
        [("8:7", "spec.vertices[1].sinc", "unknown field `sinc`")],
    ),
    "an empty sink": (
        vertices(IN, "    - name: out\n      sink:\n        log:\n"),
        [("9:9", "spec.vertices[1].sink.log", "`log` is empty")],
    ),
    "a shape problem beside problems of its fields": (
        vertices("    - name: in\n      source:\n        http: {port: 70000}\n        generator: {rpu: -1}\n", OUT),
        [
            ("7:7", "spec.vertices[0].source", "a source has `generator`, `http` together"),
            ("8:22", "spec.vertices[0].source.http.port", "70000 is out of range"),
            ("9:26", "spec.vertices[0].source.generator.rpu", "-1 is out of range"),
        ],
    ),
    "names": (
        vertices("    - {name: In_put, source: {generator: {}}}\n", OUT).replace("from: in", "from: In_put"),
        [
            ("6:14", "spec.vertices[0].name", "'In_put' is not a valid name"),
            ("8:18", "spec.edges[0].from", "'In_put' is not a valid name"),
        ],
    ),
    "types": (
        vertices(
            IN,
            "    - name: out\n      partitions: '2'\n      replicas: true\n      limits: 5\n"
            "      sink: {file: {path: 7, columns: {}}}\n",
        ),
        [
            ("8:19", "spec.vertices[1].partitions", "'2' has the wrong type"),
            ("9:17", "spec.vertices[1].replicas", "true has the wrong type"),
            ("10:15", "spec.vertices[1].limits", "5 has the wrong type"),
            ("11:27", "spec.vertices[1].sink.file.path", "7 has the wrong type"),
            ("11:30", "spec.vertices[1].sink.file.columns", "a mapping has the wrong type"),
        ],
    ),
    "durations and sizes": (
        HEAD
        + "  limits: {readTimeout: 1 sec, bufferMaxBytes: 5Mib}\n  watermark:\n    maxDelay: -1s\n    idleSource:\n"
        + "      threshold: 1s\n      incrementBy: 2s\n      initSourceDelay: 500ms\n  vertices:\n"
        + IN
        + OUT
        + EDGE,
        [
            ("5:25", "spec.limits.readTimeout", "'1 sec' is not a duration"),
            ("5:48", "spec.limits.bufferMaxBytes", "'5Mib' is not a size in bytes"),
            ("7:15", "spec.watermark.maxDelay", "'-1s' is out of range"),
            ("10:20", "spec.watermark.idleSource.incrementBy", "`incrementBy` is longer than `threshold`"),
            ("11:24", "spec.watermark.idleSource.initSourceDelay", "`initSourceDelay` is shorter than `threshold`"),
        ],
    ),
    "built-ins": (
        vertices(
            IN,
            OUT,
            "    - name: a\n      udf: {builtin: {name: dog}}\n    - name: b\n      udf: {builtin: {kwargs: {}}}\n"
            "    - name: c\n      udf: {builtin: {name: filter, kwargs: {field: x, matches: '('}}}\n"
            "    - name: d\n      udf: {builtin: {name: cat, kwargs: {field: x}}}\n",
        ).replace(
            EDGE,
            "  edges: [{from: in, to: a}, {from: a, to: b}, {from: b, to: c}, {from: c, to: d}, {from: d, to: out}]\n",
        ),
        [
            ("9:29", "spec.vertices[2].udf.builtin.name", "'dog' is not allowed"),
            ("11:13", "spec.vertices[3].udf.builtin.name", "`name` is missing"),
            ("13:65", "spec.vertices[4].udf.builtin.kwargs.matches", "'(' is not a regular expression: "),
            ("15:43", "spec.vertices[5].udf.builtin.kwargs.field", "unknown field `field`"),
        ],
    ),
    "a program": (
        vertices(
            "    - name: in\n      source: {udsource: {python: 'no-module', env: [{name: A}, {name: A}]}}\n",
            "    - name: out\n      sink: {udsink: {container: {image: i}, workingDir: x, timeout: 5s}}\n",
        ),
        [
            ("7:35", "spec.vertices[0].source.udsource.python", "'no-module' does not name a Python function"),
            (
                "9:58",
                "spec.vertices[1].sink.udsink.workingDir",
                "`workingDir` is only for `command` and `python` programs",
            ),
            (
                "9:70",
                "spec.vertices[1].sink.udsink.timeout",
                "`timeout` is only for `command` and `python` programs",
            ),
        ],
    ),
    "files": (
        vertices(
            "    - name: in\n      source:\n        file: {paths: [], format: lines, csv: {header: false}}\n"
            "        eventTime: {field: t, header: h, format: iso}\n",
            "    - name: out\n      sink: {file: {path: o, format: csv, rolling: {maxRecords: 900000}}}\n",
        ),
        [
            ("8:16", "spec.vertices[0].source.file.paths", "the list is empty"),
            ("8:42", "spec.vertices[0].source.file.csv", "the columns have no names"),
            ("9:9", "spec.vertices[0].source.eventTime", "an event time has `field`, `header` together"),
            ("9:50", "spec.vertices[0].source.eventTime.format", "'iso' is not an event time format"),
            ("11:14", "spec.vertices[1].sink.file", "a CSV file needs columns"),
        ],
    ),
    "a file larger than its buffer": (
        vertices(IN, "    - name: out\n      sink: {file: {path: o, rolling: {maxRecords: 900000}}}\n"),
        [
            (
                "8:52",
                "spec.vertices[1].sink.file.rolling.maxRecords",
                "a file needs more records than the buffer (800000 records) can hold",
            )
        ],
    ),
    "replicas": (
        vertices(IN, "    - {name: out, partitions: 2, replicas: 3, sink: {log: {}}}\n"),
        [("7:44", "spec.vertices[1].replicas", "3 replicas cannot share 2 partitions")],
    ),
    "a fallback that is missing, one that is idle": (
        vertices(
            IN,
            "    - {name: out, sink: {log: {}, retryStrategy: {onFailure: fallback}}}\n",
            "    - {name: two, sink: {log: {}, fallback: {blackhole: {}}}}\n",
        ).replace("to: out}", "to: out}, {from: in, to: two}"),
        [
            ("7:62", "spec.vertices[1].sink.retryStrategy.onFailure", "there is no fallback sink"),
            ("8:35", "spec.vertices[2].sink.fallback", "`fallback` has no effect"),
        ],
    ),
    "field problems and graph problems together": (
        vertices(IN, OUT).replace("to: out", "to: outt, onFul: x"),
        [
            ("8:26", "spec.edges[0].to", "there is no vertex `outt`"),
            ("8:32", "spec.edges[0].onFul", "unknown field `onFul`"),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), FIELD_CASES.values(), ids=FIELD_CASES)
def test_problems_of_fields(text: str, expected: list[tuple[str, str, str]]) -> None:
    found = problems_of(text)
    assert [problem[:2] for problem in found] == [problem[:2] for problem in expected]
    for (_, _, what), (_, _, start) in zip(found, expected, strict=True):
        assert what.startswith(start)


NUMAFLOW_CASES = {
    "an accumulator": (
        vertices(
            IN,
            OUT,
            "    - {name: sum, udf: {container: {image: i}, groupBy: {window: {accumulator: {timeout: 1s}}}}}\n",
        ).replace(EDGE, "  edges: [{from: in, to: sum}, {from: sum, to: out}]\n"),
        [("8:67", "spec.vertices[2].udf.groupBy.window.accumulator", "accumulator windows are not supported")],
    ),
    "a source that is not there yet has no further problem": (
        vertices("    - {name: in, source: {serving: {topic: t}}}\n", OUT),
        [("6:27", "spec.vertices[0].source.serving", "the serving source is not supported yet")],
    ),
    "side inputs, limits, phases": (
        HEAD
        + "  sideInputs: []\n  lifecycle: {desiredPhase: Paused, speed: 3}\n"
        + "  limits: {rateLimit: {max: 1}}\n  vertices:\n"
        + IN
        + OUT
        + EDGE,
        [
            ("5:3", "spec.sideInputs", "side inputs are not supported yet"),
            ("6:29", "spec.lifecycle.desiredPhase", "`desiredPhase: Paused` is not supported yet"),
            ("6:37", "spec.lifecycle.speed", "unknown field `speed`"),
            ("7:12", "spec.limits.rateLimit", "rate limits are not supported yet"),
        ],
    ),
    "secrets and onSuccess": (
        vertices(
            IN,
            "    - name: out\n      sink:\n        onSuccess: {log: {}}\n        udsink:\n"
            "          container: {image: i, env: [{name: A, valueFrom: {}}]}\n",
        ),
        [
            ("9:9", "spec.vertices[1].sink.onSuccess", "onSuccess sinks are not supported yet"),
            (
                "11:49",
                "spec.vertices[1].sink.udsink.container.env[0].valueFrom",
                "this kind of `valueFrom` is not supported yet",
            ),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), NUMAFLOW_CASES.values(), ids=NUMAFLOW_CASES)
def test_what_numaflow_has_and_we_do_not(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert problems_of(text) == expected


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("readBatchsize", "did you mean `readBatchSize`?"),
        ("read_batch_size", "did you mean `readBatchSize`?"),
        ("buffer-usage-limit", "did you mean `bufferUsageLimit`?"),
        ("ratelimit", "did you mean `rateLimit`?"),
        ("zzz", "one of readBatchSize, readTimeout, bufferMaxLength, bufferMaxBytes, bufferUsageLimit, concurrency"),
    ],
)
def test_unknown_fields_suggest_the_nearest(written: str, suggested: str) -> None:
    text = vertices(IN, OUT) + f"  limits: {{{written}: 3}}\n"
    with pytest.raises(SpecError) as caught:
        load_text(text, "p.yaml")
    (problem,) = caught.value.problems
    assert (problem.path, problem.expected) == (f"spec.limits.{written}", suggested)


def test_a_missing_field_says_what_it_is() -> None:
    with pytest.raises(SpecError) as caught:
        load_text(vertices(IN, OUT).replace("{from: in, to: out}", "{to: out}"), "p.yaml")
    assert [str(problem) for problem in caught.value.problems] == [
        "p.yaml:8:11: spec.edges[0].from: `from` is missing (expected: `from`: The vertex that writes) [MS-2205]"
    ]


AMBIGUOUS = "YAML parsers disagree on the meaning of"
YAML_CASES = {
    "repeated key": (
        vertices(IN, OUT) + "  edges: []\n",
        [("9:3", "spec.edges", "`edges` appears twice; the first is in line 8")],
    ),
    "a tag and a key that is a number": (
        vertices(IN, OUT) + "  limits: {1: 2}\n  watermark: !mine {}\n",
        [
            ("9:12", "spec.limits", "a key is not a text"),
            ("10:14", "spec.watermark", "the tag `!mine` is not supported"),
        ],
    ),
    "a binary": (
        vertices("    - {name: in, source: {generator: {valueBlob: !!binary aGk=}}}\n", OUT),
        [("6:50", "spec.vertices[0].source.generator.valueBlob", "`!!binary aGk=` is not supported")],
    ),
    "empty": ("", [("1:1", "", "the file is empty")]),
    "comments only": ("# nothing\n", [("1:1", "", "the file is empty")]),
    "two documents": (vertices(IN, OUT) + "---\na: 1\n", [("10:1", "", "the file has 2 YAML documents")]),
    "an unknown alias": ("a: *b\n", [("1:4", "", "not YAML: found undefined alias 'b'")]),
    "an alias inside itself": (
        "a: &a [*a]\n",
        [("1:4", "a" + "[0]" * 15 + "...", "the document expands to too many values")],
    ),
    "an octal, or not": (
        vertices("    - {name: in, source: {generator: {rpu: 0100, records: 1_000}}}\n", OUT),
        [
            ("6:44", "spec.vertices[0].source.generator.rpu", f"{AMBIGUOUS} `0100`"),
            ("6:59", "spec.vertices[0].source.generator.records", f"{AMBIGUOUS} `1_000`"),
        ],
    ),
    "nested without end": ("[" * 1000, [("1:1", "", "the values are nested too deeply")]),
    "a tab": (
        "a:\n\tb: 1\n",
        [("2:1", "", "not YAML: found character '\\t' that cannot start any token, while scanning for the next token")],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), YAML_CASES.values(), ids=YAML_CASES)
def test_problems_of_the_text(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert problems_of(text) == expected


@pytest.mark.slow
def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    ((_, _, what),) = problems_of("\n".join(lines))
    assert what == "the document expands to too many values"


@pytest.mark.slow
def test_of_very_many_problems_the_first_are_printed() -> None:
    many = "".join(f"    - {{name: v{number}, sunk: 1}}\n" for number in range(300))
    with pytest.raises(SpecError) as caught:
        load_text(vertices(IN, OUT, many), "p.yaml")
    assert len(caught.value.problems) == 300
    lines = str(caught.value).splitlines()
    assert len(lines) == PROBLEMS_SHOWN_MAX + 1
    assert lines[-1].startswith(f"... and {len(caught.value.problems) - PROBLEMS_SHOWN_MAX} more problems")


def test_a_secret_in_the_file_is_noted() -> None:
    sink = "    - {name: out, sink: {http: {url: 'https://h/', headers: {X-Api-Key: abc, X-Team: t}}}}\n"
    assert [note.path for note in load_text(vertices(IN, sink), "p.yaml").notes] == [
        "spec.vertices[1].sink.http.headers.X-Api-Key"
    ]


def test_a_last_document_mark_is_no_second_document() -> None:
    assert load_text("---\n" + vertices(IN, OUT) + "---\n", "p.yaml").pipeline.name == "p"


def problem_of_file(path: Path) -> tuple[int, int, str]:
    with pytest.raises(SpecError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    return problem.line, problem.column, problem.what


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin, large = tmp_path / "latin.yaml", tmp_path / "large.yaml"
    latin.write_bytes("a: 1\nb: \xe4\n".encode("latin-1"))
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    assert problem_of_file(tmp_path) == (0, 0, "this is a directory")
    assert problem_of_file(tmp_path / "none.yaml") == (0, 0, "there is no such file")
    assert problem_of_file(latin) == (2, 4, "the text is not UTF-8")
    assert problem_of_file(large) == (0, 0, "the file is too large")


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(vertices(IN, OUT), encoding="utf-8-sig")
    assert load(file).pipeline.name == "p"


def test_the_error_is_the_users_and_lists_every_problem() -> None:
    with pytest.raises(UserError) as caught:
        load_text(vertices(IN, OUT).replace("in, to: out", "a, to: b"), "p.yaml")
    assert caught.value.exit_code == 2
    assert caught.value.code is codes.NO_SUCH_VERTEX
    assert str(caught.value).splitlines() == [
        "p.yaml:8:18: spec.edges[0].from: there is no vertex `a` (expected: one of in, out) [MS-2214]",
        "p.yaml:8:25: spec.edges[0].to: there is no vertex `b` (expected: one of in, out) [MS-2214]",
    ]
