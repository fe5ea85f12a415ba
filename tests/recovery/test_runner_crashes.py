"""What the runner does outside its vertices, killed at every durable step: its data directory, and starting over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.buffers.jetstream.server import open_nats_server
from millstream.durable import CRASH_AT
from millstream.ledger.protocol import LedgerLimits
from millstream.nats.connection import open_connection
from tests.support.sizes import sized
from tools import durable_steps

LIMIT_S = 120.0
KEEP = """\
import json, os, sys
from pathlib import Path
from millstream import durable
from millstream_runner.local.directory import held, write_text


def use(root, *texts):
    with held(Path(root)) as directory:
        for text in texts:
            write_text(directory.pipeline, text * 10_000)
        if not texts:
            directory.clear()


for line in sys.stdin:
    arguments, point = json.loads(line)
    child = os.fork()
    if child == 0:
        if point:
            durable.listen(durable.crash_at(point))
        use(*arguments)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Uses a data directory in a new process for each line: the imports would take a second each time."""
START_OVER = """\
import asyncio, sys
from pathlib import Path
from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.access_file import load_access
from millstream.buffers.jetstream.ot_store import open_jetstream_ot_stores
from millstream.nats.connection import open_connection


async def main():
    access = load_access(Path(sys.argv[2]), sys.argv[1])
    async with open_jetstream_broker(access, "p") as broker, open_connection(access) as connection:
        async with open_jetstream_ot_stores(connection, "p") as stores:
            await stores.delete()
            await broker.delete()


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def keeper() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", KEEP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def kept(keeper: subprocess.Popen[str], *arguments: str, crash_at: str | None = None) -> int:
    """The exit code of a process that writes these texts into a directory, or clears it."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.write(json.dumps([arguments, crash_at]) + "\n")
    keeper.stdin.flush()
    return int(keeper.stdout.readline())


def run(script: str, *arguments: str, crash_at: str | None = None) -> int:
    environment = {**os.environ, CRASH_AT: crash_at} if crash_at else None
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=environment, timeout=LIMIT_S, check=False).returncode


FILES = ("data.directory", "data.directory.sync", "data.hold", "data.write", "data.name", "data.name.sync")
CLEARING = ("data.clear",)
STARTING_OVER = ("ledger.delete", "watermark.delete")


def points_of(names: Sequence[str]) -> list[str]:
    return [f"{name}:{side}" for name in names for side in ("before", "after")]


def test_the_steps_are_there() -> None:
    assert {*FILES, *CLEARING, *STARTING_OVER} <= {step.name for step in durable_steps.steps()}


@pytest.mark.guarantee("I6", "I8")
@pytest.mark.parametrize("point", points_of(FILES))
@pytest.mark.parametrize("time", [1, 2])
def test_a_file_of_the_data_directory_is_whole_or_not_there(
    keeper: subprocess.Popen[str], tmp_path: Path, point: str, time: int
) -> None:
    root = tmp_path / "data"
    # The directory above exists, and its name is synced, too.
    at_all = time == 1 or point.startswith(("data.write", "data.name", "data.directory"))
    assert kept(keeper, str(root), "a", "b", crash_at=f"{point}#{time}") == (-signal.SIGKILL if at_all else 0)
    path = root / "pipeline.json"
    assert not path.exists() or path.read_text() in ("a" * 10_000, "b" * 10_000)
    # The one killed does not hold it any more, and what it left is gone with the next write.
    assert kept(keeper, str(root), "c") == 0
    assert path.read_text() == "c" * 10_000
    assert sorted(item.name for item in root.iterdir()) == ["lock", "pipeline.json"]


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize("point", points_of(CLEARING))
@pytest.mark.parametrize("time", [1, 3, 5])
def test_a_directory_that_is_cleared_in_part_is_cleared_by_the_next(
    keeper: subprocess.Popen[str], tmp_path: Path, point: str, time: int
) -> None:
    for name in ("pipeline.json", "runtime.json", "status.json", "windows/sum/0/1.wal", "broker/store/x", "mine"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({}))
    assert kept(keeper, str(tmp_path), crash_at=f"{point}#{time}") == -signal.SIGKILL
    assert kept(keeper, str(tmp_path)) == 0
    assert sorted(item.name for item in tmp_path.iterdir()) == ["lock", "mine"]


@pytest.mark.guarantee("I8")
async def test_a_pipeline_whose_starting_over_was_killed_starts_over_all_the_same(tmp_path: Path) -> None:
    async with open_nats_server(tmp_path) as server, open_connection(server.access) as connection:
        for point in points_of(STARTING_OVER):
            async with (
                open_jetstream_broker(server.access, "p") as broker,
                open_jetstream_ot_stores(connection, "p") as stores,
            ):
                for vertex in ("in", "out"):
                    await broker.ledger(vertex, LedgerLimits(frames_per_buffer_max=100))
                    await stores.store(vertex)
            for time in (1, 2)[: sized(1, 2)]:
                arguments = (server.url, str(server.access_file))
                killed = await asyncio.to_thread(run, START_OVER, *arguments, crash_at=f"{point}#{time}")
                assert killed == (-signal.SIGKILL if time == 1 or point.endswith("before") else 0), point
            assert await asyncio.to_thread(run, START_OVER, *arguments) == 0
            assert not (await connection.api("STREAM.LIST", {}))["streams"]
