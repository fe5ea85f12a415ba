"""The process of a user-defined function: started, watched, restarted, ended.

    start ─► answers the probe ─► ready ─► exits or hangs ─► backoff ─► start ...
      │ fails before it was ever ready, STARTS_MAX times in a row: UdfError
      └ once it was ready, it is restarted forever

Above it: `function.py`, which gives it the probe of a protocol. Below it: `millstream.processes`. What this module
knows is processes and sockets, and no protocol; streams survive a restart by themselves (`calls.py`).

A sidecar is well when it answers the probe (`millstream.health`). A function may compute or block for long without
being ill, and servers that answer from a thread or process of their own (the Python and Go SDKs do) answer meanwhile.
One that does not answer is reported soon, but killed and started again only after `hung_after_s`: choose it longer than
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
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream import codes
from millstream.die_with_parent import NOT_FOUND, NOT_RUNNABLE
from millstream.errors import InfrastructureError, UdfError
from millstream.health import Health, Patience
from millstream.limits import DRAIN_TIMEOUT_S, SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.lines import LastLines, text_of
from millstream.pauses import Pauses
from millstream.processes import Process, Stop, exit_text, open_process
from millstream.sandbox import NOT_HELD, Confinement, confined
from millstream.statistics import SidecarStatistics
from millstream.udf.background import beside
from millstream.udf.environment import inherited
from millstream.udf.program_lines import readable
from millstream.udf.protocol import NoAnswerError

_log = logging.getLogger(__name__)

STARTS_MAX = 3
"""Starts in a row that may fail before the function was ever ready."""
REPORTED_AFTER_S = 10.0
"""Without an answer for so long, it is reported: a function that is slow in a server that cannot answer meanwhile is
nothing to report at once."""
_PROBE_TIMEOUT_S = 5.0
LINES_KEPT = 30
"""Last lines of the sidecar's standard error, for the message when it dies."""
# Exit codes that another start would only repeat: the command cannot be run, or names no function.
_HOPELESS = {2, NOT_FOUND, NOT_RUNNABLE, NOT_HELD}

LogLine = Callable[[str, str], None]
"""Gets "stdout" or "stderr", and a line without its end."""
Probe = Callable[[float], Awaitable[object]]
"""Returns when the function has answered, waiting for it for so many seconds. Raises `NoAnswerError`, and `UdfError`
when what answers does not fit."""


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
    """Without an answer for so long, it is killed and started again."""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.pipeline}/{self.vertex}: {self.role}"


def python_command(function: str) -> list[str]:
    """The command of `udf: {python: function}`."""
    return [sys.executable, "-m", "millstream_udf", function]


class Sidecar:
    """A function's process. Runs inside `open_sidecar`."""

    def __init__(
        self, spec: SidecarSpec, socket: Path, serves_at: Mapping[str, str], probe: Probe, log: LogLine
    ) -> None:
        """`serves_at`: environment variables that tell the program to serve at `socket`."""
        self.spec = spec
        self._socket = socket
        self._serves_at = serves_at
        self._probe = probe
        self._log_line = log
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._process: Process | None = None
        self._last_lines = LastLines(LINES_KEPT)
        self._tail_before = ""
        """What was last reported of a process that had died."""
        self._restarts = 0
        self._is_ready = False

    def statistics(self) -> SidecarStatistics:
        pid = None if self._process is None else self._process.pid
        return SidecarStatistics(running=self._is_ready, restarts=self._restarts, pid=pid)

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
                never = self._never_ready(run.why, starts)
                self._ready.set_exception(
                    InfrastructureError(codes.FUNCTION_NOT_HELD, never)
                    if run.not_held
                    else UdfError(codes.FUNCTION_NOT_STARTED, never)
                )
                return
            # One that ran for a while has recovered from whatever it was.
            if run.ready_s > SIDECAR_BACKOFF_LAST_S:
                pauses.begin_again()
            self._restarts += 1
            _log.warning(
                "%s %s; it is started again in %.1f s%s", self.spec.where, run.why, pauses.next_s, self._new_tail()
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
        except InfrastructureError as error:
            return _Run(str(error), 0.0, hopeless=False)

    async def _wait_well(self, process: Process) -> None:
        """Returns when it has answered. Raises `_NotReady` when it has ended before, or took too long, and `UdfError`
        when what answers does not fit."""
        spec = self.spec
        async with beside(process.wait(), "exit") as ended, beside(self._first_answer(), "probe") as asked:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            answer = asked.result() if asked.done() else None
        if isinstance(answer, UdfError):
            raise answer
        if answer is True:
            if not self._ready.done():
                self._ready.set_result(None)
        elif process.exit_code is not None:
            raise _NotReady(
                f"exited with {exit_text(process.exit_code)} before it was ready",
                hopeless=process.exit_code in _HOPELESS,
                not_held=process.exit_code == NOT_HELD,
            )
        else:
            where = " or ".join(self._serves_at)
            raise _NotReady(f"did not answer at {where} within {spec.start_timeout_s:g} s of its start", hopeless=False)

    async def _first_answer(self) -> bool | UdfError:
        """Whether it has answered in time, or why it does not fit."""
        try:
            await self._probe(self.spec.start_timeout_s)
        except NoAnswerError:
            return False
        except UdfError as error:
            return error
        return True

    async def _is_well(self) -> bool:
        try:
            await self._probe(_PROBE_TIMEOUT_S)
        except (NoAnswerError, UdfError):
            return False
        return True

    async def _watch(self, process: Process) -> str:
        """Returns when the process has ended, or was killed because it hangs: why."""
        spec = self.spec
        patience = Patience(hung_s=spec.hung_after_s, reported_s=min(REPORTED_AFTER_S, spec.hung_after_s / 2))
        health = Health(
            process.pid,
            patience,
            report=lambda text: _log.warning("%s %s", spec.where, text),
            has_answered=True,
            waits=spec.held.strict,
        )
        async with beside(process.kill_when_hung(health, self._is_well), "health"):
            code = await process.wait()
        return f"{health.hung}: it was killed" if health.hung else f"exited with {exit_text(code)}"

    @asynccontextmanager
    async def _open_process(self) -> AsyncIterator[Process]:
        spec = self.spec
        # What a killed predecessor left must not be taken for its successor.
        self._socket.unlink(missing_ok=True)
        environment = self._environment()
        command = confined(
            spec.command,
            spec.held,
            cwd=spec.cwd or Path.cwd(),
            sockets=self._socket.parent,
            search=environment.get("PATH", os.defpath),
        )
        async with open_process(
            command,
            name="its process",
            stdout=self._take_lines,
            stderr=self._take_error_lines,
            environment=environment,
            cwd=spec.cwd,
            group=True,
            is_tied=True,
            stop=Stop(spec.stop_timeout_s),
        ) as process:
            self._process = process
            try:
                yield process
            finally:
                self._process = None

    def _environment(self) -> dict[str, str]:
        spec = self.spec
        return {
            **inherited(os.environ),
            **spec.held.environment,
            **spec.env,
            **self._serves_at,
            "MILLSTREAM_PIPELINE": spec.pipeline,
            "MILLSTREAM_VERTEX": spec.vertex,
            "MILLSTREAM_REPLICA": str(spec.replica),
        }

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            self._log_line("stdout", text_of(line))

    def _take_error_lines(self, lines: list[bytes]) -> None:
        for line in map(text_of, lines):
            self._last_lines.add(*readable(line))
            self._log_line("stderr", line)

    def _tail(self) -> str:
        return f"\n{text}" if (text := self._last_lines.text("    ")) else ""

    def _new_tail(self) -> str:
        """The last lines, unless they were those of the process before, or come with the error of the last start."""
        tail = self._tail()
        if not self._ready.done() or tail == self._tail_before:
            return ""
        self._tail_before = tail
        return tail

    def _never_ready(self, why: str, starts: int) -> str:
        tries = "" if starts == 1 else f" (tried {starts} times)"
        tail = self._tail()
        printed = f"Its last lines:{tail}" if tail else "It printed no error"
        return f"{self.spec.where} {why}{tries}\n  command: {shlex.join(self.spec.command)}\n  {printed}"


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
async def open_sidecar(sidecar: Sidecar) -> AsyncIterator[None]:
    """Its process is running and answers, and goes on running until the end of the block.

    Raises `UdfError` with its exit code and last lines when it cannot be brought to answer. The event loop must run in
    a thread that lives as long as the process: see `millstream.die_with_parent`.
    """
    spec = sidecar.spec
    if spec.cwd is not None and not spec.cwd.is_dir():
        raise UdfError(codes.FUNCTION_NOT_STARTED, f"{spec.where}: the working directory {spec.cwd} does not exist")
    async with beside(sidecar.supervise(), f"process of {spec.where}"):
        await sidecar.wait_ready()
        yield
