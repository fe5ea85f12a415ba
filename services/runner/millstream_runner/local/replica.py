"""One process of a local run, restarted when it dies: a worker, or the Spark driver.

Above it: the runner. Below it: the process. It knows the exit codes, log lines and heartbeat of the process and how to
ask it to stop, but not what it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import DamageError, FencedError, InfrastructureError, MillstreamError, UdfError, UserError
from millstream.health import Health, Patience, open_heartbeat
from millstream.lines import LastLines
from millstream.pauses import pause
from millstream.print_channel import Print, open_channel
from millstream.processes import Process, open_process
from millstream.record import ReplicaId
from millstream.telemetry.logging import NOTICE
from millstream_runner.local.directory import ProcessIdentity, RunningProcess
from millstream_runner.local.logfiles import LogFile, level_of, parse_line, process_label
from millstream_runner.local.memory_watch import denied, until_exceeded
from millstream_runner.local.policy import Completion, ProcessEnding, RestartPolicy, StopRun
from millstream_runner.local.processes import identity_of
from millstream_runner.local.states import State

ERROR_LEVELS = frozenset({"ERROR", "CRITICAL", "FATAL"})
WARNING_LEVELS = ERROR_LEVELS | {"WARNING", "WARN"}

LINES_KEPT = 3
"""Lines that a process printed outside its log, kept for the message when it dies."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """A process to start."""

    name: str
    """Its name, and that of its log."""
    replicas: tuple[ReplicaId, ...] = ()
    """The replicas of vertices that it runs."""
    metrics_port: int | None = None

    @property
    def label(self) -> str:
        """The name with the replicas, for people."""
        return process_label(self.name, [replica.name for replica in self.replicas])


class Logs:
    """The log files of a process: one for each of its replicas, and one for the lines of no replica."""

    def __init__(self, directory: Path, plan: ProcessPlan, files: ExitStack, printing: Sequence[str] = ()) -> None:
        """`files` closes them. `printing`: the replicas that print."""
        names = {plan.name, *(replica.name for replica in plan.replicas)}
        self._files = {name: files.enter_context(LogFile(directory / f"{name}.jsonl")) for name in names}
        self._own = self._files[plan.name]
        self._output = self._files[printing[0]] if len(printing) == 1 else self._own

    def keep(self, line: bytes, entry: Mapping[str, Any]) -> None:
        """Store a line of a log; the entry's `process` says whose."""
        self._files.get(str(entry.get("process", "")), self._own).write(line)

    def keep_output(self, lines: bytes) -> None:
        """Store printed output, which does not say which replica's log sink printed it."""
        self._output.write(lines)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run cannot continue."""

    process: str
    """Its label, or the name of the failed replica in it."""
    exit_code: int
    reason: str
    message: str
    """The last error that the process logged; empty if it logged none."""
    code: Code | None = None
    """The code of that error; without one, a code for how the process ended."""
    detail: str = ""
    """Its stack trace, for --debug."""
    shown: bool = False
    """Whether the message has been on the screen."""

    @property
    def heading(self) -> str:
        """What has happened to which process, with the code if there is one; the message belongs below."""
        code = f"error[{self.code}]: " if self.code is not None else ""
        return f"{code}{self.process} {self.reason}"

    def as_json(self) -> dict[str, Any]:
        """The failure for `millstream status`."""
        return {
            "process": self.process,
            "code": self.code.id if self.code is not None else None,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the processes of a run need of it."""

    progress: Callable[[ReplicaId], object]
    """A value that changes when the lanes of a replica advance."""
    have_ended: Callable[[ReplicaId], Awaitable[bool]]
    """Whether its marks say that its lanes have nothing left to do."""
    prints: Print
    """Prints lines for the user."""
    on_entry: Callable[[Mapping[str, Any]], bool]
    """Gets the warnings and worse that they log, and returns whether it has shown them."""
    on_health: Callable[[Mapping[str, Any]], None]
    """Gets a line about every restart and silence."""
    on_change: Callable[[], None]
    """Called whenever the state of a process, or the process, has changed."""


class Supervisor(ABC):
    """Keeps one process running until it has ended, is asked to stop, or fails permanently; `keep_running` is its only
    task."""

    def __init__(
        self, plan: ProcessPlan, logs: Logs, hooks: Hooks, *, takes_orders: bool = False, memory_max: int | None = None
    ) -> None:
        """`takes_orders`: see `tell`. `memory_max`: bytes of memory that the process may take; None for no limit."""
        self.plan = plan
        self.hooks = hooks
        self._logs = logs
        self.state = State.STARTING
        self.restarts = 0
        self.failure: Failure | None = None
        self.over = asyncio.Event()
        """Set when nothing will be started any more."""
        self._takes_orders = takes_orders
        self._memory_max = memory_max
        self._stop = asyncio.Event()
        self._process: Process | None = None
        self._identity: ProcessIdentity | None = None
        self._last_error: Mapping[str, Any] = {}
        self._error_shown = False
        self._error_before = ""
        """The last error of the previous process, unless that had made progress."""
        self._oversize = ""
        """How the current process has exceeded its memory, worded to follow its name; empty if it has not."""
        self._last_lines = LastLines(LINES_KEPT)

    @property
    def process(self) -> RunningProcess | None:
        """The current process."""
        if self._identity is None:
            return None
        replicas = tuple(replica.name for replica in self.plan.replicas)
        return RunningProcess(self.plan.name, self._identity, self.plan.metrics_port, replicas)

    def tell(self, order: str) -> None:
        """Send a line to the current process, if it takes orders."""
        if self._process is not None:
            self._process.tell(order)

    def stop(self, *, grace_s: float) -> None:
        """Ask the process to drain and end; after `grace_s` it is killed. It is not started again.

        The second time it only shortens the grace.
        """
        if self.over.is_set():
            return
        asyncio.get_running_loop().call_later(grace_s, self._kill)
        if not self._stop.is_set():
            self._set_state(State.DRAINING)
        self._stop.set()

    def keep(self, line: bytes, entry: Mapping[str, Any]) -> None:
        """Store a line of its log, given as bytes and as an object."""
        self._logs.keep(line, entry)

    @abstractmethod
    def progress(self) -> Mapping[str, object]:
        """Values that change when the process makes progress, by the name of the part that does."""

    async def have_lanes_ended(self) -> bool:
        """Whether all its lanes have nothing left to do. A process without lanes ends only when it is asked to."""
        return False

    @abstractmethod
    def hear(self, text: str) -> None:
        """Handle what it sends besides its heartbeat."""

    @abstractmethod
    def started(self) -> None:
        """There is a new process."""

    def changed(self) -> None:
        """The state, or the process, has changed."""
        self.hooks.on_change()

    async def keep_running(self, command: Callable[[], Sequence[str]]) -> None:
        """Run the result of `command`, which is called for each start, until it is over. Raises nothing that the
        process causes: that is in `failure`."""
        policy = RestartPolicy()
        try:
            while not self._stop.is_set():
                before = self.progress()
                ending, well_s = await self._run_once(command())
                if self._stop.is_set():
                    break
                verdict = policy.judge(
                    ending,
                    lanes_ended=ending.exit_code == 0 and await self.have_lanes_ended(),
                    progressed=self._has_progressed(before),
                    well_s=well_s,
                )
                if isinstance(verdict, Completion):
                    self._set_state(State.DONE)
                    return
                if isinstance(verdict, StopRun):
                    self._fail(verdict)
                    return
                self.restarts += 1
                if len(policy.failures) == 1:
                    self._error_before = ""
                self._report_restart(ending, verdict.delay_s)
                self._set_state(State.RESTARTING)
                await pause(verdict.delay_s, unless=self._stop)
            self._set_state(State.STOPPED)
        finally:
            self.over.set()
            self.changed()

    async def _run_once(self, command: Sequence[str]) -> tuple[ProcessEnding, float]:
        """How the process ended, and for how many seconds it ran well."""
        self._last_error, self._error_shown = {}, False
        self._oversize = ""
        self._last_lines.clear()
        begun_s = time.monotonic()
        with open_heartbeat(self.hear) as heartbeat, open_channel(self._print) as channel:
            async with (
                # Ended with the block, if it is still running.
                open_process(
                    command,
                    name=self.plan.name,
                    stdin=asyncio.subprocess.PIPE if self._takes_orders else asyncio.subprocess.DEVNULL,
                    # Only libraries print past the channel.
                    stdout=lambda lines: self._logs.keep_output(b"\n".join(lines)),
                    stderr=self._take_lines,
                    environment={**os.environ, **heartbeat.environment, **channel.environment},
                    pass_fds=(heartbeat.write_end, channel.descriptor),
                ) as process,
                asyncio.TaskGroup() as group,
            ):
                self._process, self._identity = process, identity_of(process.pid)
                if not self._stop.is_set():
                    self._set_state(State.RUNNING)
                self.started()
                health = Health(process.pid, Patience(), report=self._report_health)
                tasks = [
                    group.create_task(self._end_when_asked(process), name="end"),
                    group.create_task(channel.serve(), name="print"),
                    group.create_task(
                        process.kill_when_hung(health, heartbeat.beat), name=f"health of {self.plan.name}"
                    ),
                ]
                if self._memory_max is not None:
                    too_large = self._kill_when_too_large(process, self._memory_max)
                    tasks.append(group.create_task(too_large, name="memory"))
                exit_code = await process.wait()
                for task in tasks:
                    task.cancel()
            # What it logged last.
            heartbeat.take()
        self._process = self._identity = None
        oversize = "" if health.hung else self._oversize
        ending = ProcessEnding(exit_code, health.hung, oversize or denied(exit_code, self._last_lines.text()))
        return ending, time.monotonic() - begun_s - health.silent_s

    async def _end_when_asked(self, process: Process) -> None:
        await self._stop.wait()
        process.signal(signal.SIGTERM)

    async def _kill_when_too_large(self, process: Process, limit: int) -> None:
        self._oversize = await until_exceeded(process.pid, limit)
        process.kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def _failing(self) -> str:
        """What ended the process: the replica that logged the last error; otherwise the process itself."""
        return str(self._last_error.get("process", self.plan.name))

    def _has_progressed(self, before: Mapping[str, object]) -> bool:
        """Whether the process has made progress since; if a replica ended it, whether that replica has."""
        now = self.progress()
        if self._failing in now:
            return now[self._failing] != before[self._failing]
        return now != before

    def _fail(self, verdict: StopRun) -> None:
        message = verdict.advice or str(self._last_error.get("message", "")) or self._last_lines.text()
        said = codes.find(str(self._last_error.get("code", "")))
        self.failure = Failure(
            process=self.plan.label if self._failing == self.plan.name else self._failing,
            exit_code=verdict.exit_code,
            reason=verdict.reason,
            message=message,
            code=said if said is not None and said.exit_code == verdict.exit_code else verdict.code,
            detail=str(self._last_error.get("exception", "")),
            shown=self._error_shown,
        )
        self._set_state(State.FAILED)

    def _report_restart(self, ending: ProcessEnding, delay_s: float) -> None:
        message = str(self._last_error.get("message", ""))
        if message:
            # It has already been shown, once for all processes that end with it one after another.
            cause = "the same error again" if message == self._error_before else ""
        else:
            # If the process died without a message, its last line says the cause.
            cause = "" if ending.hung or ending.oversize else self._last_lines.last
        self._error_before = message
        self._report(f"{ending.text}; it is restarted in {delay_s:.1f} s" + (f" ({cause})" if cause else ""))

    def _report_health(self, text: str) -> None:
        self._report(text)
        if self.state is State.RUNNING:
            self._set_state(State.SILENT)
        elif self.state is State.SILENT:
            self._set_state(State.RUNNING)

    def _report(self, text: str) -> None:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="microseconds"),
            "level": "warning",
            "process": self.plan.name,
            "message": text,
        }
        self.keep(json.dumps(entry).encode(), entry)
        self.hooks.on_health({**entry, "process": self.plan.label})

    async def _print(self, lines: bytes) -> None:
        await self.hooks.prints(lines)
        self._logs.keep_output(lines.removesuffix(b"\n"))

    def _take_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        entry = parse_line(line, self.plan.name)
        self.keep(line, entry)
        if "level" not in entry:
            # Not a log line: what Python or the system prints when a process dies. Its end says the cause.
            self._last_lines.add(str(entry["message"]))
            return
        level = level_of(entry)
        if level not in WARNING_LEVELS and not entry.get(NOTICE):
            return
        repeated = entry["message"] == self._error_before
        of_process = entry["process"] == self.plan.name
        # Its own messages concern all its replicas.
        shown = repeated or self.hooks.on_entry({**entry, "process": self.plan.label} if of_process else entry)
        # What a function logs is shown, but it is not the reason why the process ends.
        if level in ERROR_LEVELS and "role" not in entry:
            self._last_error, self._error_shown = entry, shown

    def _set_state(self, state: State) -> None:
        self.state = state
        self.changed()


def worst(failures: list[Failure]) -> Failure | None:
    """The failure that a run reports: a user error before damage before the rest, the first of its kind."""
    return min(failures, key=lambda failure: _ORDER.get(failure.exit_code, len(_ORDER)), default=None)


_ORDER = {
    error.exit_code: place
    for place, error in enumerate((UserError, UdfError, DamageError, InfrastructureError, FencedError, MillstreamError))
}
