"""Starts processes that are tied to this one, reads their output line by line, and ends them, if necessary by force.

    open_process ─► runs ─► ends by itself, is hung (killed), or the block ends: asked to end ─► killed
                     └─► lines of its output, until the last one

Above it: everything that starts processes and keeps them running: the runner (broker, workers, Spark driver), vertices
(functions), the Spark driver (its JVM), chaos. Each decides for itself what an exit means and whether to restart the
process; `millstream.pauses` has the pauses between starts, and `millstream.lines` the last lines for a message. Below
it: asyncio and the operating system.

A process leads its own session, so Ctrl-C in the terminal reaches only the process that started it. It ends when that
process ends, for any reason (`millstream.die_with_parent`): start processes from a thread that lives as long as this
process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from millstream import codes
from millstream.die_with_parent import dying_with_parent
from millstream.errors import InfrastructureError
from millstream.health import Health
from millstream.lines import LineSplitter

_FILES_OF_A_START = 16
"""Files that are open for a moment while a process is started."""
OUTPUT_TIMEOUT_S = 1.0
"""How long output may still arrive after the process has ended: a child that it left behind may keep the pipe open."""

OnLines = Callable[[list[bytes]], None]
"""Gets the lines that have arrived, without their line ends."""
Output = OnLines | IO[bytes] | int | None
"""Where an output goes: to a callback as lines, to a file, or to a destination that `subprocess` has a number for.
None: where the output of this process goes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """How a process is asked to end at the end of its block. After that it is killed."""

    timeout_s: float = 0.0
    """How long it may take. 0: it is killed without being asked."""
    by: signal.Signals | None = signal.SIGTERM
    """The signal that asks it. None: its standard input is closed instead."""


KILLED = Stop()
"""The process is killed without being asked."""


class _Pipes(asyncio.SubprocessProtocol):
    """The output and the end of a process.

    asyncio's own `Process.wait` returns only when all pipes are closed, so a child that was left behind and keeps one
    open would hide that its parent has ended.
    """

    def __init__(self, outputs: Mapping[int, OnLines]) -> None:
        self._outputs = outputs
        self._splitters = {descriptor: LineSplitter() for descriptor in outputs}
        self._open = set(outputs)
        self.ended = asyncio.Event()
        self.read = asyncio.Event()
        """Set when all output has been read."""
        self.error: Exception | None = None
        """The error that a callback raised."""
        if not outputs:
            self.read.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._give(fd, list(self._splitters[fd].feed(data)))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd not in self._open:
            return
        self._give(fd, list(self._splitters[fd].flush()))
        self._open.discard(fd)
        if not self._open:
            self.read.set()

    def process_exited(self) -> None:
        self.ended.set()

    def _give(self, fd: int, lines: list[bytes]) -> None:
        if not lines or self.error is not None:
            return
        try:
            self._outputs[fd](lines)
        except Exception as error:  # noqa: BLE001  # whatever it is
            # `open_process` raises it. The event loop would only log it.
            self.error = error


class Process:
    """One process. Made by `open_process`."""

    def __init__(self, transport: asyncio.SubprocessTransport, pipes: _Pipes, *, group: bool) -> None:
        self.pid = transport.get_pid()
        self._transport = transport
        self._pipes = pipes
        self._group = group

    @property
    def exit_code(self) -> int | None:
        """Negative: the signal that ended the process. None: it is running."""
        return self._transport.get_returncode()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def tell(self, order: str) -> None:
        """Writes a line to its standard input, if that is a pipe."""
        if (stdin := self._stdin) is not None and self.running:
            stdin.write(f"{order}\n".encode())

    @property
    def _stdin(self) -> asyncio.WriteTransport | None:
        return cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal: to its process group, if it was started with `group`. A process that has ended gets none."""
        with suppress(ProcessLookupError, PermissionError):
            if self._group:
                os.killpg(self.pid, number)
            elif self.running:
                # Not the transport's method: it polls the process, which takes the exit code from the loop.
                os.kill(self.pid, number)

    def pause(self) -> None:
        """Stops the process until `resume`. Returns when all of its threads have stopped: a thread that runs when the
        signal is sent could otherwise still answer a question that was asked after this call."""
        # A process that has ended does not run either; the loop may have taken its exit code.
        with suppress(ProcessLookupError, ChildProcessError):
            if self.running:
                os.kill(self.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        with suppress(ProcessLookupError):
            if self.running:
                os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Ends the process by force."""
        self.signal(signal.SIGKILL)

    async def kill_when_hung(self, health: Health, ask: Callable[[], Awaitable[object]]) -> None:
        """Kills the process when it is hung, then returns; see `Health.until_hung`."""
        await health.until_hung(ask)
        # A stopped process takes no other signal.
        self.kill()

    async def wait(self) -> int:
        """Waits for the end and returns the exit code; negative: the signal that ended the process."""
        await self._pipes.ended.wait()
        code = self.exit_code
        assert code is not None, "it has ended"
        return code

    async def end(self, stop: Stop) -> None:
        """Asks the process to end, and kills it if it does not end in time. Returns when it has ended."""
        try:
            if self.running and stop.timeout_s > 0:
                if stop.by is not None:
                    self.signal(stop.by)
                    # A stopped process takes the signal when it continues.
                    self.signal(signal.SIGCONT)
                elif (stdin := self._stdin) is not None:
                    stdin.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(stop.timeout_s):
                        await self.wait()
        finally:
            # With a group, this also kills processes that it started and did not end.
            self.kill()
        await self.wait()


@asynccontextmanager
async def open_process(
    command: Sequence[str],
    *,
    name: str,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: Output = None,
    stderr: Output = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    group: bool = False,
    is_tied: bool = False,
    is_private: bool = False,
    stop: Stop = KILLED,
) -> AsyncIterator[Process]:
    """Starts a process. At the end of the block, the process has ended and its output has been read.

    Args:
        command: Program and arguments.
        name: The name for messages.
        stdin: As for `subprocess`.
        stdout, stderr: Where its output goes.
        environment: The whole environment; None: this process's.
        cwd: Working directory; None: this process's.
        pass_fds: File descriptors that it inherits.
        group: Signals go to all processes in its group, which includes its children by default.
        is_tied: The command itself makes sure that it ends with this process (`millstream.sandbox`).
        is_private: Its files are for this user alone, whatever the umask. (Not of a tied one.)
        stop: How it is asked to end.

    Raises `InfrastructureError` when it cannot be started.
    """
    outputs = {descriptor: output for descriptor, output in ((1, stdout), (2, stderr)) if callable(output)}
    try:
        transport, pipes = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Pipes(outputs),
            *(command if is_tied else dying_with_parent(list(command), private=is_private)),
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE if callable(stdout) else stdout,
            stderr=asyncio.subprocess.PIPE if callable(stderr) else stderr,
            env=_as_utf8(environment) if outputs else environment,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        raise InfrastructureError(
            codes.PROCESS_NOT_STARTED, f"cannot start {name} ({command[0]}): {_reason(error)}"
        ) from error
    process = Process(transport, pipes, group=group)
    try:
        yield process
    finally:
        try:
            await process.end(stop)
            with suppress(TimeoutError):
                async with asyncio.timeout(OUTPUT_TIMEOUT_S):
                    await pipes.read.wait()
        finally:
            transport.close()
    if pipes.error is not None:
        raise pipes.error


def _as_utf8(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    """The environment of a process whose output is read here, as UTF-8: a Python would otherwise use the encoding that
    the user has chosen for a terminal."""
    return {**(os.environ if environment is None else environment), "PYTHONIOENCODING": "utf-8"}


def _reason(error: OSError) -> str:
    """Why a process cannot be started. uvloop gives no error number if there are too many open files."""
    if error.errno is not None and error.errno > 0:
        return error.strerror or str(error)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        is_full = len(os.listdir("/proc/self/fd")) + _FILES_OF_A_START > limit
    except OSError:
        is_full = True
    return f"too many open files (`ulimit -n` is {limit})" if is_full else str(error)


def exit_text(code: int) -> str:
    """An exit code in words: `code 3`, `signal SIGKILL`."""
    if code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
        return f"signal {-code}"
    return f"code {code}"
