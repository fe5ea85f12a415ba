"""`millstream` as users run it: a process of its own, in a directory of its own, looked at through its files.

A test sees what it waits for only while the process runs, and a machine may be busy for longer than any source takes
for its records. So a test that waits has a source without end, and drains it when it has seen what it wanted; or a
function of it waits for a file that the test writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import psutil

from millstream_runner.cli.main import main
from millstream_runner.local.run import SAME_DECISION_S
from tests.support.children import started

LIMIT_S = 300
_POLL_S = 0.02

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    exit_code: int
    out: str
    err: str


class Running:
    """One `millstream` process that runs."""

    def __init__(self, process: asyncio.subprocess.Process, data: Path, out: Path, err: Path) -> None:
        self.process = process
        self.data = data
        """The data directory of the run."""
        self._out = out
        self._err = err

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    async def interrupt_twice(self) -> None:
        """Ctrl-C, and again when the drain has begun and the two cannot be one decision any more."""
        self.interrupt()
        await self.until(lambda: self.json("status.json")["state"] == "draining")
        await asyncio.sleep(SAME_DECISION_S)
        self.interrupt()

    def kill(self) -> None:
        self.process.kill()

    async def ended(self) -> Ended:
        async with asyncio.timeout(LIMIT_S):
            exit_code = await self.process.wait()
        return Ended(exit_code, self._out.read_text(), self.err())

    def err(self) -> str:
        """What it has said so far."""
        return self._err.read_text()

    def out(self) -> str:
        """What it has printed so far."""
        return self._out.read_text()

    def json(self, name: str) -> dict[str, Any]:
        """A file of the data directory; empty when it is not there yet."""
        try:
            data: dict[str, Any] = json.loads((self.data / name).read_text())
        except FileNotFoundError:
            return {}
        return data

    def records(self, vertex: str) -> int:
        """Input records the vertex is done with, as the status says."""
        vertices = self.json("status.json").get("vertices", [])
        return sum(one["records"] for one in vertices if one["vertex"] == vertex)

    def pids(self) -> dict[str, int]:
        """Processes of the run, by name, and by each replica that a worker runs."""
        processes = self.json("runtime.json").get("processes", [])
        return {name: one["identity"]["pid"] for one in processes for name in (one["name"], *one["replicas"])}

    async def pid(self, name: str) -> int:
        """Of one of `pids`. The run may write it down a moment after that process has worked."""
        return await self.found(lambda: self.pids().get(name))

    async def all_pids(self, *names: str) -> dict[str, int]:
        """Of all processes, once the run has written down these."""
        await self.until(lambda: self.pids().keys() >= {*names})
        return self.pids()

    async def until_more(self, vertex: str, *, than: int | None = None) -> None:
        """Wait until the vertex is done with more records than so many, or than now."""
        seen = self.records(vertex) if than is None else than
        await self.until(lambda: self.records(vertex) > seen)

    async def until_replaced(self, name: str, pid: int) -> None:
        """Wait until another process has that name than this one."""
        await self.until(lambda: self.pids().get(name, pid) != pid)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something, as long as the process runs."""
        await self.found(lambda: condition() or None)

    async def found(self, look: Callable[[], Found | None]) -> Found:
        """Wait until there is something to be found, as long as the process runs; returns it."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                begun_s = time.monotonic()
                if (found := look()) is not None:
                    return found
                assert self.process.returncode is None, (await self.ended()).err
                # Looking takes a fifth of the time at most, so what reads all there is slows nothing down.
                await asyncio.sleep(max(_POLL_S, 4 * (time.monotonic() - begun_s)))


@asynccontextmanager
async def start(
    directory: Path, *arguments: str, data: str = ".millstream/p", out: int | None = None
) -> AsyncIterator[Running]:
    """Starts `millstream` with these arguments; killed, with all it has started, when the block ends. `out`: a
    descriptor for what it prints, in place of `Ended.out`."""
    with tempfile.TemporaryDirectory() as name:
        async with _start(directory, Path(name), arguments, directory / data, out) as running:
            yield running


@asynccontextmanager
async def _start(
    directory: Path, prints: Path, arguments: Sequence[str], data: Path, descriptor: int | None
) -> AsyncIterator[Running]:
    out, err = prints / "out", prints / "err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        starting = started(
            sys.executable,
            "-P",
            "-m",
            "millstream_runner",
            *arguments,
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out_file if descriptor is None else descriptor,
            stderr=err_file,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        family: list[psutil.Process] = []
        try:
            async with starting as process:
                try:
                    yield Running(process, data, out, err)
                finally:
                    with suppress(ProcessLookupError, psutil.NoSuchProcess):
                        family = psutil.Process(process.pid).children(recursive=True)
        finally:
            # They end because the runner has: a test that leaves one behind fails here.
            _, left = await asyncio.to_thread(psutil.wait_procs, family, 10)
            assert not left


async def command(directory: Path, *arguments: str) -> Ended:
    """Run `millstream` with these arguments to its end."""
    async with start(directory, *arguments) as running:
        return await running.ended()


async def called(directory: Path, *arguments: str) -> Ended:
    """A command that starts no pipeline, to its end, in this process: most of the time of one is for its imports."""
    out, err = StringIO(), StringIO()
    with chdir(directory), redirect_stdout(out), redirect_stderr(err):
        code = await asyncio.to_thread(main, [*arguments])
    return Ended(code, out.getvalue(), err.getvalue())


async def until_gone(pids: list[int]) -> None:
    """Wait until none of these processes runs any more."""
    async with asyncio.timeout(10):
        while any(map(_runs, pids)):  # noqa: ASYNC110  # another process has no event to wait for
            await asyncio.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
