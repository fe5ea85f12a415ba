"""Faults that are no kills: pauses, with or without a successor.

Above it: the session. Below it: signals, and a second process for a vertex whose owner sleeps.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from millstream.chaos.plan import FaultKind, Strike
from millstream.chaos.processes import RunProcess
from millstream.tether import tethered

_SUCCESSOR_GRACE_S = 15.0
"""From the waking of the owner before until the successor, fenced in turn, is ended."""


class Injector:
    """Injects what lasts a while. It returns when the fault is over."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file

    async def disturb(self, strike: Strike, victim: RunProcess | None) -> bool:
        """One fault, from its beginning to its end. False when there was nothing to disturb any more."""
        if strike.kind is FaultKind.PAUSE:
            assert victim is not None, "a pause is of a process"
            return await self._pause(strike, victim)
        raise AssertionError(f"{strike.kind} is not injected here")

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
            # It may have been killed while it slept.
            with suppress(psutil.NoSuchProcess):
                victim.process.send_signal(signal.SIGCONT)
        return True

    async def _succeed(self, strike: Strike, victim: RunProcess) -> None:
        """Another process does the work of the one that sleeps, until a while after that has woken up."""
        with self._log_file.open("ab") as log:
            successor = await asyncio.create_subprocess_exec(
                *tethered(list(victim.command)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            await asyncio.sleep(strike.lasts_s)
            with suppress(psutil.NoSuchProcess):
                victim.process.send_signal(signal.SIGCONT)
            with suppress(TimeoutError):
                async with asyncio.timeout(_SUCCESSOR_GRACE_S):
                    await successor.wait()
        finally:
            if successor.returncode is None:
                with suppress(ProcessLookupError):
                    successor.kill()
                await successor.wait()
