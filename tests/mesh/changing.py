"""A pipeline that changes between two runs, without the processes of `millstream run`: its lanes run in this one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.clock import SystemClock
from millstream.die_with_parent import dying_with_parent
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.plan import resolved
from millstream.plan.shape import as_stored
from millstream.spec.loading import load
from millstream_runner.local.changing import claim, plan_change
from millstream_runner.local.directory import DataDirectory, KnownLedgers, read_json
from millstream_runner.local.view import open_view
from tests.support.children import started
from tests.support.pipelines import PipelineRun
from tools.style import REPOSITORY

ANSWER_S = 60.0


async def change(directory: DataDirectory, path: Path, access: BrokerAccess) -> None:
    """What a run does before it starts vertices, where it is not the first. Raises `UserError` when something waits."""
    loaded, found = load(path), None
    if (stored := read_json(directory.shape)) is not None:
        loaded, _ = as_stored(loaded, stored)
        found = plan_change(directory, stored, loaded, ())
    if found is None:
        claim(directory, loaded)
    else:
        await found.make(access, DurabilityLevel.FSYNC)


class Changing:
    """A data directory and its broker. Made by `open_changing`."""

    def __init__(self, directory: DataDirectory, server: NatsServer, spark: str | None) -> None:
        self.directory = directory
        self.server = server
        self._spark = spark

    async def run_of(self, path: Path) -> PipelineRun:
        """The pipeline of this file, which the directory is changed to."""
        await change(self.directory, path, self.server.access)
        run = PipelineRun(path, self.server, SystemClock(), self.directory.windows, self._spark)
        # What the processes of vertices read, with what the directory decides.
        run.resolved = resolved.load(self.directory.read_pipeline())
        run.graph = run.resolved.graph
        KnownLedgers(self.directory.ledgers).check(await self._ledgers_of(run))
        return run

    async def note(self, run: PipelineRun) -> None:
        """Which ledgers there are, as a runner does while its vertices run."""
        KnownLedgers(self.directory.ledgers).note(await self._ledgers_of(run))

    async def _ledgers_of(self, run: PipelineRun) -> Mapping[str, str]:
        async with open_view(run.plan, self.server.access) as view:
            return await view.ledger_ids()


@asynccontextmanager
async def open_changing(directory: Path, *, spark: str | None = None) -> AsyncIterator[Changing]:
    """Both below `directory`. `spark`: as in `open_pipeline`."""
    data = DataDirectory(directory / "data")
    data.make()
    async with open_nats_server(directory / "broker") as server:
        yield Changing(data, server, spark)


class Changer:
    """Diff a pipeline in another process, which may be killed. Made by `open_changer`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def change(self, changing: Changing, path: Path, crash_at: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        server = changing.server
        request = {
            "directory": str(changing.directory.root),
            "pipeline": str(path),
            "crash_at": crash_at,
            "nats": server.url,
            "nats_access": str(server.access_file),
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            answer: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return answer


@asynccontextmanager
async def open_changer() -> AsyncIterator[Changer]:
    async with started(
        *dying_with_parent([sys.executable, "-m", "tests.mesh.change_process"]),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    ) as process:
        yield Changer(process)
