"""Runs of other systems beside Millstream: their environments, their processes, and what these use.

Above it: `peers.py` and `state_peers.py`. Below it: pip, the operating system, a Kafka server of the tests. It knows no
system by name.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
from observed_run import MIB

LIMIT_S = 900.0
KAFKA_PROPERTIES = "log.flush.interval.messages=9223372036854775807\nlog.retention.check.interval.ms=300000\n"
"""As Kafka is run: the file system decides when it writes to the disk."""
_LOOK_EVERY_S, _LOOK_FOR_BEGIN_S = 0.25, 0.02
_PR_SET_CHILD_SUBREAPER = 36


class NotAvailableError(Exception):
    """A peer cannot be installed or run here. The message says why."""


class Used(NamedTuple):
    """What one run took."""

    wall_s: float
    cpu_s: float
    """From the moment at which the run had begun, of all its processes."""
    broker_cpu_s: float
    memory_mib: float


@dataclass(slots=True)
class Watch:
    """Looks from a thread at the memory of all that was started, and at its processor time when the run begins."""

    apart: set[int]
    begun: Callable[[], bool]
    ended_cpu_s: float
    """Of processes that had ended before the run."""
    peak_bytes: int = 0
    start_cpu_s: float | None = None
    """Of the run's processes until it had begun; None before that."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def look_until_ended(self) -> None:
        look_s = time.monotonic()
        while not self._ended.wait(_LOOK_FOR_BEGIN_S if self.start_cpu_s is None else _LOOK_EVERY_S):
            if self.start_cpu_s is None and self.begun():
                used_s = sum(_cpu_s(one) for one in started(self.apart))
                self.start_cpu_s = used_s + children_s() - self.ended_cpu_s
            if time.monotonic() >= look_s:
                look_s += _LOOK_EVERY_S
                self.peak_bytes = max(self.peak_bytes, sum(_pss_bytes(one) for one in started(self.apart)))

    def end(self) -> None:
        self._ended.set()


def _pss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _cpu_s(process: psutil.Process) -> float:
    """With the children that it has waited for."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def started(apart: set[int]) -> list[psutil.Process]:
    """All processes below this one; what lost its parent becomes a child of this one (`keep_orphans`)."""
    return [one for one in psutil.Process().children(recursive=True) if one.pid not in apart]


def keep_orphans() -> None:
    """Their processor time is known only to the process that waits for them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(apart: set[int]) -> None:
    """Wait for what a run has left behind; what does not end by itself is ended."""
    deadline = time.monotonic() + 5.0
    while left := started(apart):
        for one in left:
            with suppress(ChildProcessError, psutil.Error):
                if time.monotonic() > deadline:
                    one.kill()
                os.waitpid(one.pid, os.WNOHANG)
        time.sleep(0.02)


def measured(run: Callable[[], None], broker_pid: int | None, begun: Callable[[], bool] = lambda: False) -> Used:
    """Run it to its end. Processor time counts from when `begun` is seen to be true, or from the start."""
    broker = psutil.Process(broker_pid) if broker_pid is not None else None
    apart = {broker.pid} if broker else set()
    before, at_broker_s, began_s = children_s(), _broker_s(broker), time.perf_counter()
    watch = Watch(apart, begun, before)
    looking = threading.Thread(target=watch.look_until_ended)
    looking.start()
    try:
        run()
        wall_s = time.perf_counter() - began_s
    finally:
        reap(apart)
        watch.end()
        looking.join()
    cpu_s = children_s() - before - (watch.start_cpu_s or 0.0)
    return Used(wall_s, cpu_s, _broker_s(broker) - at_broker_s, watch.peak_bytes / MIB)


def children_s() -> float:
    """Processor time of all ended processes of this one."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _broker_s(broker: psutil.Process | None) -> float:
    if broker is None:
        return 0.0
    times = broker.cpu_times()
    return times.user + times.system


def call(directory: Path, *command: str | Path, **environment: str) -> None:
    """Run it in the directory, to its end, with what it prints in a file `log` there."""
    call_together(directory, [command], **environment)


def call_together(directory: Path, commands: Sequence[Sequence[str | Path]], **environment: str) -> None:
    """The same with several at once. If one fails, the others are ended."""
    deadline = time.monotonic() + LIMIT_S
    with (directory / "log").open("ab") as log, ExitStack() as processes:
        running = []
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment_of(Path(command[0]), environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            processes.callback(_end, process)
            running.append(process)
        for process in running:
            if process.wait(deadline - time.monotonic()) != 0:
                raise NotAvailableError(f"it ended with {process.returncode}: {tail(directory)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def environment_of(program: Path, more: Mapping[str, str]) -> dict[str, str]:
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYSPARK_PYTHON": str(program), **more}


def tail(directory: Path) -> str:
    """The end of what was printed."""
    return (directory / "log").read_text(errors="replace")[-1500:]


def installed(home: Path, requirements: Sequence[str]) -> Path:
    """The Python of an environment below `home` with these packages, which is made when it is not there."""
    if not requirements:
        return Path(sys.executable)
    place = home / "-".join(requirements).replace("==", "-")
    python, done = place / "bin" / "python", place / "done"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "-q", *requirements]
        result = subprocess.run(pip, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise NotAvailableError(f"pip cannot install {', '.join(requirements)}: {result.stderr[-500:]}")
        done.touch()
    return python
