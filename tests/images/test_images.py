"""A pipeline of containers: a broker, vertices, a function in an image of its own, windows and their Spark driver."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream_runner.cli.main import main
from tests.images.conftest import Pod, podman

RECORDS = 20_000
PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: boxes}
spec:
  vertices:
    - name: in
      source:
        generator: {rpu: 4000, records: 20000, msgSize: 40, keyCount: 5, start: "2024-01-01", eventTimeStep: 1ms}
    - name: shout
      udf: {address: "unix:/pipeline/udf.sock"}
    - name: count
      udf:
        groupBy: {window: {fixed: {length: 5s}}, keyed: true}
        sql: {query: "SELECT count(*) AS n, key FROM window GROUP BY key", value: {format: raw}}
    - name: out
      sink: {file: {path: out, rolling: {maxAge: 1s}}}
    - name: counts
      sink: {file: {path: counts, rolling: {maxAge: 1s}}}
  edges:
    - {from: in, to: shout, chain: false}
    - {from: shout, to: out}
    - {from: shout, to: count}
    - {from: count, to: counts}
"""
FUNCTION = "def process(value):\n    return value.upper()\n"
BROKER = ("--broker", "nats://127.0.0.1:4222")

pytestmark = pytest.mark.timeout(7200)


def prepared(pod: Pod) -> None:
    """The pipeline as a vertex takes it, and the function, in the directory that all containers have."""
    (pod.directory / "pipeline.yaml").write_text(PIPELINE)
    (pod.directory / "shout.py").write_text(FUNCTION)
    source, target = str(pod.directory / "pipeline.yaml"), str(pod.directory / "pipeline.json")
    assert main(["compile", source, "--base-dir", "/pipeline", "--to", target]) == 0
    for name in ("data", "windows"):
        (pod.directory / name).mkdir()
    assert main(["broker", "config", source, "--to", str(pod.directory / "users")]) == 0
    for path in (pod.directory / "data", pod.directory / "windows", *(pod.directory / "users").rglob("*")):
        os.chown(path, 10001, 10001)
    os.chown(pod.directory / "users", 10001, 10001)


def started_broker(pod: Pod) -> str:
    """With the users of the pipeline, and its ledgers."""
    volumes = ("--volume", f"{pod.directory}/data:/data", "--volume", f"{pod.directory}/users:/etc/nats/users:ro")
    broker = pod.start("broker", "broker", options=volumes)
    access = ("--broker-access", "/pipeline/users/boxes/_pipeline.yaml")
    arguments = ("broker", "prepare", "/pipeline/pipeline.yaml", *BROKER, *access)
    made = pod.start("prepare", "vertex", *arguments, options=("--entrypoint", "millstream"))
    assert pod.ended(made) == 0, pod.logs(made)
    return broker


def vertex(pod: Pod, name: str, *more: str, service: str = "vertex", options: Sequence[str] = ()) -> str:
    access = ("--broker-access", f"/pipeline/users/boxes/{name}.yaml")
    told = ("--pipeline", "/pipeline/pipeline.json", "--vertex", name, *BROKER, *access, *more)
    return pod.start(name, service, *told, options=options)


def rows(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_a_pipeline_of_containers_is_exact_whichever_is_killed(pod: Pod) -> None:
    prepared(pod)
    broker = started_broker(pod)
    function = ("shout.py:process",)
    socket = ("--env", "MILLSTREAM_UDF_SOCKET=/pipeline/udf.sock", "--workdir", "/pipeline")
    shout_udf = pod.start("udf", "udf-python", *function, options=socket)
    token = ("--env", "MILLSTREAM_SPARK_TOKEN=of these containers")
    driver = ("--resolved", "/pipeline/pipeline.json", "--address", "127.0.0.1:7077")
    pod.start("spark", "spark-driver", *driver, options=token)
    source = vertex(pod, "in")
    shout = vertex(pod, "shout")
    windows = ("--windows-dir", "/pipeline/windows", "--spark", "127.0.0.1:7077")
    count = vertex(pod, "count", *windows, service="vertex-reduce", options=token)
    sinks = [vertex(pod, "out"), vertex(pod, "counts")]

    pod.remove(shout)
    shout = vertex(pod, "shout")
    pod.remove(shout_udf)
    (pod.directory / "udf.sock").unlink(missing_ok=True)
    pod.start("udf", "udf-python", *function, options=socket)
    podman("kill", "--signal", "KILL", broker)
    podman("start", broker)

    for name in (source, shout, count, *sinks):
        assert pod.ended(name) == 0, pod.logs(name)
        assert pod.logs(name).strip(), "what a vertex does can be read"
    numbers = sorted(int(str(row["NUMBER"])) for row in rows(pod.directory / "out"))
    assert numbers == list(range(RECORDS))
    assert sum(int(str(row["n"])) for row in rows(pod.directory / "counts")) == RECORDS


def test_a_vertex_that_is_nobody_to_its_broker_says_so(pod: Pod) -> None:
    prepared(pod)
    started_broker(pod)
    arguments = ("--pipeline", "/pipeline/pipeline.json", "--vertex", "in", *BROKER)
    name = pod.start("in", "vertex", *arguments)
    assert pod.ended(name) == 4
    assert "refuses a client without credentials" in pod.logs(name)


def test_mistakes_of_an_operator_are_said_in_a_line(pod: Pod) -> None:
    prepared(pod)
    broker = started_broker(pod)
    for arguments in (("--vertex", "nope"), ("--vertex", "in", "--replica", "3")):
        name = pod.start("wrong", "vertex", "--pipeline", "/pipeline/pipeline.json", *arguments, *BROKER)
        assert pod.ended(name) == 2, pod.logs(name)
        assert "Traceback" not in pod.logs(name)
        pod.remove(name)
    assert podman("inspect", "--format", "{{.State.Running}}", broker).strip() == "true"
