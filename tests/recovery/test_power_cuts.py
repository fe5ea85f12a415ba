"""The power is cut under a whole pipeline, again and again: broker, logs, file sinks and the runner's own files.

Everything that the pipeline keeps is on the disk that loses its power; what goes outside (answers to HTTP requests,
requests to an HTTP target) is not taken back by that. The oracle judges what is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from millstream.die_with_parent import dying_with_parent
from millstream.ledger.protocol import DurabilityLevel, Ledger, LedgerLimits, StoredFrame
from millstream.limits import MIB
from millstream.record import BufferId, LaneId, Position
from millstream.spec.graph import guarantees_of
from millstream.spec.loading import load
from millstream.spec.models import FallbackSink
from millstream_runner.chaos.builtin_pipelines import SHIPPED, write
from millstream_runner.chaos.experiment import INPUTS, RECEIVED, open_outside, outside_ports
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import (
    delta_numbers,
    delta_spec,
    iceberg_numbers,
    iceberg_spec,
    sql_spec,
    sqlite_rows,
)
from tests.contract.sinks.table_lanes import LATER, opened, written
from tests.power_disk import PowerDisk, open_power_disk
from tests.support.children import started
from tests.support.ledgers import LaneOwner, open_jetstream_harness
from tests.support.sizes import sized

DISK_BYTES = 8192 * MIB
"""So much the broker wants to be able to reserve; the file takes what is written to it."""
END_TIMEOUT_S = 240.0
ENDLESS = 1 << 40
LAST_S = 2.0
SEED = 11
CUTS = sized(4, 8)
A, B = BufferId("v-a", 0), BufferId("v-b", 0)
LANE = LaneId("v", "in-v", 0)
BOUNDS = LedgerLimits(frames_per_buffer_max=100_000)
LARGE, LARGE_FRAMES = 500_000, 8


class Machine:
    """Runs a pipeline that ships on a disk, of which only its file is elsewhere."""

    def __init__(self, pipeline: str, disk: PowerDisk, directory: Path, rate: int) -> None:
        self.pipeline = pipeline
        self.directory = directory
        self.ports = outside_ports()
        self.rate = rate
        self._disk = disk
        self._rng = random.Random(SEED)
        self._log = directory / "runner.log"
        self._alive_s = 0.0
        file = self._write(ENDLESS)
        stated = {name: guarantee.id.value for name, guarantee in guarantees_of(load(file).graph).items()}
        (directory / "guarantees.json").write_text(json.dumps(stated))
        self._command = [sys.executable, "-m", "millstream_runner.chaos.runner", "--data-dir", str(disk.path / "state")]
        self._command += ["--sinks", str(disk.path / "sinks"), str(file)]

    def _write(self, records: int) -> Path:
        return write(SHIPPED[self.pipeline], self.directory / "pipeline", records, self.rate, self.ports)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        with self._log.open("ab") as log:
            starting = started(
                *dying_with_parent(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            async with starting as process:
                begun_s = time.monotonic()
                try:
                    yield process
                finally:
                    self._alive_s += time.monotonic() - begun_s

    async def live_and_lose_power(self, results: Callable[[], int]) -> None:
        """Run until there are new results, and a little longer."""
        async with self.running() as process, asyncio.timeout(END_TIMEOUT_S):
            before = results()
            while results() == before:
                assert process.returncode is None, self._log.read_text()[-2000:]
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
            assert process.returncode is None, "it had ended before the power was cut"
            # First the processors stop, so that no process answers for what the disk has not kept.
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            await process.wait()
            _, alive = await asyncio.to_thread(psutil.wait_procs, family, END_TIMEOUT_S)
            assert not alive
            self._disk.cut()
        await self._disk.restore()

    async def live_to_the_end(self) -> None:
        """Run until all is done that the source makes in a moment more than it has made by now at most."""
        self._write(round(self.rate * (self._alive_s + LAST_S)))
        async with self.running() as process, asyncio.timeout(END_TIMEOUT_S):
            assert await process.wait() == 0, self._log.read_text()[-2000:]

    def files(self, vertex: str) -> int:
        """Finished files of a sink."""
        return sum(1 for _ in (self._disk.path / "sinks" / vertex).glob("[!._]*"))

    async def violated(self, *options: str) -> list[dict[str, Any]]:
        """What the oracle found."""
        command = [sys.executable, "-m", "millstream_runner.chaos.oracle", "--data-dir", str(self._disk.path / "state")]
        command += ["--sinks", str(self._disk.path / "sinks")]
        command += ["--guarantees", str(self.directory / "guarantees.json"), *options]
        async with started(*command, stdout=asyncio.subprocess.PIPE) as process:
            out, _ = await asyncio.wait_for(process.communicate(), END_TIMEOUT_S)
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return [check for check in told["checks"] if check["result"] == "violated"]


async def commit(owner: LaneOwner) -> None:
    """Commits of several messages, forever: what is in A is there long before the rest is durable."""
    for number in count():
        await owner.commit((A, b"%d" % number), *((B, bytes(LARGE)) for _ in range(LARGE_FRAMES)))


async def read(ledger: Ledger, seen: list[StoredFrame]) -> None:
    async with ledger.read(A, 0) as frames:
        while True:
            seen.append(await anext(frames))


async def read_before_a_cut(disk: PowerDisk, name: str, frames: int, level: DurabilityLevel) -> tuple[int, int]:
    """How many frames were read when the power was cut, and how many of these are there afterwards."""
    directory = disk.path / name
    directory.mkdir()
    descriptor = os.open(disk.path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    seen: list[StoredFrame] = []
    async with open_jetstream_harness(directory, level) as harness, asyncio.TaskGroup() as tasks:
        ledger = await harness.broker.ledger("v", BOUNDS)
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "writer"))
        working = [tasks.create_task(commit(owner)), tasks.create_task(read(ledger, seen))]
        while len(seen) < frames:  # noqa: ASYNC110  # the reader is under test, and has no event for this
            await asyncio.sleep(0)
        # Nothing else runs here meanwhile: what comes after belongs to a machine that is off.
        disk.cut()
        seen = seen.copy()
        for task in working:
            task.cancel()
    await disk.restore()
    async with open_jetstream_harness(directory, level) as harness:
        ledger = await harness.broker.ledger("v", BOUNDS)
        there = await ledger.peek(A, 0, len(seen) + 1)
    return len(seen), sum(frame in there for frame in seen)


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I6")
@pytest.mark.sweep
async def test_no_frame_is_read_that_a_power_cut_takes_back(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    async with open_power_disk(tmp_path / "disk", DISK_BYTES) as disk:
        for cut in range(CUTS):
            read_frames, kept = await read_before_a_cut(disk, f"{cut}", rng.randint(1, 10), DurabilityLevel.FSYNC)
            assert kept == read_frames
        # A broker that leaves it to the system when to write is found out.
        read_frames, kept = await read_before_a_cut(disk, "lazy", 10, DurabilityLevel.PROCESS)
        assert kept < read_frames


def _in_sqlite(place: Path) -> tuple[FallbackSink, Callable[[], list[int]]]:
    file = place / "shop.db"
    sqlite_rows(file, "CREATE TABLE numbers (n INTEGER UNIQUE, text TEXT, place INTEGER PRIMARY KEY)")
    statement = "SELECT n FROM numbers ORDER BY place"
    return sql_spec(f"sqlite:///{file}", "insert"), lambda: [n for (n,) in sqlite_rows(file, statement)]


TABLES: dict[str, Callable[[Path], tuple[FallbackSink, Callable[[], list[int]]]]] = {
    "sqlite": _in_sqlite,
    "delta": lambda place: (delta_spec(str(place / "table"), **LATER), lambda: delta_numbers(place / "table")),
    "iceberg": lambda place: (iceberg_spec(place, **LATER), lambda: iceberg_numbers(place)),
}
"""A sink in this directory, and what a reader of its target sees."""


@pytest.mark.guarantee("I1", "I6")
@pytest.mark.parametrize(
    "kind", ["sqlite", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in TABLES if kind != "sqlite")]
)
async def test_what_a_sink_has_confirmed_is_in_its_table_after_a_power_cut(tmp_path: Path, kind: str) -> None:
    """A commit of SQLite ends with the removal of its journal. If that is lost, the journal takes the commit back."""
    async with open_power_disk(tmp_path / "disk", 64 * MIB) as disk:
        for cut in range(CUTS):
            place = disk.path / f"{cut}"
            place.mkdir()
            spec, numbers_there = TABLES[kind](place)
            async with opened(spec) as lane:
                for sequence in range(1, cut + 2):
                    await written(lane, sequence)
                disk.cut()
            await disk.restore()
            assert numbers_there() == [*range(10, 10 * cut + 20)]
            # It continues after them.
            async with opened(spec, sink_owner(2, start=Position(cut + 1))) as lane:
                await written(lane, cut + 2)
            assert numbers_there() == [*range(10, 10 * cut + 30)]


async def test_a_disk_is_back_although_a_mount_namespace_holds_the_stopped_one(tmp_path: Path) -> None:
    async with open_power_disk(tmp_path / "disk", 64 * MIB) as disk:
        # As a container does that is started meanwhile, on this machine and for other purposes.
        holding = dying_with_parent(["unshare", "--mount", "sh", "-c", "echo made; exec sleep 600"])
        async with started(*holding, stdout=asyncio.subprocess.PIPE) as namespace:
            assert namespace.stdout is not None
            assert await asyncio.wait_for(namespace.stdout.readline(), 20) == b"made\n"
            for cut in range(3):
                (disk.path / f"{cut}").write_text("kept")
                descriptor = os.open(disk.path / f"{cut}", os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
                disk.cut()
                await disk.restore()
                assert (disk.path / f"{cut}").read_text() == "kept"


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I6", "I8")
async def test_broker_and_file_sinks_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async with open_power_disk(tmp_path / "disk", DISK_BYTES) as disk:
        machine = Machine("mesh", disk, tmp_path, rate=1000)
        for _ in range(sized(1, 5)):
            await machine.live_and_lose_power(lambda: machine.files("left"))
        await machine.live_to_the_end()
        violated = await machine.violated("--expect", "mesh")
    assert violated == []


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I3", "I6", "I8", "I9")
@pytest.mark.sweep
async def test_the_log_of_open_windows_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with open_power_disk(tmp_path / "disk", DISK_BYTES) as disk:
        machine = Machine("windows", disk, tmp_path, rate=150)
        for _ in range(sized(1, 2)):
            await machine.live_and_lose_power(lambda: machine.files("results"))
        await machine.live_to_the_end()
        violated = await machine.violated("--expect", "windows")
    assert violated == []


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I6", "I8")
async def test_what_was_acknowledged_to_an_http_client_is_there_after_a_power_cut(tmp_path: Path) -> None:
    async with open_power_disk(tmp_path / "disk", DISK_BYTES) as disk:
        machine = Machine("push", disk, tmp_path, rate=200)
        received = tmp_path / RECEIVED
        async with open_outside(tmp_path, machine.ports, machine.rate) as finish:
            for _ in range(sized(1, 5)):
                await machine.live_and_lose_power(lambda: received.stat().st_size if received.exists() else 0)
            async with machine.running() as process, asyncio.timeout(END_TIMEOUT_S):
                await finish()
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 0
            violated = await machine.violated(
                "--inputs", str(tmp_path / INPUTS), "--received", str(received), "--drained"
            )
    assert violated == []
