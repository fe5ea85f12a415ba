"""A worker: replicas of several vertices in one process, started by hand and by `millstream run`."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.clock import SystemClock
from millstream.errors import FencedError
from millstream.nats.connection import open_connection
from millstream.plan import resolved
from millstream.ports import free_ports
from millstream.record import LaneId
from millstream.resources import processors
from millstream.spec.loading import load
from millstream_worker.assembly import open_vertex
from millstream_worker.environment import Outside, VertexConfig, open_outside
from millstream_worker.worker import open_worker
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import command, start
from tests.support.children import started
from tests.support.pipelines import PipelineRun, open_pipeline
from tests.support.sizes import first

LIMIT_S = 300
WAITS_FOR_A_FILE = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)

def process(value):
    return value
"""
ALL = ("in-0", "map-0", "map-1", "out-0")


class Worker:
    """A worker's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ended(self) -> tuple[int, list[dict[str, Any]]]:
        """Its exit code, and what it has logged."""
        async with asyncio.timeout(LIMIT_S):
            _, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, [json.loads(line) for line in err.decode().splitlines()]


@asynccontextmanager
async def open_process(run: PipelineRun, directory: Path, *replicas: str, port: int = 0) -> AsyncIterator[Worker]:
    file = directory / "pipeline.json"
    file.write_text(resolved.dump(run.resolved.plan, run.resolved.base_dir))
    async with started(
        sys.executable,
        "-m",
        "millstream_worker",
        "--pipeline",
        str(file),
        "--replicas",
        *replicas,
        "--broker",
        run.server.url,
        "--broker-access",
        str(run.server.access_file),
        "--metrics-port",
        str(port),
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        yield Worker(process)


def pipeline(files: PipelineFiles, *, records: int | None = 3000, **options: object) -> Path:
    """A source, a map of two replicas and a sink."""
    return files.write(
        files.generator(records, **options)
        + files.function("identity")
        + "  partitions: 2\n  replicas: 2\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )


async def answer(port: int, path: str) -> tuple[int, str]:
    """What the worker's endpoint says; 0 and nothing as long as there is none."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as got:
            return got.status, await got.text()
    except aiohttp.ClientConnectionError:
        return 0, ""


async def until(port: int, path: str, status: int, text: str) -> str:
    """Wait for such an answer, and give it."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await answer(port, path)
            if found[0] == status and text in found[1]:
                return found[1]
            await asyncio.sleep(0.02)  # a probe is asked again and again


def connections(process: int, run: PipelineRun) -> int:
    """Of that process to the broker."""
    port = urlsplit(run.server.url).port
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process(process).net_connections("tcp"))


async def test_one_process_runs_every_vertex(files: PipelineFiles, tmp_path: Path) -> None:
    async with (
        open_pipeline(pipeline(files), tmp_path / "broker") as run,
        open_process(run, tmp_path, *ALL) as worker,
    ):
        code, logged = await worker.ended()
    assert code == 0
    assert sorted(files.numbers("out")) == list(range(3000))
    assert {entry["pipeline"] for entry in logged} == {"p"}
    finished = {(entry["vertex"], entry["replica"]) for entry in logged if entry["message"].startswith("starting")}
    assert finished == {("in", 0), ("map", 0), ("map", 1), ("out", 0)}
    assert {entry["vertex"] for entry in logged if "lane" in entry} == {"in", "map", "out"}


async def test_metrics_and_probes_of_all_replicas_come_from_one_endpoint(files: PipelineFiles, tmp_path: Path) -> None:
    port = free_ports()
    async with (
        open_pipeline(pipeline(files, records=10**9, rpu=100), tmp_path / "broker") as run,
        open_process(run, tmp_path, *ALL, port=port) as worker,
    ):
        await until(port, "/readyz", 200, "ok")
        assert connections(worker.process.pid, run) == 1
        text = await until(port, "/metrics", 200, 'forwarder_read_total{partition_name="map-out.0"')
        names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(names) == len(set(names))
        families = {family.name: family for family in text_string_to_metric_families(text)}
        commits = {
            (sample.labels["vertex"], sample.labels["replica"], sample.labels["vertex_type"])
            for sample in families["millstream_commits"].samples
        }
        assert commits == {("in", "0", "source"), ("map", "0", "map"), ("map", "1", "map"), ("out", "0", "sink")}
        worker.process.send_signal(signal.SIGTERM)
        code, logged = await worker.ended()
    assert code == 0
    stopping = {entry["vertex"] for entry in logged if entry["message"].startswith("stopping")}
    assert stopping == {"in", "map", "out"}


async def test_a_replica_that_is_not_ready_is_named(files: PipelineFiles, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS_FOR_A_FILE)
    path = files.write(
        files.generator(10**9, rpu=100) + "- name: map\n  udf: {python: 'waits.py:process'}\n" + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    port = free_ports()
    async with (
        open_pipeline(path, tmp_path / "broker") as run,
        open_process(run, tmp_path, "in-0", "map-0", "out-0", port=port),
    ):
        # The others work meanwhile.
        await until(port, "/metrics", 200, 'forwarder_read_total{partition_name="source.0"')
        async with asyncio.timeout(LIMIT_S):
            # The sink may take longer to open its lanes than the source to read.
            while [line.partition(":")[0] for line in (await answer(port, "/readyz"))[1].splitlines()] != ["map-0"]:
                pass
        (tmp_path / "go").touch()
        await until(port, "/readyz", 200, "ok")


async def test_a_replica_that_fails_ends_the_worker_under_its_own_name(files: PipelineFiles, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def process(value):\n    raise ValueError('no good')\n")
    path = files.write(
        files.generator(3000)
        + files.function("identity", vertex="good")
        + "- name: bad\n  udf: {python: 'bad.py:process', retryStrategy: {onFailure: stop, backoff: {steps: 1}}}\n"
        + files.file_sink("out")
        + "- name: nowhere\n  sink: {blackhole: {}}\n",
        ["in -> good", "good -> out", "in -> bad", "bad -> nowhere"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        async with open_process(run, tmp_path, "in-0", "good-0", "out-0", "bad-0", "nowhere-0") as worker:
            code, logged = await worker.ended()
        assert code == 3
        (error,) = [entry for entry in logged if entry["level"] == "error" and "role" not in entry]
        assert (error["vertex"], error["replica"]) == ("bad", 0)
        assert "ValueError: no good" in error["message"]
        # What the others had begun they have finished: nothing of it is written twice.
        async with open_process(run, tmp_path, "in-0", "good-0", "out-0") as worker:
            code, _ = await worker.ended()
    assert code == 0
    assert sorted(files.numbers("out")) == list(range(3000))


async def test_a_worker_whose_replica_has_another_owner_ends_with_that(files: PipelineFiles, tmp_path: Path) -> None:
    async with (
        open_pipeline(pipeline(files, records=10**9, rpu=100), tmp_path / "broker") as run,
        open_process(run, tmp_path, *ALL) as first,
    ):
        async with asyncio.timeout(LIMIT_S):
            while not files.rows("out"):  # noqa: ASYNC110  # files appear
                await asyncio.sleep(0.02)
        async with open_worker(run.worker("map-1"), SystemClock()) as second, asyncio.TaskGroup() as group:
            working = group.create_task(second.run())
            code, logged = await first.ended()
            second.stop()
            assert await working == 0
    assert code == FencedError.exit_code
    (error,) = [entry for entry in logged if entry["level"] == "error"]
    assert (error["vertex"], error["replica"]) == ("map", 1)
    assert str(LaneId("map", "in-map", 1)) in error["message"]


@pytest.mark.guarantee("I9")
async def test_all_that_a_stopped_vertex_has_written_is_published(files: PipelineFiles, tmp_path: Path) -> None:
    """A drain goes by it: it stops who reads when that is read."""
    path = pipeline(files, records=10**9, rpu=1000)
    async with open_pipeline(path, tmp_path / "broker") as run, asyncio.timeout(LIMIT_S):

        @asynccontextmanager
        async def publishing_rarely(config: VertexConfig) -> AsyncIterator[Outside]:
            """OT entries are stored so rarely that the vertex stops before the next is due."""
            async with (
                open_outside(config) as outside,
                open_connection(run.server.access) as connection,
                open_jetstream_ot_stores(
                    connection, run.graph.pipeline.name, publish_interval_s=10 * LIMIT_S
                ) as stores,
            ):
                yield dataclasses.replace(outside, stores=stores)

        opening = open_vertex(run.config("in"), SystemClock(), environment=publishing_rarely)
        async with opening as source, asyncio.TaskGroup() as group:
            group.create_task(source.run())
            while not (await run.account("in")).outputs:
                pass
            source.stop()
        (mark,) = (await run.marks()).values()
        async with (
            open_connection(run.server.access) as connection,
            open_jetstream_ot_stores(connection, run.graph.pipeline.name) as stores,
        ):
            (published,) = (await (await stores.store("in")).get_all()).values()
    outputs = published.entry.outputs
    assert sum(one.records for one in outputs) == sum(one.records for one in mark.written) > 0


@pytest.mark.parametrize(
    ("replicas", "said"),
    first(
        1,
        [
            (["map"], "--replicas: 'map' is not the name of a replica; names are <vertex>-<number>, such as map-0"),
            (["in-0", "in-0"], "--replicas: a replica is named twice: in-0 in-0"),
            (["map-2"], "there is no replica 2"),
            (["nope-0"], "pipeline p has no vertex nope; it has in, map, out"),
        ],
    ),
)
async def test_replicas_that_the_pipeline_does_not_have(
    files: PipelineFiles, tmp_path: Path, replicas: list[str], said: str
) -> None:
    file = tmp_path / "pipeline.json"
    path = pipeline(files)
    loaded = load(path)
    file.write_text(resolved.dump(loaded.plan, loaded.base_dir))
    async with started(
        sys.executable,
        "-m",
        "millstream_worker",
        "--pipeline",
        str(file),
        "--broker",
        "nats://127.0.0.1:1",
        "--replicas",
        *replicas,
        stderr=asyncio.subprocess.PIPE,
    ) as process:
        code, logged = await Worker(process).ended()
    assert code == 2
    assert said in logged[-1]["message"]


@pytest.mark.guarantee("I1", "I9")
async def test_a_run_in_one_worker_survives_its_death_and_drains(files: PipelineFiles, tmp_path: Path) -> None:
    pipeline(files, records=None, rpu=600)
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "1") as run:
        await run.until(lambda: run.records("out") > 0)
        await run.until(lambda: set(run.pids()) == {"broker", "worker.0", *ALL})
        before = await run.pid("map-1")
        os.kill(before, signal.SIGKILL)
        await run.until_replaced("map-1", before)
        await run.until_more("out")
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "worker.0 (in-0, map-0, map-1, out-0): was killed from outside" in ended.err
    # What was on its way when the source stopped has come through: one vertex after another has stopped.
    assert not any(vertex["waiting"] for vertex in run.json("status.json")["vertices"])
    logs = await command(tmp_path, "logs", "map")
    assert "map-1" in logs.out
    assert "worker.0" in logs.out
    assert " out-0 " not in logs.out

    records = len(files.numbers("out")) + 6000
    pipeline(files, records=records)
    again = await command(tmp_path, "run", "pipeline.yaml", "--workers", "2")
    assert again.exit_code == 0, again.err
    assert "account: BALANCED" in again.out
    assert sorted(files.numbers("out")) == list(range(records))


@pytest.mark.sweep
async def test_a_run_has_as_many_workers_as_there_are_processors(files: PipelineFiles, tmp_path: Path) -> None:
    maps = "".join(
        f"- name: m{number}\n  partitions: 4\n  replicas: 4\n  udf: {{builtin: {{name: cat}}}}\n" for number in range(3)
    )
    files.write(
        files.generator(10**9, rpu=50) + maps + files.file_sink("out"),
        ["in -> m0", "m0 -> m1", "m1 -> m2", "m2 -> out"],
    )
    replicas = ["in-0", *(f"m{vertex}-{replica}" for vertex in range(3) for replica in range(4)), "out-0"]
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids(*replicas)
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    assert len({pids[replica] for replica in replicas}) == min(max(2, processors()), len(replicas))
    # Its worker gives way to all others, and has nothing else that would have to give way with it.
    assert [replica for replica in replicas if pids[replica] == pids["in-0"]] == ["in-0"]


@pytest.mark.sweep
async def test_a_run_names_the_vertex_of_a_shared_worker_that_fails(files: PipelineFiles, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def process(value):\n    raise ValueError('no good')\n")
    files.write(
        files.generator(100)
        + "- name: bad\n  udf: {python: 'bad.py:process', retryStrategy: {onFailure: stop, backoff: {steps: 1}}}\n"
        + files.file_sink("out"),
        ["in => bad", "bad -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml", "--workers", "1")
    assert ended.exit_code == 3
    assert "error[MS-3001]: bad-0: " in ended.err
    assert "ValueError: no good" in ended.err


@pytest.mark.sweep
async def test_a_vertex_that_asks_for_it_has_a_process_of_its_own(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(10**9, rpu=50)
        + files.function("identity")
        + "  placement: {process: own}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "1") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids("in-0", "out-0", "worker.0", "map-0")
        assert pids["in-0"] == pids["out-0"] == pids["worker.0"] != pids["map-0"]
        assert "in-0 out-0" in (await command(tmp_path, "status")).out
        run.interrupt()
        assert (await run.ended()).exit_code == 0


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I8")
async def test_readers_of_one_copy_in_several_workers_get_each_record_once(
    files: PipelineFiles, tmp_path: Path
) -> None:
    readers = ("one", "two", "three")
    sinks = "".join(map(files.file_sink, readers))
    files.write(files.generator(None, rpu=500) + sinks, [f"in -> {to}" for to in readers])
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "4") as running:
        pids = await running.all_pids(*(f"{name}-0" for name in ("in", *readers)))
        assert len({pids[f"{name}-0"] for name in ("in", *readers)}) == 4
        await running.until(lambda: running.records("two") > 0)
        # The others go on, and what it has not read stays for it.
        os.kill(pids["two-0"], signal.SIGKILL)
        await running.until_replaced("two-0", pids["two-0"])
        await running.until_more("two")
        running.interrupt()
        ended = await running.ended()
    assert ended.exit_code == 0, ended.err
    assert "BALANCED" in ended.out
    for name in readers:
        assert files.numbers(name) == list(range(running.records("in")))
    stored = (tmp_path / ".millstream/p/broker/store/jetstream/millstream/streams/p-in/msgs").glob("*.blk")
    texts = b"".join(path.read_bytes() for path in stored)
    assert b".d._in-1.0" in texts
    assert not [name for name in readers if f".d.in-{name}.0".encode() in texts], "one copy for all readers"
