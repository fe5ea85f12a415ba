"""The runner's process: started, killed, started again, asked to end.

Above it: the session. Below it: `millstream_runner.chaos.runner` as a process, which cannot outlive this one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from millstream.die_with_parent import dying_with_parent
from millstream.files import append_private
from millstream_runner.chaos.plan import Role
from millstream_runner.chaos.processes import RunProcess
from millstream_runner.local.directory import DataDirectory, Runtime

STOP_TIMEOUT_S = 60.0
"""From the request to end, at the end of an experiment that failed, until it is killed."""


class RunnerProcess:
    """The runner of one experiment, over all its lives."""

    def __init__(self, command: Sequence[str], data: DataDirectory, log_file: Path) -> None:
        self.data = data
        self.log_file = log_file
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._over = asyncio.Event()
        self._killing = False

    @property
    def pid(self) -> int:
        """Of the one that runs now, or ran last."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def over(self) -> bool:
        """It has ended, and not because it was killed."""
        return self._over.is_set()

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs."""
        return None if self._process is None else self._process.returncode

    def runtime(self) -> Runtime | None:
        """Where its broker is; None until it has told."""
        runtime = self.data.read_runtime()
        return runtime if runtime is not None and runtime.runner.pid == self.pid else None

    async def wait_over(self, timeout_s: float) -> None:
        """Return when it is over, or after this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._over.wait()

    async def kill(self, victim: RunProcess) -> bool:
        """SIGKILL to one of the run's processes; the runner is started again. False when it is gone already."""
        if victim.role is not Role.RUNNER:
            try:
                victim.process.kill()
            except psutil.NoSuchProcess:
                return False
            return True
        await self.restart()
        return True

    async def restart(self) -> None:
        """Kill the runner, and start it again: it reads the pipeline anew."""
        process = self._process
        assert process is not None, "it was started"
        self._killing = True
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await self._start()
        self._killing = False

    def ask_to_end(self) -> None:
        """Have it drain."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It runs inside the block, unless it ends by itself before the block does."""
        await self._start()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(), name="end of the runner")
            try:
                yield
            finally:
                watching.cancel()
                await self._end()

    async def _start(self) -> None:
        with append_private(self.log_file) as log:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_parent(list(self._command)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def _watch(self) -> None:
        while True:
            process = self._process
            assert process is not None, "it was started"
            await process.wait()
            if not self._killing and process is self._process:
                self._over.set()
                return
            # Its successor is being started.
            await asyncio.sleep(0.01)

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.ask_to_end()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
