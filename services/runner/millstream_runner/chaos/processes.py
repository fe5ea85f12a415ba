"""The processes of a run as they are right now, each with what it is for.

Above it: the session. Below it: the operating system. It starts and ends nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import psutil

from millstream.confine import START
from millstream_runner.chaos.plan import Role

_VERTEX_MODULE = "millstream_worker"
_DRIVER_MODULE = "millstream_reduce.spark.driver"
_WORKER_MODULES = (
    "millstream_reduce.spark.worker_daemon",
    "millstream_reduce.spark.function_daemon",
    "pyspark.daemon",
    "pyspark.worker",
)


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One process of a run."""

    role: Role
    name: str
    """What tells it from others of its role: the replica of the vertex it belongs to, or the role."""
    process: psutil.Process
    command: Sequence[str]


def processes_of(runner_pid: int) -> list[RunProcess]:
    """Every process of the run that is alive, the runner first. Empty when the runner is gone."""
    try:
        runner = psutil.Process(runner_pid)
        found = [RunProcess(Role.RUNNER, Role.RUNNER.value, runner, runner.cmdline())]
        # One look at all processes of the machine; asking each for its children would be as many.
        below: dict[int, list[psutil.Process]] = defaultdict(list)
        for process in runner.children(recursive=True):
            with suppress(psutil.Error):
                below[process.ppid()].append(process)
    except psutil.Error:
        return []
    found += _below(runner_pid, "", below)
    return found


def _below(parent: int, owner: str, below: Mapping[int, Sequence[psutil.Process]]) -> Iterator[RunProcess]:
    """What the process `parent` has started, and what that has. `owner` is the replica it belongs to."""
    for child in below.get(parent, ()):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if not command:
            # Dead, and not waited for yet.
            continue
        role, name = _role_of(command, owner)
        if role is not None:
            yield RunProcess(role, name, child, command)
        # In front of a function in a sandbox waits a process that is as much a part of it.
        waits = role is Role.SIDECAR and START in command
        yield from _below(child.pid, owner if waits else name, below)


def _role_of(command: Sequence[str], owner: str) -> tuple[Role | None, str]:
    """What a process is for, by its command and by whose child it is; and the name it goes under."""
    modules = [after for before, after in pairwise(command) if before == "-m"]
    if any("tether.py" in part for part in command[:4]):
        # About to become what it starts.
        return None, owner
    if command and command[0].endswith("nats-server"):
        return Role.BROKER, Role.BROKER.value
    if _VERTEX_MODULE in modules:
        return Role.VERTEX, f"{_option(command, '--vertex')}-{_option(command, '--replica')}"
    if _DRIVER_MODULE in modules:
        return Role.SPARK, Role.SPARK.value
    if any(module in _WORKER_MODULES for module in modules):
        return Role.WORKER, Role.WORKER.value
    if command and command[0].endswith("java"):
        return Role.JVM, Role.JVM.value
    # What a vertex has started itself is the process of a function. What that starts in turn is the function's own.
    if owner and not owner.endswith(_FUNCTION) and owner not in {role.value for role in Role}:
        return Role.SIDECAR, f"{owner}{_FUNCTION}"
    return None, owner


_FUNCTION = " function"


def _option(command: Sequence[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command[:-1] else ""


def replica_of_process(one: RunProcess) -> tuple[str, int]:
    """The vertex and the number of the replica that a vertex process or a function's process works for."""
    vertex, _, replica = one.name.removesuffix(_FUNCTION).rpartition("-")
    return vertex, int(replica)
