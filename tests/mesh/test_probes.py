"""What the probes of a vertex process say while its lanes open, and when something outside goes away."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
import pytest

from millstream.clock import SystemClock
from millstream.ports import free_ports
from millstream_worker.worker import open_worker
from tests.mesh.running import called, start
from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

WAITS_FOR_A_FILE = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)

def process(value):
    return value
"""


async def probe(port: int, path: str = "/readyz", host: str = "127.0.0.1") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, await answer.text()


async def until(port: int, status: int, text: str, running: asyncio.Future[Any], host: str = "127.0.0.1") -> None:
    """Wait for this answer of /readyz."""
    async with asyncio.timeout(30):
        while True:
            if running.done():
                await running
            try:
                found = await probe(port, host=host)
            except aiohttp.ClientConnectionError:
                found = (0, "")
            if found[0] == status and text in found[1]:
                return
            await asyncio.sleep(0.02)  # a probe is asked again and again


async def test_ready_means_that_lanes_are_open_and_broker_and_program_are_there(
    files: PipelineFiles, tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text(WAITS_FOR_A_FILE)
    path = files.write(
        files.generator(1) + "- name: map\n  udf: {python: 'waits.py:process'}\n" + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    port = free_ports()
    async with open_pipeline(path, tmp_path / "run") as run, asyncio.TaskGroup() as group:
        stopping = asyncio.Event()
        serving = group.create_task(serve(run, port, stopping))
        await until(port, 503, "starting: the broker or a program", serving)
        assert await probe(port, "/livez") == (200, "ok\n")
        (tmp_path / "go").touch()
        await until(port, 200, "ok", serving)
        (tmp_path / "go").unlink()
        os.kill(function_of_this_process(), signal.SIGKILL)
        await until(port, 503, "the program of the udf is not running", serving)
        (tmp_path / "go").touch()
        await until(port, 200, "ok", serving)
        await run.server.kill()
        await until(port, 503, "the connection to the NATS server at 127.0.0.1", serving)
        await run.server.start()
        await until(port, 200, "ok", serving)
        stopping.set()


async def serve(run: PipelineRun, port: int, stopping: asyncio.Event) -> None:
    """A worker with vertex `map` alone."""
    async with (
        open_worker(run.worker("map-0", metrics_port=port), SystemClock()) as worker,
        asyncio.TaskGroup() as group,
    ):
        working = group.create_task(worker.run())
        await stopping.wait()
        worker.stop()
        await until(port, 503, "stopping: records in flight are being finished", working)
        assert await working == 0


def function_of_this_process() -> int:
    """The process id of the function that a worker in this process has started."""
    (pid,) = (child.pid for child in psutil.Process().children(recursive=True) if "waits.py:process" in child.cmdline())
    return pid


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_probes_and_metrics_listen_where_they_are_told(files: PipelineFiles, tmp_path: Path, host: str) -> None:
    path = files.write(files.generator(1) + files.file_sink("out"), ["in -> out"])
    port = free_ports()
    async with open_pipeline(path, tmp_path / "run") as run:
        config = run.worker("out-0", metrics_port=port, metrics_host=host)
        async with open_worker(config, SystemClock()) as worker, asyncio.TaskGroup() as group:
            working = group.create_task(worker.run())
            await until(port, 200, "ok", working, host)
            assert (await probe(port, "/metrics", host=host))[0] == 200
            with pytest.raises(aiohttp.ClientConnectionError):
                await probe(port, host="127.0.0.1" if host == "127.0.0.2" else "127.0.0.2")
            worker.stop()
            assert await working == 0


@pytest.mark.sweep
async def test_a_run_listens_where_it_is_told_and_the_status_says_which_port_is_whose(
    files: PipelineFiles, tmp_path: Path
) -> None:
    files.write(files.generator(None, rpu=10) + files.file_sink("out"), ["in -> out"])
    port = free_ports(2)
    options = ("--workers", "2", "--metrics-port-base", str(port), "--metrics-host", "127.0.0.3")
    async with start(tmp_path, "run", "pipeline.yaml", *options) as run:
        await run.until(lambda: run.records("out") > 0)
        assert await probe(port, host="127.0.0.3") == (200, "ok\n")
        status = (await called(tmp_path, "status")).out
        assert f"port {port}" in next(line for line in status.splitlines() if line.startswith("in-0 "))
        assert f"port {port + 1}" in next(line for line in status.splitlines() if line.startswith("out-0 "))
        run.kill()
