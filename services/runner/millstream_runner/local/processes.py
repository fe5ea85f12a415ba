"""Identities of processes: a runner's child processes are recognized by id and start time, also by the next run.

Above it: the runner. Below it: what the system reports about processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil

from millstream import codes
from millstream.errors import InfrastructureError
from millstream_runner.local.directory import DataDirectory, ProcessIdentity, Runtime

_CREATED_TOLERANCE_S = 0.5
"""Two readings of one process's start time may differ by a clock tick and by corrections of the boot time."""


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this id now."""
    try:
        return ProcessIdentity(pid, psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of a child, which may have exited already. A child keeps its id until its parent has reaped it, and
    after its exit there is nothing left to distinguish."""
    return identify(pid) or ProcessIdentity(pid, 0.0)


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process is running (a zombie is not)."""
    try:
        process = psutil.Process(identity.pid)
        return (
            abs(process.create_time() - identity.created) <= _CREATED_TOLERANCE_S
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.Error:
        return False


def refuse_live_runner(directory: DataDirectory, previous: Runtime) -> None:
    """Raise `InfrastructureError` if the last run of a data directory is still running. Its lock is only as good as the
    lock file, which may have been removed during that run."""
    runner = previous.runner
    if runner.pid != os.getpid() and is_alive(runner):
        raise InfrastructureError(
            codes.DATA_DIRECTORY_IN_USE,
            f"the data directory {directory.root} is in use by process {runner.pid}, whose lock file was removed; "
            f"end that run first (`kill {runner.pid}`), or choose another directory with --data-dir",
        )


def end_stale(identities: Iterable[ProcessIdentity], *, timeout_s: float = 10.0) -> list[int]:
    """Kill those that are still running, and wait until they are gone. Returns their ids.

    They belong to an earlier run, whose lock ended with its runner, so no process is left that could use them.
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
            codes.PROCESS_STAYS,
            f"process {remaining[0].pid} of an earlier run does not end; it may be stuck in disk I/O. Try again later",
        )
    return [process.pid for process in stale]
