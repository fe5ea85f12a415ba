"""The process of a user-defined function: started, watched, restarted, ended.

    start ─► Describe answers ─► ready ─► exits or hangs ─► backoff ─► start ...
      │ fails before it was ever ready, STARTS_MAX times in a row: UdfError
      └ once it was ready, it is restarted for ever

Above it: the vertex process. Below it: `client.py`, and the operating system. Streams survive a restart by themselves
(`calls.py`); what this module knows is processes and sockets.

A sidecar is well when it answers Describe (`millstream.health`). A function may compute or block for long without
being ill, and servers that answer from a thread or process of their own (the Python and Go SDKs do) answer meanwhile.
One that does not answer is reported soon, but killed and started anew only after `hung_after_s`: choose it longer than
the longest call of a server that cannot answer while it computes. One that a signal has stopped computes nothing, and
is killed as soon as any other process.

It ends by SIGTERM to its process group, then SIGKILL. It also ends when this process does, however that ends (see
`millstream.die_with_parent`); that reaches the command itself, so a shell script in front of a function should `exec`
it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from millstream.die_with_parent import NOT_FOUND, NOT_RUNNABLE
from millstream.errors import InfrastructureError, UdfError
from millstream.health import Health, Patience
from millstream.limits import DRAIN_TIMEOUT_S, SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.sandbox import NOT_HELD, Confinement, confined
from millstream.statistics import SidecarStatistics
from millstream.udf.background import beside
from millstream.udf.environment import inherited
from millstream.udf.lines import read_lines
from millstream.udf.native.client import GrpcUdfClient, describe, open_channel
from millstream.udf.program_lines import readable
from millstream.udf.socket_directory import open_socket_directory
from millstream_udf.wire.udf.v1 import udf_pb2

_log = logging.getLogger(__name__)

SOCKET_VARIABLE = "MILLSTREAM_UDF_SOCKET"
"""Environment variable that tells a sidecar where to serve."""
STARTS_MAX = 3
"""Starts in a row that may fail before the function was ever ready."""
REPORTED_AFTER_S = 10.0
"""Without an answer for so long, it is reported: a function that is slow in a server that cannot answer meanwhile is
nothing to report at once."""
_DESCRIBE_TIMEOUT_S = 5.0
LINES_KEPT = 30
"""Last lines of the sidecar's standard error, for the message when it dies."""
OUTPUT_TIMEOUT_S = 2.0
"""How long output may still come after the process has ended: a child of its own may hold the pipe open."""
# Exit codes that another start would only repeat: the command cannot be run, or names no function.
_HOPELESS = {2, NOT_FOUND, NOT_RUNNABLE, NOT_HELD}

LogLine = Callable[[str, str], None]
"""Gets "stdout" or "stderr", and a line without its end."""


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    """What to run, and for whom."""

    command: Sequence[str]
    role: str
    """udf, transformer, sink, fallback or source: for messages."""
    pipeline: str
    vertex: str
    replica: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to what is inherited (`environment.py`)."""
    cwd: Path | None = None
    held: Confinement = field(default_factory=Confinement)
    """What it may not exceed, and see."""
    start_timeout_s: float = 60.0
    """From the start until it must answer."""
    stop_timeout_s: float = DRAIN_TIMEOUT_S
    """From SIGTERM until SIGKILL."""
    hung_after_s: float = 60.0
    """Without an answer for so long, it is killed and started anew."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.pipeline}/{self.vertex}: {self.role}"


def python_command(function: str) -> list[str]:
    """The command of `udf: {python: function}`."""
    return [sys.executable, "-m", "millstream_udf", function]


class Sidecar(GrpcUdfClient):
    """A function and its process; see `UdfClient`. Made by `open_sidecar`."""

    def __init__(self, spec: SidecarSpec, socket: Path, channel: grpc.aio.Channel, log: LogLine) -> None:
        super().__init__(channel, udf_pb2.DescribeResponse())
        self._spec = spec
        self._socket = socket
        self._log_line = log
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._tail_before = ""
        """What was last reported of a process that had died."""
        self._restarts = 0
        self._is_ready = False

    @property
    def address(self) -> str:
        """Where it serves, for callers in other processes of this machine."""
        return f"unix:{self._socket}"

    def statistics(self) -> SidecarStatistics:
        return SidecarStatistics(
            running=self._is_ready,
            restarts=self._restarts,
            pid=None if self._process is None else self._process.pid,
            language=self.description.language,
            sdk_version=self.description.sdk_version,
        )

    async def wait_ready(self) -> None:
        """Returns when it has answered for the first time. Raises `UdfError` when it never will."""
        await asyncio.shield(self._ready)

    async def supervise(self) -> None:
        """Keep the process running until cancelled, or until it is clear that it never will be."""
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        starts = 0
        while True:
            starts += 1
            run = await self._run_once()
            if not self._ready.done() and (run.hopeless or starts >= STARTS_MAX):
                kind = InfrastructureError if run.not_held else UdfError
                self._ready.set_exception(kind(self._never_ready(run.why, starts)))
                return
            # One that ran for a while has recovered from whatever it was.
            if run.ready_s > SIDECAR_BACKOFF_LAST_S:
                pauses.begin_again()
            self._restarts += 1
            _log.warning(
                "%s %s; it is started again in %.1f s%s", self._spec.where, run.why, pauses.next_s, self._new_tail()
            )
            await pauses.wait()

    async def _run_once(self) -> _Run:
        """Start the process, and return when it has ended."""
        self._last_lines.clear()
        ready_s = 0.0
        try:
            async with self._open_process() as process:
                await self._wait_well(process)
                began = time.monotonic()
                self._is_ready = True
                try:
                    why = await self._watch(process)
                finally:
                    self._is_ready = False
                    ready_s = time.monotonic() - began
            return _Run(why, ready_s, hopeless=False)
        except _NotReady as error:
            return _Run(str(error), 0.0, hopeless=error.hopeless, not_held=error.not_held)
        except UdfError as error:
            # It answers, and does not speak our protocol.
            return _Run(str(error), 0.0, hopeless=True)
        except OSError as error:
            return _Run(f"cannot be started: {error}", 0.0, hopeless=False)

    async def _wait_well(self, process: asyncio.subprocess.Process) -> None:
        """Returns when it has answered Describe. Raises `_NotReady` when it has ended before, or took too long."""
        spec = self._spec
        async with beside(process.wait(), "exit") as ended, beside(self._describe(), "describe") as described:
            await asyncio.wait((ended, described), return_when=asyncio.FIRST_COMPLETED)
            answer = described.result() if described.done() else None
        if answer is not None:
            self.description = answer
            if not self._ready.done():
                self._ready.set_result(None)
        elif process.returncode is not None:
            raise _NotReady(
                f"exited with {_exit_text(process.returncode)} before it was ready",
                hopeless=process.returncode in _HOPELESS,
                not_held=process.returncode == NOT_HELD,
            )
        else:
            raise _NotReady(
                f"did not answer at {SOCKET_VARIABLE} within {spec.start_timeout_s:g} s of its start", hopeless=False
            )

    async def _describe(self) -> udf_pb2.DescribeResponse | None:
        try:
            return await describe(self._channel, self._spec.start_timeout_s)
        except grpc.aio.AioRpcError:
            return None

    async def _watch(self, process: asyncio.subprocess.Process) -> str:
        """Returns when the process has ended, or is to be ended because it hangs: why."""
        spec = self._spec
        patience = Patience(hung_s=spec.hung_after_s, reported_s=min(REPORTED_AFTER_S, spec.hung_after_s / 2))
        health = Health(
            process.pid,
            patience,
            report=lambda text: _log.warning("%s %s", spec.where, text),
            has_answered=True,
            waits=spec.held.strict,
        )
        async with beside(process.wait(), "exit") as ended, beside(health.until_hung(self._is_well), "health") as hung:
            await asyncio.wait((ended, hung), return_when=asyncio.FIRST_COMPLETED)
            if health.hung:
                _signal_group(process, signal.SIGKILL)
                await ended
                return f"{health.hung}: it was killed"
        return f"exited with {_exit_text(process.returncode)}"

    async def _is_well(self) -> bool:
        try:
            await describe(self._channel, _DESCRIBE_TIMEOUT_S)
        except (grpc.aio.AioRpcError, UdfError):
            return False
        return True

    @asynccontextmanager
    async def _open_process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        spec = self._spec
        # What a killed predecessor left must not be taken for its successor.
        self._socket.unlink(missing_ok=True)
        environment = self._environment()
        process = await asyncio.create_subprocess_exec(
            *confined(
                spec.command,
                spec.held,
                cwd=spec.cwd or Path.cwd(),
                sockets=self._socket.parent,
                search=environment.get("PATH", os.defpath),
            ),
            env=environment,
            cwd=spec.cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        async with (
            beside(read_lines(process.stdout, lambda line: self._log_line("stdout", line)), "stdout") as stdout,
            beside(read_lines(process.stderr, self._take_error_line), "stderr") as stderr,
        ):
            try:
                yield process
            finally:
                await self._end(process)
                self._process = None
                await asyncio.wait((stdout, stderr), timeout=OUTPUT_TIMEOUT_S)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        try:
            if process.returncode is None:
                _signal_group(process, signal.SIGTERM)
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), self._spec.stop_timeout_s)
        finally:
            # Also what it started itself and did not end.
            _signal_group(process, signal.SIGKILL)
        await process.wait()

    def _environment(self) -> dict[str, str]:
        spec = self._spec
        return {
            **inherited(os.environ),
            **spec.held.environment,
            **spec.env,
            SOCKET_VARIABLE: str(self._socket),
            "MILLSTREAM_PIPELINE": spec.pipeline,
            "MILLSTREAM_VERTEX": spec.vertex,
            "MILLSTREAM_REPLICA": str(spec.replica),
        }

    def _take_error_line(self, line: str) -> None:
        self._last_lines.extend(readable(line))
        self._log_line("stderr", line)

    def _tail(self) -> str:
        return "".join(f"\n    {line}" for line in self._last_lines)

    def _new_tail(self) -> str:
        """The last lines, unless they were those of the process before, or come with the error of the last start."""
        tail = self._tail()
        if not self._ready.done() or tail == self._tail_before:
            return ""
        self._tail_before = tail
        return tail

    def _never_ready(self, why: str, starts: int) -> str:
        tries = "" if starts == 1 else f" (tried {starts} times)"
        printed = f"Its last lines:{self._tail()}" if self._last_lines else "It printed no error"
        return f"{self._spec.where} {why}{tries}\n  command: {shlex.join(self._spec.command)}\n  {printed}"


@dataclass(frozen=True, slots=True)
class _Run:
    """How one life of the process went."""

    why: str
    """It ended."""
    ready_s: float
    """How long it was well."""
    hopeless: bool
    """Another start would end the same way."""
    not_held: bool = False
    """This system cannot hold it as it should be held."""


class _NotReady(Exception):
    def __init__(self, why: str, *, hopeless: bool, not_held: bool = False) -> None:
        super().__init__(why)
        self.hopeless = hopeless
        self.not_held = not_held


@asynccontextmanager
async def open_sidecar(spec: SidecarSpec, *, log: LogLine) -> AsyncIterator[Sidecar]:
    """A function whose process is running and answers, and goes on running until the end of the block.

    Raises `UdfError` with its exit code and last lines when it cannot be brought to answer. The event loop must run in
    a thread that lives as long as the process: see `millstream.die_with_parent`.
    """
    if spec.cwd is not None and not spec.cwd.is_dir():
        raise UdfError(f"{spec.where}: the working directory {spec.cwd} does not exist")
    with open_socket_directory() as directory:
        async with open_channel(f"unix:{directory / 'udf.sock'}") as channel:
            sidecar = Sidecar(spec, directory / "udf.sock", channel, log)
            async with beside(sidecar.supervise(), f"process of {spec.where}"):
                await sidecar.wait_ready()
                yield sidecar


def _signal_group(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"code {code}"
