"""The runner's process: starts, kills, restarts and ends it.

Above it: the session. Below it: `millstream_runner.chaos.runner` as a process, which cannot outlive this one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import psutil

from millstream.background import beside
from millstream.files import append_private
from millstream.processes import Process, Stop, open_process
from millstream_runner.chaos.plan import Role
from millstream_runner.chaos.processes import RunProcess
from millstream_runner.local.directory import DataDirectory, Runtime

STOP_TIMEOUT_S = 60.0
"""Time from the request to end, after a failed experiment, until it is killed."""


class RunnerProcess:
    """The runner of one experiment, across all its restarts."""

    def __init__(self, command: Sequence[str], data: DataDirectory, log_file: Path) -> None:
        self.data = data
        self.log_file = log_file
        self._command = command
        self._process: Process | None = None
        self._life = AsyncExitStack()
        """Ends the current process."""
        self._over = asyncio.Event()
        self._killing = False

    @property
    def _current(self) -> Process:
        """The current process, or the last one."""
        assert self._process is not None, "it was started"
        return self._process

    @property
    def pid(self) -> int:
        """Id of the current process, or of the last one."""
        return self._current.pid

    @property
    def over(self) -> bool:
        """Whether it has ended, and not because it was killed."""
        return self._over.is_set()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.exit_code

    def runtime(self) -> Runtime | None:
        """Where its broker is; None until it has said so."""
        runtime = self.data.read_runtime()
        return runtime if runtime is not None and runtime.runner.pid == self.pid else None

    async def wait_over(self, timeout_s: float) -> None:
        """Return when it is over, or after this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._over.wait()

    async def kill(self, victim: RunProcess) -> bool:
        """Send SIGKILL to one of the run's processes; a killed runner is restarted. Returns False if the process is
        already gone."""
        if victim.role is not Role.RUNNER:
            try:
                victim.process.kill()
            except psutil.NoSuchProcess:
                return False
            return True
        await self.restart()
        return True

    async def restart(self) -> None:
        """Kill the runner, and restart it, so that it reads the pipeline again."""
        self._killing = True
        self._current.kill()
        await self._life.aclose()
        await self._start()
        self._killing = False

    def ask_to_end(self) -> None:
        """Ask it to drain."""
        self._current.signal(signal.SIGINT)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It runs during the block, unless it ends by itself earlier."""
        async with self._life:
            await self._start()
            async with beside(self._watch(), "end of the runner"):
                yield

    async def _start(self) -> None:
        with append_private(self.log_file) as log:
            process = open_process(
                self._command, name="the runner", stdout=log, stderr=log, stop=Stop(STOP_TIMEOUT_S, signal.SIGINT)
            )
            self._process = await self._life.enter_async_context(process)

    async def _watch(self) -> None:
        while True:
            process = self._current
            await process.wait()
            if not self._killing and process is self._process:
                self._over.set()
                return
            # Its successor is being started.
            await asyncio.sleep(0.01)
