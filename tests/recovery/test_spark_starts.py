"""What a start of Spark does not wait for: a JVM that only puts a command together, the broker, and pandas."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from millstream_reduce.spark.java import find_java
from tests.mesh.running import start
from tests.spark_driver import open_spark_driver

LIMIT_S = 300.0
REDUCE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: starting}
spec:
  vertices:
    - {name: in, source: {generator: {rpu: 1}}}
    - name: sum
      udf:
        groupBy: {window: {fixed: {length: 1h}}, keyed: true}
        sql: {query: "SELECT count(*) AS n FROM window"}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: sum}
    - {from: sum, to: out}
"""

pytestmark = pytest.mark.timeout(900)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(0.02)


def recording_java(home: Path) -> Path:
    """A JAVA_HOME whose `java` notes each of its starts. Gives the file of notes."""
    java = find_java()
    notes = home / "notes"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{java.version}"\n')
    script = home / "bin" / "java"
    noted = f'echo "$@" >> {shlex.quote(str(notes))}'
    script.write_text(f'#!/bin/sh\n{noted}\nexec {shlex.quote(str(java.executable))} "$@"\n')
    script.chmod(0o755)
    notes.touch()
    return notes


@pytest.mark.sweep
async def test_a_driver_that_starts_again_starts_one_jvm_and_that_is_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = recording_java(tmp_path / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))

    def is_spark(line: str) -> bool:
        return "java-arguments" in line

    with open_spark_driver() as driver:
        await until(lambda: any(is_spark(line) for line in notes.read_text().splitlines()))
        first = notes.read_text().splitlines()
        assert [is_spark(line) for line in first] == [False, True]
        driver.kill()
        driver.start()
        await until(lambda: len(notes.read_text().splitlines()) > len(first))
        assert is_spark(notes.read_text().splitlines()[len(first)])
        driver.kill()
    # Another heap is another question.
    with open_spark_driver(driver_memory_bytes=700 << 20):
        await until(lambda: len(notes.read_text().splitlines()) > len(first) + 1)
        assert not is_spark(notes.read_text().splitlines()[-1])


async def test_spark_starts_while_the_broker_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(REDUCE)
    async with start(tmp_path, "run", "p.yaml", data=".millstream/starting") as run:
        await run.until(lambda: "broker" in run.pids())
        broker = psutil.Process(await run.pid("broker"))
        broker.suspend()
        await run.until(lambda: "spark" in run.pids())
        broker.resume()


@pytest.mark.sweep
async def test_a_pipeline_of_queries_has_results_without_pandas(tmp_path: Path) -> None:
    """Each process would need half a second for it, while a caller waits for the first result."""
    (tmp_path / "p.yaml").write_text(REDUCE.replace("length: 1h", "length: 1s").replace("rpu: 1", "rpu: 20"))
    async with start(tmp_path, "run", "p.yaml", data=".millstream/starting") as run:
        await run.until(lambda: run.records("out") > 0)
        processes = psutil.Process(run.process.pid).children(recursive=True)
        commands = [" ".join(process.cmdline()) for process in processes]
        for part in ("millstream_reduce.spark.driver", "millstream_reduce.spark.worker_daemon", "--replicas sum-0"):
            assert any(part in command for command in commands), commands
        assert not [command for process, command in zip(processes, commands, strict=True) if _has_pandas(process)]


def _has_pandas(process: psutil.Process) -> bool:
    return any("/pandas/_libs/" in mapped.path for mapped in process.memory_maps())
