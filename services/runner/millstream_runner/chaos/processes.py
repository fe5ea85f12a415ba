"""The current processes of a run, each with its role.

Above it: the session. Below it: the operating system. It starts and ends nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

import psutil

from millstream.confine import START
from millstream.record import ReplicaId
from millstream_runner.chaos.plan import Role

_MESH_MODULE = "millstream_worker"
_BROKERS = ("nats-server", "valkey-server", "redis-server")
"""Programs of the brokers that a run starts."""
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
    """What distinguishes it from others with its role: the replicas that it runs or works for, or the role."""
    process: psutil.Process
    command: Sequence[str]
    replicas: tuple[ReplicaId, ...] = ()
    """The replicas of vertices that a worker runs, or that the process of a function works for."""


def processes_of(runner_pid: int) -> list[RunProcess]:
    """Every living process of the run, the runner first. Empty if the runner is gone."""
    try:
        runner = psutil.Process(runner_pid)
        found = [RunProcess(Role.RUNNER, Role.RUNNER.value, runner, runner.cmdline())]
        # One scan of all processes of the machine; asking each process for its children would scan as often.
        below: dict[int, list[psutil.Process]] = defaultdict(list)
        for process in runner.children(recursive=True):
            with suppress(psutil.Error):
                below[process.ppid()].append(process)
    except psutil.Error:
        return []
    found += _below(found[0], below)
    return found


def _below(parent: RunProcess, below: Mapping[int, Sequence[psutil.Process]]) -> Iterator[RunProcess]:
    """The processes that a process has started, at any depth."""
    for child in below.get(parent.process.pid, ()):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if not command:
            # It is dead, and its parent has not reaped it yet.
            continue
        try:
            one = _known(parent, child, command)
        except psutil.Error:
            continue
        if one is not None:
            yield one
        # A function in a sandbox has a parent process that waits for it and is part of it. A process without a role
        # belongs to the one that has started it.
        waits = one is not None and one.role is Role.SIDECAR and START in command
        above = parent if one is None or waits else one
        yield from _below(replace(above, process=child), below)


def _known(parent: RunProcess, process: psutil.Process, command: Sequence[str]) -> RunProcess | None:
    """The role of a process, by its command and its parent; None if it has no role."""
    modules = [after for before, after in pairwise(command) if before == "-m"]
    if any("die_with_parent.py" in part for part in command[:4]):
        # It is about to execute another program.
        return None
    # Redis writes its address into its command line.
    if process.name() in _BROKERS:
        return RunProcess(Role.BROKER, Role.BROKER.value, process, command)
    if _MESH_MODULE in modules:
        replicas = _replicas(command)
        return RunProcess(Role.WORKER, ",".join(map(str, replicas)), process, command, replicas)
    if _DRIVER_MODULE in modules:
        return RunProcess(Role.SPARK, Role.SPARK.value, process, command)
    if any(module in _WORKER_MODULES for module in modules):
        return RunProcess(Role.PYTHON, Role.PYTHON.value, process, command)
    if command[0].endswith("java"):
        return RunProcess(Role.JVM, Role.JVM.value, process, command)
    # What a worker has started is the process of a function. What that starts in turn belongs to the function.
    if parent.role is Role.WORKER:
        replicas = _works_for(process, parent)
        return RunProcess(Role.SIDECAR, f"{','.join(map(str, replicas))} function", process, command, replicas)
    return None


def _replicas(command: Sequence[str]) -> tuple[ReplicaId, ...]:
    """The replicas that a worker runs, according to its command line."""
    names = takewhile(lambda part: not part.startswith("-"), command[command.index("--replicas") + 1 :])
    return tuple(ReplicaId(vertex, int(number)) for vertex, _, number in (name.rpartition("-") for name in names))


def _works_for(process: psutil.Process, worker: RunProcess) -> tuple[ReplicaId, ...]:
    """The replica whose function a process runs; all of the worker's replicas if the system does not say."""
    try:
        environment = process.environ()
        return (ReplicaId(environment["MILLSTREAM_VERTEX"], int(environment["MILLSTREAM_REPLICA"])),)
    except (psutil.Error, KeyError, ValueError, OSError):
        return worker.replicas
