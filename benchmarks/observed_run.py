"""A pipeline run as a user runs it, looked at from outside: rates, memory, disk and its account.

Above it: the benchmarks of this folder. Below it: `millstream run` as a process of its own, the OT stores of its broker
for how far each vertex is, the operating system for memory, the data directory for disk. It measures and judges
nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from millstream import codes
from millstream.buffers.jetstream.technology import TECHNOLOGY
from millstream.buffers.registry import technology_of
from millstream.clock import MICROSECONDS
from millstream.errors import MillstreamError
from millstream.ledger.protocol import DurabilityLevel
from millstream.plan import resolved
from millstream.watermark.store import OtStore
from millstream_runner.local.directory import DataDirectory, Runtime, read_json
from millstream_runner.local.processes import is_alive

MIB = 1024 * 1024
RAW_BYTES = 200 * MIB
"""Over so many bytes of values the broker's own limit is measured."""

_LOOK_INTERVAL_S = 0.1
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 180.0
_COUNTS_MAX = 100_000
"""Points kept of a vertex: over half an hour at the rate at which lanes publish."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory and disk at one moment."""

    at_s: float
    rss_bytes: Mapping[str, int]
    """By process: "runner", "broker", "<vertex>-<replica>", and "<vertex>-<replica> function" for its sidecar."""
    disk_bytes: int
    """What the files of the data directory take up."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    exit_code: int
    output: str
    records: Mapping[str, int]
    """Input records each vertex is done with, as the status says."""

    @property
    def balanced(self) -> bool:
        """Every record is accounted for, in every vertex and on every edge."""
        return self.exit_code == 0 and "account: BALANCED" in self.output


class ObservedRun:
    """A run. Made by `open_run`."""

    def __init__(self, directory: Path, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._data = DataDirectory(directory / "state")
        self._log = directory / "runner.log"
        self._counts: dict[str, deque[tuple[float, int]]] = {}
        self._following: asyncio.Task[None] | None = None

    def records(self, vertex: str) -> int:
        """Input records of all that the vertex is done with."""
        counts = self._counts.get(vertex)
        return counts[-1][1] if counts else 0

    def records_per_s(self, vertex: str, from_s: float, to_s: float) -> float:
        """Mean rate of a vertex between two moments of `now_s`."""
        return (self._records_at(vertex, to_s) - self._records_at(vertex, from_s)) / (to_s - from_s)

    def steady_records_per_s(self, vertex: str, from_s: float, to_s: float) -> float:
        """The same from its first commit between them to its last, so that parts of a frame do not blur it."""
        inside = [count for count in self._counts.get(vertex, ()) if from_s <= count[0] <= to_s]
        if len(inside) < 2 or inside[0][0] == inside[-1][0]:
            return 0.0
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def last_count_s(self, vertex: str) -> float:
        """When the vertex was last seen to get on."""
        counts = self._counts.get(vertex)
        if not counts:
            return 0.0
        newest = counts[-1][1]
        return next(published_s for published_s, records in counts if records == newest)

    def _records_at(self, vertex: str, at_s: float) -> int:
        """The last count published by then: a vertex that publishes nothing has not moved."""
        known = 0
        for published_s, records in self._counts.get(vertex, ()):
            if published_s > at_s:
                break
            known = records
        return known

    @staticmethod
    def now_s() -> float:
        """The clock by which lanes publish."""
        return time.time()

    def sample(self) -> Sample:
        """Memory and disk now."""
        runtime = self._data.read_runtime()
        rss: dict[str, int] = {}
        with suppress(psutil.Error):
            rss["runner"] = psutil.Process(self._process.pid).memory_info().rss
        for one in runtime.processes if runtime is not None else ():
            with suppress(psutil.Error):
                process = psutil.Process(one.identity.pid)
                rss[one.name] = process.memory_info().rss
                children = process.children(recursive=True)
                if children:
                    rss[f"{one.name} function"] = sum(child.memory_info().rss for child in children)
        return Sample(self.now_s(), rss, disk_bytes(self._data.root))

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait for something. Raises `MillstreamError` when the run ends before, or it takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self.check_runs()
                    await asyncio.sleep(_LOOK_INTERVAL_S)
        except TimeoutError:
            raise MillstreamError(
                codes.EXPERIMENT_FAILED, f"not {what} within {timeout_s:.0f} s\n{self._output()}"
            ) from None

    async def watch(self, seconds: float, each: Callable[[Sample], None], interval_s: float = 1.0) -> None:
        """Let it run for so long, a sample now and then."""
        ends_s = self.now_s() + seconds
        while (left_s := ends_s - self.now_s()) > 0:
            self.check_runs()
            each(self.sample())
            await asyncio.sleep(min(interval_s, max(left_s, 0.01)))

    def check_runs(self) -> None:
        """Raises `MillstreamError` when it has ended."""
        if self._process.returncode is not None:
            raise MillstreamError(
                codes.EXPERIMENT_FAILED, f"the run ended with exit code {self._process.returncode}\n{self._output()}"
            )

    async def stop(self) -> Ended:
        """Ctrl-C: drained, and ended. Nothing is counted any more."""
        self.check_runs()
        if self._following is not None:
            self._following.cancel()
        self._process.send_signal(signal.SIGINT)
        return await self.ended(timeout_s=_STOP_TIMEOUT_S)

    async def ended(self, timeout_s: float) -> Ended:
        """Wait until it has ended by itself."""
        async with asyncio.timeout(timeout_s):
            code = await self._process.wait()
        if self._following is not None:
            self._following.cancel()
        status = read_json(self._data.status) or {"vertices": []}
        records = {vertex["vertex"]: vertex["records"] for vertex in status["vertices"]}
        return Ended(code, self._output(), records)

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """Count what the vertices do meanwhile."""
        async with asyncio.TaskGroup() as group:
            self._following = group.create_task(self._follow(), name="follow")
            yield
            self._following.cancel()

    async def _follow(self) -> None:
        runtime = await self._started()
        status = read_json(self._data.status)
        assert status is not None, "a run that has started has a status"
        used = technology_of(resolved.load(self._data.read_pipeline()).pipeline)
        async with (
            used.open(
                self._data.access(runtime, used), runtime.pipeline, name="benchmark", require=DurabilityLevel.MEMORY
            ) as buffer,
            asyncio.TaskGroup() as group,
        ):
            for vertex in status["vertices"]:
                name = vertex["vertex"]
                store = await buffer.stores.store(name)
                group.create_task(self._count(name, store), name=f"count {name}")

    async def _count(self, vertex: str, store: OtStore) -> None:
        counts = self._counts.setdefault(vertex, deque(maxlen=_COUNTS_MAX))
        of_lanes: dict[str, int] = {}
        async with store.watch() as updates:
            async for update in updates:
                of_lanes[update.key] = update.consumed_records
                counts.append((update.entry.published_us / MICROSECONDS, sum(of_lanes.values())))

    async def _started(self) -> Runtime:
        found: Runtime | None = None

        def is_started() -> bool:
            nonlocal found
            found = self._data.read_runtime()
            ready = found is not None and found.processes and found.broker_port and is_alive(found.runner)
            return bool(ready) and read_json(self._data.status) is not None

        await self.until(is_started, "started")
        assert found is not None
        return found

    def _output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-6000:]


@asynccontextmanager
async def open_run(directory: Path, files: Mapping[str, str]) -> AsyncIterator[ObservedRun]:
    """Start the pipeline `pipeline.yaml` of `files`, which are written into `directory`.

    Whatever is left of it at the end is killed.
    """
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    with (directory / "runner.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millstream_runner",
            "run",
            "--data-dir",
            "state",
            "pipeline.yaml",
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    run = ObservedRun(directory, process)
    try:
        async with run.counting():
            yield run
    finally:
        # What it has started ends with it.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def disk_bytes(root: Path) -> int:
    """What the files below a directory take up on disk."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


async def raw_limit(directory: Path, record_bytes: int) -> float:
    """Records per second that a broker alone stores on this machine, now."""
    return await TECHNOLOGY.raw_limit(
        directory / "raw", records=RAW_BYTES // record_bytes, record_bytes=record_bytes, fsync=True
    )


def mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"


def machine() -> str:
    """What the figures were measured on, in a line."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    memory = psutil.virtual_memory().total / (1024 * MIB)
    return f"{os.cpu_count()} cores, {memory:.1f} GiB, Python {sys.version.split()[0]}; load before: {load}"
