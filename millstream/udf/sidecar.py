"""Starts, watches, restarts and ends the process of a user-defined function.

    start ─► answers the probe ─► ready ─► exits or hangs ─► backoff ─► start ...
      │ fails before it was ever ready, STARTS_MAX times: UdfError (KILLS_MAX times if it is killed from outside)
      └ once it was ready, it is restarted forever
    with OnChange.RESTART: a file changes ─► its calls are answered, or 0.5 s pass ─► start ...
                           fails before it is ready ─► a file is saved ─► start ...

Above it: `function.py`, which passes the probe of a protocol. Below it: `millstream.processes`. This module handles
processes and sockets, and does not depend on a protocol; streams survive a restart by themselves (`calls.py`).

A sidecar is healthy when it answers the probe (`millstream.health`). A healthy function may compute or block for a long
time, and servers that answer from a thread or process of their own (as the Python and Go SDKs do) still answer the
probe. A function that does not answer is reported soon, but it is killed and restarted only after `hung_after_s`:
choose it longer than the longest call of a server that cannot answer while it computes. A function that a signal has
stopped does not compute, and is killed as soon as any other process.

A function that is restarted for a change (`sources.py`) reads no more calls and answers those that it has read. So on
each lane the old code answers the first calls and the new code the rest. Calls that the old code does not answer in
time are sent again, as after any other end. A function that a debugger has stopped (`debug_port`) does not answer, and
is not killed for that.

The process is ended by SIGTERM to its process group, then SIGKILL. It also ends when this process does, however that
ends (see `millstream.die_with_parent`). That signal only reaches the command itself, so a shell script in front of a
function should `exec` it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path

from millstream import codes
from millstream.background import beside
from millstream.die_with_parent import NOT_FOUND, NOT_RUNNABLE
from millstream.errors import InfrastructureError, UdfError
from millstream.files import make_private_directories
from millstream.health import REST_S, Health, Patience
from millstream.limits import DRAIN_TIMEOUT_S, KILLS_MAX, SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.lines import LastLines, text_of
from millstream.pauses import Pauses, until_next
from millstream.processes import Process, Stop, exit_text, open_process
from millstream.sandbox import NOT_HELD, Confinement, confined
from millstream.statistics import SidecarStatistics
from millstream.telemetry.logging import NOTICE
from millstream.tracebacks import shortened
from millstream.udf.endings import Ending
from millstream.udf.environment import inherited
from millstream.udf.exits import LOOK_INTERVAL_S, OomKills, ending_of, oom_kills_of
from millstream.udf.lives import Lives
from millstream.udf.program_lines import readable
from millstream.udf.protocol import NoAnswerError
from millstream.udf.slow_calls import OldestCall, watch_calls
from millstream.udf.sources import LIST_VARIABLE, OnChange, SourceFiles
from millstream_udf.version import SDK_VERSION

_log = logging.getLogger(__name__)

STARTS_MAX = 3
"""Starts in a row that may fail before the function was ever ready."""
REPORTED_AFTER_S = 10.0
"""A function that has not answered for this long is reported. This is not immediate, because a slow function may be in
a server that cannot answer while it computes."""
START_TIMEOUT_S = 60.0
"""Time from the start of a function until it must answer, unless the pipeline says otherwise."""
_PROBE_TIMEOUT_S = 5.0
CHANGE_GRACE_S = 0.5
"""How long a function whose file has changed may take to answer the calls that it has read."""
_LOOK_INTERVAL_S = 0.1
"""Time between two checks of a function's files, with `OnChange.RESTART`."""
_REPORT_INTERVAL_S = 1.0
"""The same if a change is only reported."""
_SETTLED_S = 0.05
"""When the files have not changed for this long, saving is complete: editors write several files, one after another."""
_REPLACED_S = 1.0
"""A file that is missing for longer was removed, and is not being replaced."""
DEBUG_VARIABLE = "MILLSTREAM_DEBUG_PORT"
"""Environment variable that makes the SDK wait for a debugger at this port of this machine."""
_FOR_DEBUGGERS_S = 30 * 86400.0
"""How long the first answer may take if a person must attach a debugger first: practically without limit."""
_DEBUGGED_STOP_S = 1.0
"""How long a function with a debugger may take to end: a process that a debugger has stopped ignores SIGTERM."""
_ABORT_S = 2.0
"""How long a process may take to print where it is when a call has taken too long."""
WAITS = "The pipeline waits, and continues when you have saved the fix."
LINES_KEPT = 60
"""Last lines of the sidecar's standard error, for the message when it dies."""
# Exit codes that another start would only repeat: the command cannot be run, or does not name a function.
_HOPELESS = {2, NOT_FOUND, NOT_RUNNABLE, NOT_HELD}

LogLine = Callable[[str, str], None]
"""Gets "stdout" or "stderr", and a line without its line end."""
Probe = Callable[[float], Awaitable[object]]
"""Waits that many seconds for the function, and returns when it has answered. Raises `NoAnswerError`, and `UdfError`
if the answer does not fit."""


class HeldUp(Enum):
    """Why a function waits for a person."""

    TO_BE_FIXED = "fixing"
    DEBUGGED = "debugged"
    """The function is in a debugger, or waits for one."""


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    """What to run, and for which vertex."""

    command: Sequence[str]
    role: str
    """The role for messages: udf, transformer, sink, fallback or source."""
    pipeline: str
    vertex: str
    replica: int = 0
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables in addition to the inherited ones (`environment.py`)."""
    cwd: Path | None = None
    held: Confinement = field(default_factory=Confinement)
    """The limits of the function, and what it can see."""
    start_timeout_s: float = START_TIMEOUT_S
    """Time from the start until the function must answer."""
    stop_timeout_s: float = DRAIN_TIMEOUT_S
    """Time from SIGTERM until SIGKILL."""
    timeout_s: float | None = None
    """How long a call may take; None: without limit."""
    hung_after_s: float = 60.0
    """A function that has not answered for this long is killed and restarted."""
    on_change: OnChange = OnChange.IGNORE
    """What happens when a file of the function changes."""
    debug_port: int | None = None
    """The port at which the function waits for a debugger before it starts; None: it does not wait."""
    on_held_up: Callable[[HeldUp | None], None] = lambda by: None
    """Called when the process begins to wait for a person, and with None when it no longer waits."""
    on_slow: Callable[[bool], None] = lambda is_slow: None
    """Called when the oldest call has had no answer for long, and when that is no longer so."""

    @property
    def where(self) -> str:
        """The name for messages."""
        return f"{self.pipeline}/{self.vertex}: {self.role}"


def python_command(function: str) -> list[str]:
    """The command of `udf: {python: function}`."""
    return [sys.executable, "-P", "-m", "millstream_udf", function]


class Sidecar:
    """A function's process. Runs inside `open_sidecar`."""

    def __init__(
        self,
        spec: SidecarSpec,
        socket: Path,
        serves_at: Mapping[str, str],
        probe: Probe,
        log: LogLine,
        lives: Lives,
    ) -> None:
        """`serves_at`: environment variables that make the program serve at `socket`. `lives` gets each start and end
        of the process."""
        self.spec = spec
        self._lives = lives
        self._socket = socket
        self._serves_at = serves_at
        self._probe = probe
        self._log_line = log
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._process: Process | None = None
        self._oldest = OldestCall()
        self._overdue = False
        """The process is ended because a call has taken too long."""
        self._last_lines = LastLines(LINES_KEPT)
        self._tail_before = ""
        """The last lines that were reported for a process that had died."""
        self._restarts = 0
        self._is_ready = False
        self._sources = SourceFiles(socket.parent / "imported", spec.command, spec.cwd or Path.cwd())
        self._reported_start = ""
        """Why the last start failed, if the function waits for a change of its files."""

    def statistics(self) -> SidecarStatistics:
        return SidecarStatistics(
            running=self._is_ready,
            restarts=self._restarts,
            pid=None if self._process is None else self._process.pid,
            oldest_call_s=self._oldest.seconds,
        )

    async def wait_ready(self) -> None:
        """Returns when the function has answered for the first time. Raises `UdfError` or `InfrastructureError` if it
        never will."""
        await asyncio.shield(self._ready)

    async def supervise(self) -> None:
        """Keeps the process running until cancelled, or until it is clear that it cannot start."""
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        starts = kills = 0
        while True:
            self._lives.begin()
            run = await self._run_once()
            ending = self._ending_of(run)
            self._lives.end(ending)
            killed = run.exit_code is not None and not ending.own
            starts, kills = starts + (not killed), kills + killed
            if run.changed:
                self._note(f"{self._sources.name(run.changed)} changed: the function is restarted")
                continue
            if run.waits_for_change and self.spec.on_change is OnChange.RESTART:
                await self._wait_for_change(run)
                starts = kills = 0
                continue
            if not self._ready.done() and (run.hopeless or starts >= STARTS_MAX or kills >= KILLS_MAX):
                never = self._never_ready(run.why, starts + kills)
                self._ready.set_exception(
                    InfrastructureError(codes.FUNCTION_NOT_HELD, never)
                    if run.not_held
                    else UdfError(codes.FUNCTION_NOT_STARTED, never)
                )
                return
            # A process that ran for a while had recovered from earlier problems.
            if run.ready_s > SIDECAR_BACKOFF_LAST_S or (run.ready_s and self._lives.divides):
                pauses.begin_again()
            self._restarts += 1
            _log.log(
                # If all starts fail, one error describes everything.
                logging.WARNING if self._ready.done() or killed else logging.INFO,
                "%s %s; it is restarted in %.1f s%s",
                self.spec.where,
                run.why,
                pauses.next_s,
                self._new_tail(),
            )
            await pauses.wait()

    async def _run_once(self) -> _Run:
        """Starts the process, and returns when it has ended."""
        self._last_lines.clear()
        self._overdue = False
        self._sources.begin()
        try:
            async with self._open_process() as process:
                async with (
                    beside(self._live(process), "life") as living,
                    beside(self._until_changed(), "changes of files") as changing,
                ):
                    await asyncio.wait((living, changing), return_when=asyncio.FIRST_COMPLETED)
                    if living.done():
                        return replace(living.result(), exit_code=process.exit_code)
                await process.end(Stop(CHANGE_GRACE_S))
                return _Run("its files changed", 0.0, changed=changing.result())
        except InfrastructureError as error:
            return _Run(str(error), 0.0)

    async def _live(self, process: Process) -> _Run:
        """Watches the process from its start to its end."""
        if self.spec.debug_port is not None:
            self.spec.on_held_up(HeldUp.DEBUGGED)
            if "millstream_udf" not in self.spec.command:
                self._note(
                    f"the process of {self.spec.vertex} is {process.pid}, for a debugger to attach to (of Go: `dlv "
                    f"attach {process.pid}`); it is not replaced while it does not answer"
                )
        if (failed := await self._failed_start(process)) is not None:
            return failed
        began = time.monotonic()
        self._is_ready = True
        if self._reported_start:
            self._reported_start = ""
            self._note("the function is running, and the pipeline continues")
        kills = oom_kills_of(process.pid)
        try:
            async with beside(_follow(kills), "out-of-memory kills"):
                hung = await self._watch(process)
        finally:
            self._is_ready = False
        exited = f"exited with {exit_text(await process.wait())}"
        if self._overdue:
            exited = f"did not answer a call within {self.spec.timeout_s:g} s, and was ended"
        return _Run(
            hung or exited,
            time.monotonic() - began,
            killed=bool(hung),
            overdue=self._overdue,
            out_of_memory=kills.have_risen(time.monotonic()),
        )

    async def _until_changed(self) -> list[Path]:
        """Returns which files of the function have changed, when they are saved. Never returns if a change does not
        restart the function."""
        reports = self.spec.on_change is OnChange.REPORT
        if self.spec.on_change is not OnChange.IGNORE:
            while not (changed := self._sources.changed()):  # noqa: ASYNC110  # files have no event to wait for
                await asyncio.sleep(until_next(_REPORT_INTERVAL_S) if reports else _LOOK_INTERVAL_S)
            if not reports:
                await self._until_saved()
                return self._sources.changed() or changed
            self._note(
                f"{self._sources.name(changed)} changed, but this run continues with the old version: restart it to "
                "use the change, or use `millstream run --watch`"
            )
        await asyncio.Event().wait()
        return []

    async def _until_saved(self) -> None:
        """Returns when the files no longer change."""
        gone_s, state = 0.0, self._sources.state()
        while True:
            await asyncio.sleep(_SETTLED_S)
            before, state = state, self._sources.state()
            gone_s += _SETTLED_S
            if before == state and (not self._sources.is_missing_one() or gone_s >= _REPLACED_S):
                return

    async def _wait_for_change(self, run: _Run) -> None:
        """Reports once that the function cannot be started, and returns when one of its files was saved."""
        printed = "\n".join(self._printed()) or run.why
        if printed == self._reported_start:
            self._note("the function cannot be started, for the same reason as before")
        else:
            # The line is not the reason why this process ends: it continues.
            _log.error(
                "the function cannot be started: %s\n%s",
                printed,
                WAITS,
                extra={"role": self.spec.role, "code": codes.FUNCTION_NOT_STARTED.id, NOTICE: True},
            )
        self._reported_start = printed
        self.spec.on_held_up(HeldUp.TO_BE_FIXED)
        try:
            while not self._sources.written():  # noqa: ASYNC110  # files have no event to wait for
                await asyncio.sleep(_LOOK_INTERVAL_S)
            await self._until_saved()
        finally:
            self.spec.on_held_up(None)

    def _note(self, text: str) -> None:
        """Logs something that the developer of the function should see."""
        _log.info("%s", text, extra={"role": self.spec.role, NOTICE: True})

    async def _failed_start(self, process: Process) -> _Run | None:
        """Returns None when the function has answered. Otherwise how its start has failed: the process ended before, or
        took too long, or the answer does not fit."""
        spec = self.spec
        timeout_s = spec.start_timeout_s if spec.debug_port is None else _FOR_DEBUGGERS_S
        async with beside(process.wait(), "exit") as ended, beside(self._answer(timeout_s), "probe") as asked:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            answer = asked.result() if asked.done() else None
        if isinstance(answer, UdfError):
            # The program answers, but does not use our protocol.
            return _Run(str(answer), 0.0, hopeless=True, waits_for_change=True)
        if answer is True:
            if not self._ready.done():
                self._ready.set_result(None)
            return None
        code = process.exit_code
        if code is None:
            where = " or ".join(self._serves_at)
            return _Run(f"did not answer at {where} within {spec.start_timeout_s:g} s of its start", 0.0)
        return _Run(
            f"exited with {exit_text(code)} before it was ready",
            0.0,
            hopeless=code in _HOPELESS,
            not_held=code == NOT_HELD,
            waits_for_change=code >= 0 and code != NOT_HELD,
        )

    async def _answer(self, timeout_s: float) -> bool | UdfError:
        """Whether the function has answered in time, or the error if its answer does not fit."""
        try:
            await self._probe(timeout_s)
        except NoAnswerError:
            return False
        except UdfError as error:
            return error
        return True

    async def _is_well(self) -> bool:
        return await self._answer(_PROBE_TIMEOUT_S) is True

    async def _watch(self, process: Process) -> str:
        """Returns when the process has ended: empty, or why it was killed."""
        spec = self.spec
        if spec.debug_port is not None:
            await process.wait()
            return ""
        health = Health(
            process.pid,
            Patience(hung_s=spec.hung_after_s, reported_s=min(REPORTED_AFTER_S, spec.hung_after_s / 2)),
            report=lambda text: _log.warning("%s %s", spec.where, text),
            has_answered=True,
            waits=spec.held.strict,
            rest_s=REST_S,
        )
        watching = watch_calls(
            self._lives,
            self._oldest,
            report=lambda text: _log.warning("%s %s", spec.where, text),
            on_slow=spec.on_slow,
            timeout_s=spec.timeout_s,
            end=partial(self._end_overdue, process),
        )
        async with beside(process.kill_when_hung(health, self._is_well), "health"), beside(watching, "calls"):
            await process.wait()
        return f"{health.hung}: it was killed" if health.hung else ""

    async def _end_overdue(self, process: Process) -> None:
        """End the process because a call has taken too long."""
        self._overdue = True
        # Programs in Python and Go print where they are. Others end without a word.
        process.signal(signal.SIGABRT)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_S):
                await process.wait()
        process.kill()
        await process.wait()

    @asynccontextmanager
    async def _open_process(self) -> AsyncIterator[Process]:
        spec = self.spec
        self._remove_sockets()
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
            stop=Stop(spec.stop_timeout_s if spec.debug_port is None else _DEBUGGED_STOP_S),
        ) as process:
            self._process = process
            try:
                yield process
            finally:
                self._process = None

    def _remove_sockets(self) -> None:
        """Empties the directory of sockets: the socket of a killed predecessor must not be mistaken for that of its
        successor. A sandbox has left a link there, or a directory with the files of its function."""
        sockets = self._socket.parent
        try:
            if sockets.is_symlink():
                sockets.unlink()
            elif sockets.exists():
                shutil.rmtree(sockets)
            make_private_directories(sockets)
        except OSError as error:
            raise InfrastructureError(
                codes.TEMPORARY_DIRECTORY, f"the directory for its sockets cannot be prepared: {error}"
            ) from error

    def _environment(self) -> dict[str, str]:
        spec = self.spec
        return {
            **inherited(os.environ),
            **spec.held.environment,
            **spec.env,
            **self._serves_at,
            **self._for_development(),
            "MILLSTREAM_PIPELINE": spec.pipeline,
            "MILLSTREAM_VERTEX": spec.vertex,
            "MILLSTREAM_REPLICA": str(spec.replica),
            "MILLSTREAM_VERSION": SDK_VERSION,
        }

    def _for_development(self) -> dict[str, str]:
        variables = {}
        if self.spec.on_change is not OnChange.IGNORE:
            variables[LIST_VARIABLE] = str(self._sources.listed)
        if self.spec.on_change is OnChange.RESTART:
            # Python compares its cache with the source by the second and the size, and a change may alter neither.
            variables["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.spec.debug_port is not None:
            variables[DEBUG_VARIABLE] = str(self.spec.debug_port)
        return variables

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            self._log_line("stdout", text_of(line))

    def _take_error_lines(self, lines: list[bytes]) -> None:
        for line in map(text_of, lines):
            self._last_lines.add(*readable(line))
            self._log_line("stderr", line)

    def _ending_of(self, run: _Run) -> Ending:
        if run.exit_code is None or run.killed:
            return Ending(run.why, own=False)
        tail = self._last_lines.text()
        if run.overdue:
            return Ending(run.why, own=True, tail=tail)
        return ending_of(run.exit_code, out_of_memory=run.out_of_memory, tail=tail)

    def _new_tail(self) -> str:
        """The last lines, unless they are the same as for the previous process, or are part of the error of the last
        start."""
        tail = f"\n{text}" if (text := self._last_lines.text("    ")) else ""
        if not self._ready.done() or tail == self._tail_before:
            return ""
        self._tail_before = tail
        return tail

    def _never_ready(self, why: str, starts: int) -> str:
        tries = "" if starts == 1 else f" (tried {starts} times)"
        printed = self._printed() or ["it printed no error"]
        return "\n  ".join((f"{self.spec.where} {why}{tries}", *printed, f"command: {shlex.join(self.spec.command)}"))

    def _printed(self) -> list[str]:
        """The part of the last lines that a person needs; all of them are in the log."""
        return shortened(self._last_lines.text())


async def _follow(kills: OomKills) -> None:
    """Looks at the kernel's count regularly, so that it is known when it rises."""
    while kills.known:
        await asyncio.sleep(until_next(LOOK_INTERVAL_S))
        kills.look(time.monotonic())
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class _Run:
    """The result of one start of the process."""

    why: str
    """Why the process ended."""
    ready_s: float
    """How long the process was ready."""
    hopeless: bool = False
    """Another start would end the same way."""
    not_held: bool = False
    """This system cannot confine the process as required."""
    waits_for_change: bool = False
    """The function's own code prevented the start."""
    changed: Sequence[Path] = ()
    """The process was ended because these files changed."""
    exit_code: int | None = None
    """None if it was not started, or was ended because of a change."""
    killed: bool = False
    """It was killed from here because it hung."""
    overdue: bool = False
    """It was ended from here because a call took too long."""
    out_of_memory: bool = False
    """Just before its end, the kernel killed a process in its cgroup because memory was full."""


@asynccontextmanager
async def open_sidecar(sidecar: Sidecar) -> AsyncIterator[None]:
    """Runs the process of the sidecar, which answers when the block begins, until the end of the block.

    Raises `UdfError` with the exit code and the last lines if it never answers. The event loop must run in a thread
    that lives as long as the process: see `millstream.die_with_parent`.
    """
    spec = sidecar.spec
    if spec.cwd is not None and not spec.cwd.is_dir():
        raise UdfError(codes.FUNCTION_NOT_STARTED, f"{spec.where}: the working directory {spec.cwd} does not exist")
    async with beside(sidecar.supervise(), f"process of {spec.where}"):
        await sidecar.wait_ready()
        yield
