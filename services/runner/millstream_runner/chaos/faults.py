"""Faults other than kills: pauses, with or without a successor; faults of the path to the broker; a full disk.

Above it: the session. Below it: signals, a second process for a paused worker, the lossy path between the workers and
their broker, and a file that uses all free space.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from millstream import codes
from millstream.errors import UserError
from millstream.files import append_private
from millstream.limits import KIB, MIB
from millstream.processes import open_process
from millstream_runner.chaos.lossy_path import LossyPath
from millstream_runner.chaos.plan import FaultKind, NetworkFault, Strike
from millstream_runner.chaos.processes import RunProcess

SMALL_DISK_BYTES_MAX = 4096 * MIB
"""A larger file system is not filled, because it may be in use."""
_SUCCESSOR_GRACE_S = 15.0
"""Time from the resumption of the paused owner until the successor, fenced in turn, is killed."""
_COMMIT_TIMEOUT_S = 5.0
"""How long to wait for a commit that a fault can affect."""
_LATE_S = 1.0
"""How late a late commit is: its sender has noticed that it did not arrive, and has repeated it."""
_POLL_S = 0.01
_BALLAST = "ballast"


class Injector:
    """Injects faults that last a while. It returns when the fault is over."""

    def __init__(self, log_file: Path, path: LossyPath | None, small_disk: Path | None) -> None:
        """`path`: between the vertices and their broker, for faults of the network. `small_disk`: a directory on a file
        system that may be filled, see `refuse_large_disk`."""
        self.succeeded = 0
        """Paused workers whose lanes a successor took over, and that resumed."""
        self.fenced = 0
        """Those among them that exited when they resumed, because they were no longer the owner."""
        self._log_file = log_file
        self._path = path
        self._small_disk = small_disk

    async def disturb(self, strike: Strike, victim: RunProcess | None) -> bool:
        """Inject one fault, from its beginning to its end. Returns False if there was nothing left to disturb."""
        if strike.kind is FaultKind.PAUSE:
            assert victim is not None, "a pause is of a process"
            return await self._pause(strike, victim)
        if strike.network is not None:
            assert self._path is not None, "the vertices reach their broker over it"
            return await _break(self._path, strike.network, strike.lasts_s)
        assert self._small_disk is not None, "there is a disk to fill"
        await _fill(self._small_disk / _BALLAST, strike.lasts_s)
        return True

    async def _pause(self, strike: Strike, victim: RunProcess) -> bool:
        try:
            victim.process.send_signal(signal.SIGSTOP)
        except psutil.NoSuchProcess:
            return False
        try:
            if strike.successor:
                await self._succeed(strike, victim)
            else:
                await asyncio.sleep(strike.lasts_s)
        finally:
            # It may have been killed while it was paused.
            with suppress(psutil.NoSuchProcess):
                victim.process.send_signal(signal.SIGCONT)
        return True

    async def _succeed(self, strike: Strike, victim: RunProcess) -> None:
        """Let another process do the work of the paused one, until some time after that has resumed."""
        with append_private(self._log_file) as log:
            async with open_process(victim.command, name="a successor", stdout=log, stderr=log) as successor:
                await asyncio.sleep(strike.lasts_s)
                try:
                    victim.process.send_signal(signal.SIGCONT)
                except psutil.NoSuchProcess:
                    # It was paused for so long that the runner has replaced it.
                    return
                self.succeeded += 1
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SUCCESSOR_GRACE_S):
                        await successor.wait()
                # The runner restarts the previous owner only when that has exited, which then fences the successor.
                self.fenced += not victim.process.is_running()


async def _break(path: LossyPath, fault: NetworkFault, seconds: float) -> bool:
    """Inject one fault of the network. Returns False if no commit came that it could affect."""
    if fault is NetworkFault.CUT:
        path.cut()
        return True
    if fault is NetworkFault.STALL:
        path.stall()
        try:
            await asyncio.sleep(seconds)
        finally:
            path.flow()
        return True
    path.plan(fault)
    if not await _met(path):
        return False
    if fault is NetworkFault.LATE_COMMIT:
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_COMMIT_TIMEOUT_S):
                await path.delayed()
                await asyncio.sleep(_LATE_S)
                await path.deliver_late()
    return True


async def _met(path: LossyPath) -> bool:
    """Wait until a planned fault has affected a commit."""
    for _ in range(round(_COMMIT_TIMEOUT_S / _POLL_S)):
        if not path.planned:
            return True
        await asyncio.sleep(_POLL_S)
    path.give_up_plans()
    return False


async def _fill(ballast: Path, seconds: float) -> None:
    """Leave no space on the disk for that long."""
    try:
        await asyncio.to_thread(_take_all_room, ballast)
        await asyncio.sleep(seconds)
    finally:
        ballast.unlink(missing_ok=True)


def _take_all_room(ballast: Path) -> None:
    with append_private(ballast) as file:
        size = 0
        for step in (64 * MIB, MIB, 4 * KIB):
            while True:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
                size += step


def refuse_large_disk(directory: Path) -> None:
    """Raise `UserError` unless the directory is on a file system that is small and, as far as is known, not used by
    anything else: filling any other would do harm."""
    total = shutil.disk_usage(directory).total
    if total > SMALL_DISK_BYTES_MAX:
        raise UserError(
            codes.EXPERIMENT_DISK,
            f"{directory} is on a file system of {total // MIB:,} MiB; a disk is filled only if it is small (at "
            f"most {SMALL_DISK_BYTES_MAX // MIB:,} MiB), for example one made with `mount -t tmpfs -o size=1g`",
        )
    device = directory.stat().st_dev
    for other in (Path("/"), Path.home(), Path.cwd(), Path(tempfile.gettempdir())):
        if other.exists() and other.stat().st_dev == device:
            raise UserError(
                codes.EXPERIMENT_DISK,
                f"{directory} is on the same file system as {other}, which other programs need; specify a directory "
                "on its own small file system",
            )
