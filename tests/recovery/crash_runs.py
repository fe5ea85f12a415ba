"""Runs pipelines that are killed at given points, several at a time: the other side of `crash_process`.

    async with open_crash_runs(directory, spark=address) as runs:
        outcome = await runs.case("windows", "log.entries.sync:after@sum")

A case is a pipeline of its own on a broker they all share: a run for each point, which kills itself there, and then one
that ends it and checks everything. With `secured` connections are encrypted, each vertex is a user of its own to the
broker, and maps are functions in a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from millstream.die_with_parent import dying_with_parent
from tests.recovery.crash_brokers import BrokerPlace, open_broker, open_redis, open_secured_broker
from tests.recovery.crash_pipelines import PIPELINES
from tests.recovery.crash_receiver import open_receiver
from tests.support.children import started
from tools.style import REPOSITORY

ANSWER_S = 150.0
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


@dataclass(frozen=True, slots=True)
class _Slot:
    """What one case at a time has: a process that forks its runs, and the names that its pipelines go by."""

    process: asyncio.subprocess.Process
    number: int


@dataclass(frozen=True, slots=True)
class _Case:
    slot: _Slot
    pipeline: str
    directory: Path


class CrashRuns:
    """Made by `open_crash_runs`."""

    def __init__(
        self, directory: Path, broker: BrokerPlace, receiver: str, spark: str | None, *, secured: bool
    ) -> None:
        self._directory = directory
        self._broker = broker
        self._receiver = receiver
        self._spark = spark
        self._secured = secured
        self._idle: asyncio.Queue[_Slot] = asyncio.Queue()
        self._numbers = count(1)

    def add(self, slot: _Slot) -> None:
        self._idle.put_nowait(slot)

    async def case(self, pipeline: str, *points: str) -> Outcome:
        """One run for each point, in order, and one without any."""
        missed: list[str] = []
        answer: dict[str, Any] = {}
        async with self._open_case(pipeline) as case:
            for point in (*points, ""):
                answer = await self._ask(case.slot, self._request(case, point))
                if point and answer["ended"] != KILLED:
                    missed.append(point)
                between = PIPELINES[pipeline].between
                if point and between is not None:
                    between(case.directory)
                if answer["failed"] or not (point or answer["ended"] == 0):
                    break
        reached = {(point, vertex): times for point, vertex, times in answer["reached"]}
        failed = answer["failed"] or ("" if answer["ended"] == 0 else f"ended with {answer['ended']}")
        log = (case.directory / "log").read_text(errors="replace")[-6000:] if failed else ""
        if not failed:
            await asyncio.to_thread(shutil.rmtree, case.directory)
        return Outcome(pipeline, points, missed, failed, reached, log)

    async def zombies(self, pipeline: str, point: str, owners: int = 2) -> tuple[Sequence[str], Outcome]:
        """So many owners, each of which takes over from the one before it and pauses at the point; then all go on.

        Returns why those before the last one ended, and what the last one came to.
        """
        paused = []
        async with self._open_case(pipeline) as case:
            for owner in range(1, owners + 1):
                request = self._request(case, point) | {"signal": signal.SIGSTOP, "feed": owner == owners}
                paused.append((await self._ask(case.slot, request)).get("paused"))
            answers = [{"failed": f"paused: {paused}"}]
            if all(paused):
                answers = await self._ask(case.slot, {"continue": paused})
        log = (case.directory / "log").read_text(errors="replace")[-6000:]
        return [answer["failed"] for answer in answers[:-1]], Outcome(
            pipeline, [point], [], answers[-1]["failed"], {}, log
        )

    @asynccontextmanager
    async def _open_case(self, pipeline: str) -> AsyncIterator[_Case]:
        """A pipeline that has not run; in the end the broker keeps nothing of it: there are many on one broker."""
        number = next(self._numbers)
        slot = await self._idle.get()
        case = _Case(slot, pipeline, self._directory / f"{number}")
        case.directory.mkdir(parents=True)
        target = f"{self._receiver}/{number}"
        PIPELINES[pipeline].write(case.directory, name_of(pipeline, slot.number), target, sandboxed=self._secured)
        try:
            if self._secured:
                await self._ask(slot, self._request(case, "") | {"only": "prepare"})
            yield case
            await self._ask(slot, self._request(case, "") | {"only": "delete"})
        finally:
            self.add(slot)

    def _request(self, case: _Case, point: str) -> dict[str, Any]:
        return {
            "pipeline": case.pipeline,
            "directory": str(case.directory),
            "crash_at": point,
            "signal": signal.SIGKILL,
            "feed": True,
            "broker": asdict(self._broker),
            "spark": self._spark,
        }

    async def _ask(self, slot: _Slot, request: dict[str, Any]) -> Any:
        process = slot.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            line = await process.stdout.readline()
        return json.loads(line)


def name_of(pipeline: str, slot: int) -> str:
    """Of the pipelines that run one after another in a slot."""
    return f"{pipeline.replace('_', '-')}-{slot}"


def _written(directory: Path, slots: range) -> Iterator[Path]:
    """Every pipeline by every name that it may have."""
    for pipeline, contents in PIPELINES.items():
        for slot in slots:
            name = name_of(pipeline, slot)
            place = directory / name
            place.mkdir(parents=True)
            yield contents.write(place, name, "http://127.0.0.1")


@asynccontextmanager
async def open_crash_runs(
    directory: Path, *, spark: str | None, at_a_time: int = 3, secured: bool = False, ledger: str = "jetstream"
) -> AsyncIterator[CrashRuns]:
    """So many cases at a time, on a broker of their own."""
    slots = range(at_a_time)
    if secured:
        broker = open_secured_broker(directory / "broker", _written(directory / "written", slots))
    else:
        broker = (open_redis if ledger == "redis" else open_broker)(directory / "broker")
    async with broker as place, open_receiver(directory) as receiver, AsyncExitStack() as stack:
        runs = CrashRuns(directory, place, receiver, spark, secured=secured)
        # What a killed process leaves there goes with it; the name is short enough for sockets.
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="crash-"))
        for number in slots:
            starting = started(
                *dying_with_parent([sys.executable, "-m", "tests.recovery.crash_process"]),
                cwd=REPOSITORY,
                env=os.environ | {"TMPDIR": temporary},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**24,
            )
            runs.add(_Slot(await stack.enter_async_context(starting), number))
        yield runs
