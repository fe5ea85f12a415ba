"""Runs pipelines that are killed at given points, several at a time: the other side of `crash_process`.

    async with open_crash_runs(directory, spark=address) as runs:
        outcome = await runs.case("windows", "log.entries.sync:after@sum")

A case is a pipeline of its own on a broker they all share: a run for each point, which kills itself there, and then one
that ends it and checks everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from millstream.testing.nats_server import NatsServer, open_nats_server
from millstream.tether import tethered
from tests.recovery.crash_pipelines import PIPELINES
from tests.recovery.crash_receiver import open_receiver
from tools.style import REPOSITORY

ANSWER_S = 120.0
KILLED = -9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case."""

    pipeline: str
    points: Sequence[str]
    missed: Sequence[str]
    """Points at which no process was killed: it ended without reaching them."""
    failed: str
    """Why it failed; empty when everything was right."""
    reached: Mapping[tuple[str, str], int]
    """By the last run: times, by point and vertex."""
    log: str

    def __str__(self) -> str:
        return f"{self.pipeline}: {' then '.join(self.points)}: {self.failed}\n{self.log}"


class CrashRuns:
    """Made by `open_crash_runs`."""

    def __init__(self, directory: Path, server: NatsServer, receiver: str, spark: str | None) -> None:
        self._directory = directory
        self._server = server
        self._receiver = receiver
        self._spark = spark
        self._idle: asyncio.Queue[asyncio.subprocess.Process] = asyncio.Queue()
        self._numbers = count(1)

    def add(self, process: asyncio.subprocess.Process) -> None:
        self._idle.put_nowait(process)

    async def case(self, pipeline: str, *points: str) -> Outcome:
        """One run for each point, in order, and one without any."""
        number = next(self._numbers)
        directory = self._directory / f"{number}"
        directory.mkdir(parents=True)
        PIPELINES[pipeline].write(directory, f"c{number}", f"{self._receiver}/{number}")
        process = await self._idle.get()
        missed: list[str] = []
        answer: dict[str, Any] = {}
        for point in (*points, ""):
            answer = await self._ask(process, self._request(pipeline, directory, point))
            if point and answer["ended"] != KILLED:
                missed.append(point)
            between = PIPELINES[pipeline].between
            if point and between is not None:
                between(directory)
            if answer["failed"] or not (point or answer["ended"] == 0):
                break
        self.add(process)
        reached = {(point, vertex): times for point, vertex, times in answer["reached"]}
        failed = answer["failed"] or ("" if answer["ended"] == 0 else f"ended with {answer['ended']}")
        log = (directory / "log").read_text(errors="replace")[-6000:] if failed else ""
        if not failed:
            await asyncio.to_thread(shutil.rmtree, directory)
        return Outcome(pipeline, points, missed, failed, reached, log)

    async def zombies(self, pipeline: str, point: str, owners: int = 2) -> tuple[Sequence[str], Outcome]:
        """So many owners, each of which takes over from the one before it and pauses at the point; then all go on.

        Returns why those before the last one ended, and what the last one came to.
        """
        number = next(self._numbers)
        directory = self._directory / f"{number}"
        directory.mkdir(parents=True)
        PIPELINES[pipeline].write(directory, f"c{number}", f"{self._receiver}/{number}")
        process = await self._idle.get()
        paused = []
        for owner in range(1, owners + 1):
            request = self._request(pipeline, directory, point) | {
                "signal": signal.SIGSTOP,
                "feed": owner == owners,
                "delete": owner == owners,
            }
            paused.append((await self._ask(process, request)).get("paused"))
        answers = await self._ask(process, {"continue": paused}) if all(paused) else [{"failed": f"paused: {paused}"}]
        self.add(process)
        log = (directory / "log").read_text(errors="replace")[-6000:]
        return [answer["failed"] for answer in answers[:-1]], Outcome(
            pipeline, [point], [], answers[-1]["failed"], {}, log
        )

    def _request(self, pipeline: str, directory: Path, point: str) -> dict[str, Any]:
        return {
            "pipeline": pipeline,
            "directory": str(directory),
            "crash_at": point,
            "signal": signal.SIGKILL,
            "feed": True,
            "delete": not point,
            "nats": self._server.url,
            "nats_access": str(self._server.access_file),
            "spark": self._spark,
        }

    async def _ask(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            line = await process.stdout.readline()
        return json.loads(line)


@asynccontextmanager
async def open_crash_runs(directory: Path, *, spark: str | None, at_a_time: int = 3) -> AsyncIterator[CrashRuns]:
    """So many cases at a time, on a broker of their own."""
    async with (
        open_nats_server(directory / "broker") as server,
        open_receiver(directory) as receiver,
        AsyncExitStack() as stack,
    ):
        runs = CrashRuns(directory, server, receiver, spark)
        # What a killed process leaves there goes with it; the name is short enough for sockets.
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="crash-"))
        for _ in range(at_a_time):
            process = await asyncio.create_subprocess_exec(
                *tethered([sys.executable, "-m", "tests.recovery.crash_process"]),
                cwd=REPOSITORY,
                env=os.environ | {"TMPDIR": temporary},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**24,
            )
            stack.push_async_callback(process.wait)
            stack.callback(_kill, process)
            runs.add(process)
        yield runs


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
