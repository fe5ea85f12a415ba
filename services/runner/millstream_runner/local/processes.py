"""Child processes of the runner: starting, telling apart, ending.

A child dies with the runner (it cannot outlive the runner, however that ends) and leads a session of its own, so that
Ctrl-C in the terminal reaches the runner alone, which then decides who stops when. What it prints goes, line by line,
to its log.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import psutil

from millstream.die_with_parent import dying_with_parent
from millstream.errors import InfrastructureError
from millstream.health import Heartbeat
from millstream_runner.local.directory import ProcessIdentity
from millstream_runner.local.logfiles import LineSplitter

_READ_BYTES = 64 * 1024
_LEFTOVER_OUTPUT_S = 1.0
"""How long output is read after the end of a child: a process it left behind may hold the pipe open."""
_CREATED_TOLERANCE_S = 0.5
"""Two readings of one process's start may differ by the clock tick and by corrections of the boot time."""


def identify(pid: int) -> ProcessIdentity | None:
    """Who runs under this id now."""
    try:
        return ProcessIdentity(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process runs (a zombie does not)."""
    try:
        process = psutil.Process(identity.pid)
        same = abs(process.create_time() - identity.created) <= _CREATED_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end_stale(identities: Iterable[ProcessIdentity], *, timeout_s: float = 10.0) -> list[int]:
    """Kill those that still run, and wait until they are gone. Returns their ids.

    They belong to an earlier run whose lock has ended with its runner, so nobody is left who could use them.
    """
    stale: list[psutil.Process] = []
    for identity in identities:
        if is_alive(identity):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(identity.pid)
                # psutil checks the start time again before it sends the signal.
                process.kill()
                stale.append(process)
    _, remaining = psutil.wait_procs(stale, timeout=timeout_s)
    if remaining:
        raise InfrastructureError(
            f"process {remaining[0].pid} of an earlier run does not end; it may hang in disk I/O. Try again later"
        )
    return [process.pid for process in stale]


class Child:
    """One running child process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, identity: ProcessIdentity) -> None:
        self.name = name
        self.identity = identity
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def tell(self, order: str) -> None:
        """A line for its standard input, where it takes orders."""
        if self._process.stdin is not None and self.running:
            self._process.stdin.write(f"{order}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        return await self._process.wait()


@asynccontextmanager
async def open_child(
    name: str,
    command: Sequence[str],
    *,
    on_output: Callable[[list[bytes]], None],
    on_line: Callable[[bytes], None],
    heartbeat: Heartbeat | None = None,
    environment: Mapping[str, str] | None = None,
    takes_orders: bool = False,
) -> AsyncIterator[Child]:
    """Start a process; when the block ends it is killed, if it still runs, and what it printed has been read.

    `on_output` gets the lines of its standard output, as many as are there; `on_line` each one of its standard error.
    `environment` is added to that of this process. `takes_orders`: it reads lines from its standard input.
    """
    descriptors = () if heartbeat is None else (heartbeat.write_end,)
    added = {} if heartbeat is None else heartbeat.environment
    try:
        process = await asyncio.create_subprocess_exec(
            *dying_with_parent(list(command)),
            stdin=asyncio.subprocess.PIPE if takes_orders else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=descriptors,
            env={**os.environ, **added, **(environment or {})},
        )
    except OSError as error:
        raise InfrastructureError(f"cannot start {name} ({command[0]}): {error.strerror}") from error
    # A child that has ended already is a zombie until it is waited for, so it can still be identified; unless the
    # loop's watcher was faster. Then there is nothing to tell apart any more.
    child = Child(name, process, identify(process.pid) or ProcessIdentity(process.pid, 0.0))
    assert process.stdout is not None, "it is a pipe"
    assert process.stderr is not None, "it is a pipe"
    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(_read_lines(process.stdout, on_output), name=f"output of {name}"),
            group.create_task(_read_lines(process.stderr, lambda lines: _each(lines, on_line)), name=f"log of {name}"),
        ]
        try:
            yield child
        finally:
            if child.running:
                child.signal(signal.SIGKILL)
            await process.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEFTOVER_OUTPUT_S):
                    await asyncio.wait(reading)
            for task in reading:
                task.cancel()


async def _read_lines(stream: asyncio.StreamReader, on_lines: Callable[[list[bytes]], None]) -> None:
    splitter = LineSplitter()
    while data := await stream.read(_READ_BYTES):
        if lines := list(splitter.feed(data)):
            on_lines(lines)
    if lines := list(splitter.flush()):
        on_lines(lines)


def _each(lines: list[bytes], on_line: Callable[[bytes], None]) -> None:
    for line in lines:
        on_line(line)
