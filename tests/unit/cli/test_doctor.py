"""`millstream doctor` on real machines that lack something: what it finds, what it advises, its exit code."""

from __future__ import annotations

import io
import json
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path

import psutil
import pytest

from millstream.spec.loading import load
from millstream_runner.cli.main import main
from millstream_runner.doctor import machine, parts
from millstream_runner.doctor.checks import CheckState, Finding, Needs
from millstream_runner.doctor.needs import needs_of
from tests.support.widths import fits

pytestmark = pytest.mark.process
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 5}}}
    - {name: out, sink: {log: {}}}
  edges:
    - {from: in, to: out}
"""
REDUCE = PIPELINE.replace(
    "  edges:\n    - {from: in, to: out}\n",
    "    - {name: r, udf: {groupBy: {window: {fixed: {length: 1m}}}, sql: {query: SELECT count(*) AS n FROM window}}}\n"
    "  edges: [{from: in, to: r}, {from: r, to: out}]\n",
)


Check = Callable[[Needs], Iterator[Finding]]


def looked(check: Check, needs: Needs) -> dict[str, Finding]:
    """What a check finds, by name."""
    found = {finding.name: finding for finding in check(needs)}
    for finding in found.values():
        assert finding.needed_for
        assert (finding.state is CheckState.OK) is (not finding.remedy), finding
    return found


def of_none(directory: Path) -> Needs:
    return Needs(pipeline=False, directory=directory)


def of_pipeline(directory: Path, text: str) -> Needs:
    (directory / "p.yaml").write_text(text)
    return needs_of(load(directory / "p.yaml"), directory / "data")


@pytest.mark.sweep
def test_a_machine_with_everything_is_ready_and_every_extra_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data-dir", str(tmp_path / "data")]) == 0
    text = capsys.readouterr().out
    assert "ok         Python: 3." in text
    assert "           for everything" in text
    assert text.splitlines()[-1].startswith("ready")
    assert [line for line in text.splitlines() if not fits(line)] == []
    named = {line[11:].partition(":")[0] for line in text.splitlines() if line[:1] not in ("", " ")}
    assert {"Python", "Data disk", "Disk space", "Memory", "Open files", "Ports", "Broker", "Terminal"} <= named
    assert {"millstream[reduce]", "millstream-udf[typed]", "Go"} <= named
    found = {requirement.partition("extra == ")[2].strip("\"' )") for requirement in requires("millstream") or ()}
    # `typed` is the SDK's, and `demo` is for the examples of this repository.
    assert {f"millstream[{extra}]" for extra in found - {"", "typed", "demo"}} <= named
    assert list(tmp_path.iterdir()) == []


def test_of_a_pipeline_it_looks_at_what_that_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["doctor", "-o", "json", str(tmp_path / "p.yaml"), "--data-dir", str(tmp_path / "data")]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in answer["checks"]}
    assert answer["ready"] is True
    assert not {"Java", "Go", "Sandbox", "millstream[reduce]", "millstream[arrow]"} & set(found)
    assert "the pipeline reserves" in found["Disk space"]["found"]
    assert set(found["Python"]) == {"name", "state", "found", "needed_for", "remedy"}


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false"])
def test_what_is_missing_is_the_exit_code(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    monkeypatch.setenv("MILLSTREAM_NATS_SERVER", program)
    assert main(["doctor", str(tmp_path / "p.yaml"), "--data-dir", str(tmp_path / "data")]) == 4
    text = capsys.readouterr().out
    assert "missing    Broker: " in text
    assert "to do: `millstream explain MS-41" in text
    assert " ".join(text.split()).endswith(f"not ready for {tmp_path / 'p.yaml'}: Broker (see above)")


def test_a_java_that_is_not_there_is_missing_where_there_is_a_reduce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    java = looked(parts.spark, of_pipeline(tmp_path, REDUCE))["Java"]
    assert java.state is CheckState.MISSING
    assert "JAVA_HOME is /nonexistent" in java.found
    assert looked(parts.spark, of_none(tmp_path))["Java"].state is CheckState.OPTIONAL


def test_a_cache_of_spark_that_was_not_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    cache = looked(parts.spark, of_pipeline(tmp_path, REDUCE))["Spark's cache"]
    assert cache.state is CheckState.WARNING
    assert "millstream spark prepare" in cache.remedy


def test_a_port_that_is_taken_is_missing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        source = f"http: {{port: {port}, allowUnauthenticated: true}}"
        needs = of_pipeline(tmp_path, PIPELINE.replace("generator: {records: 5}", source))
        assert looked(machine.ports, needs)[f"Port {port}"].state is CheckState.MISSING
    assert looked(machine.ports, needs)[f"Port {port}"].state is CheckState.OK


def test_a_disk_that_is_too_small_is_missing(tmp_path: Path) -> None:
    needs = of_pipeline(tmp_path, PIPELINE.replace("spec:\n", "spec:\n  limits: {bufferMaxBytes: 900Ti}\n"))
    assert looked(machine.disk, needs)["Disk space"].state is CheckState.MISSING


def test_a_place_that_cannot_hold_data_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    needs = of_none(tmp_path / "file" / "data")
    assert looked(machine.disk, needs)["Data disk"].state is CheckState.MISSING
    assert looked(parts.broker, needs)["Broker"].state is CheckState.MISSING


def test_a_disk_that_goes_with_the_machine_is_a_warning() -> None:
    shared = [part for part in psutil.disk_partitions(all=True) if part.mountpoint == "/dev/shm"]
    if not shared or shared[0].fstype != "tmpfs":
        pytest.skip("this machine has no tmpfs at /dev/shm")
    found = looked(machine.disk, of_none(Path("/dev/shm/millstream-doctor-test")))["Data disk"]
    assert found.state is CheckState.WARNING
    assert "gone when the machine restarts" in found.found


def test_limits_of_the_shell_are_warnings(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        found = looked(machine.limits, of_none(tmp_path))["Open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (found.state, found.found) == (CheckState.WARNING, "at most 200")
    assert "ulimit -n 1024" in found.remedy


def test_a_directory_of_sockets_with_too_long_a_name_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    found = looked(machine.temporary, of_none(tmp_path))["Temporary files"]
    assert found.state is CheckState.MISSING
    assert "TMPDIR" in found.found


def test_an_encoding_that_shows_little_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert looked(machine.terminal, of_none(tmp_path))["Terminal"].state is CheckState.WARNING


def test_a_compiler_is_needed_where_a_function_lies_in_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go.mod").write_text("module x\n")
    udf = "    - {name: m, udf: {command: [./program]}}\n"
    edges = "  edges: [{from: in, to: m}, {from: m, to: out}]\n"
    needs = of_pipeline(tmp_path, PIPELINE.replace("  edges:\n    - {from: in, to: out}\n", udf + edges))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert looked(parts.go, needs)["Go"].state is CheckState.MISSING
    assert looked(parts.go, of_none(tmp_path))["Go"].state is CheckState.OPTIONAL
    (tmp_path / "go.mod").unlink()
    assert looked(parts.go, of_pipeline(tmp_path, (tmp_path / "p.yaml").read_text())) == {}


def test_extras_are_looked_at_only_where_they_are_needed(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("@udf.map(arrow=True)\ndef f(batch): ...\n")
    udf = "    - {name: m, udf: {python: 'f.py:f', state: {store: disk}}}\n"
    edges = "  interStepBuffer: {redis: {}}\n  edges: [{from: in, to: m}, {from: m, to: out}]\n"
    needs = of_pipeline(tmp_path, PIPELINE.replace("  edges:\n    - {from: in, to: out}\n", udf + edges))
    assert set(looked(parts.extras, needs)) == {"millstream[arrow]", "millstream[disk]", "millstream[redis]"}
    assert needs.lacking(needs.spark) is CheckState.OPTIONAL


@pytest.mark.parametrize(
    ("kafka", "sink", "extras"),
    [
        (True, "log: {}", {"millstream[kafka]"}),
        (False, "redisStreams: {url: 'redis://127.0.0.1', stream: s}", {"millstream[redis]"}),
        (False, "rabbitmq: {url: 'amqp://127.0.0.1', routingKey: q}", {"millstream[rabbitmq]"}),
        (False, "pulsar: {serverAddr: 'pulsar://127.0.0.1', topic: t}", {"millstream[pulsar]"}),
        (False, "sql: {url: 'sqlite:///shop.db', table: t}", {"millstream[sql]"}),
        (
            False,
            "bigquery: {endpoint: 'http://127.0.0.1:1', project: p, dataset: d, table: t}",
            {"millstream[bigquery]"},
        ),
        (False, "sqs: {queueUrl: 'http://127.0.0.1/1/q'}", {"millstream[sqs]"}),
        (False, "opensearch: {url: 'http://127.0.0.1:1', index: i}", set()),
        (
            False,
            "opensearch: {url: 'http://127.0.0.1:1', index: i, auth: {aws: {region: r, service: es}}}",
            {"millstream[aws]"},
        ),
        (
            False,
            "iceberg: {catalog: {rest: 'http://127.0.0.1:1', aws: {region: r, service: glue}}, table: a.b}",
            {"millstream[aws]", "millstream[iceberg]"},
        ),
        (False, "pubsub: {project: p, topic: orders}", {"millstream[pubsub]"}),
        (False, "mqtt: {url: 'mqtt://127.0.0.1', topic: t}", {"millstream[mqtt]"}),
        (False, "file: {path: out, format: parquet}", {"millstream[arrow]"}),
        (False, "delta: {path: out}", {"millstream[delta]"}),
        (False, "nats: {url: 'nats://h', subject: s, auth: {nkey: {env: N}}}", {"millstream[nkeys]"}),
        (False, "jetstream: {url: 'nats://h', subject: s, auth: {creds: c}}", {"millstream[nkeys]"}),
        (False, "file: {path: out, format: avro, columns: [{name: n}]}", {"millstream[objects]"}),
        (False, "file: {path: 's3://bucket/out', format: jsonl}", {"millstream[objects]"}),
    ],
)
def test_what_its_sources_and_sinks_need_is_looked_at(tmp_path: Path, kafka: bool, sink: str, extras: set[str]) -> None:
    text = PIPELINE.replace("log: {}", sink)
    if kafka:
        text = text.replace("generator: {records: 5}", "kafka: {brokers: ['127.0.0.1:9092'], topic: t}")
    assert set(looked(parts.extras, of_pipeline(tmp_path, text))) == extras


@pytest.mark.parametrize("name", ["format", "keyFormat"])
def test_what_the_format_of_a_source_needs_is_looked_at(tmp_path: Path, name: str) -> None:
    source = (
        "kafka: {brokers: ['127.0.0.1:9092'], topic: t}, "
        f"{name}: {{encoding: avro, registry: {{url: 'http://127.0.0.1:8081'}}}}"
    )
    text = PIPELINE.replace("generator: {records: 5}", source)
    assert set(looked(parts.extras, of_pipeline(tmp_path, text))) == {"millstream[kafka]", "millstream[avro]"}


def test_a_file_that_is_no_pipeline_is_told_as_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text("kind: Nonsense")
    assert main(["doctor", str(tmp_path / "p.yaml")]) == 2
    assert "MS-22" in capsys.readouterr().err
