"""Signs of life of a JVM, for `millstream.health`: it answers, or works, or waits for the machine.

Time alone does not tell whether one hangs. On a machine with much to do a start takes minutes and an answer many
seconds; but a process that works uses processor time, and one that waits for a processor or a disk is seen waiting. So
a question without an answer counts as silence only while the JVM does nothing, up to a limit. Before it can be asked,
it may wait for the network as well: for packages of `spark.jars.packages`, or for a master.

Above it: the JVM. Below it: the system's account of a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

START_IDLE_S = 120.0
"""A JVM that cannot be asked yet may do nothing for so long."""
WORKING_S = 300.0
"""One that works may be without an answer for so long."""
_ANSWER_S = 2.0
"""How long one look waits for the answer."""

Ask = Callable[[], asyncio.Future[None]]
"""Gives what is done when the JVM has answered, however long that takes."""


class SignsOfLife:
    """Of one JVM, by its process id."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._pid = pid
        self._clock = clock
        self._cpu_s = -1.0
        self._begin_to_ask: Ask | None = None
        self._question: asyncio.Future[None] | None = None
        self._since_s = clock()
        """When it last answered; before it can be asked, when it last worked."""

    def begin_to_ask(self, ask: Ask) -> None:
        """From now on it can be asked."""
        self._begin_to_ask = ask
        self._since_s = self._clock()

    def stop_asking(self) -> None:
        """It is about to be stopped, and asked no more."""
        self._begin_to_ask = None
        self._since_s = self._clock()

    async def look(self) -> bool:
        """Whether there is a sign of life."""
        works = self._works()
        if self._begin_to_ask is None:
            if works:
                self._since_s = self._clock()
            return not is_stopped(self._pid) and self._clock() - self._since_s < START_IDLE_S
        if self._question is None:
            self._question = self._begin_to_ask()
            # Its failure is told by whoever waits for the JVM, also when nobody looks any more.
            self._question.add_done_callback(lambda question: question.cancelled() or question.exception())
        await asyncio.wait((self._question,), timeout=_ANSWER_S)
        if self._question.done():
            # That it could not be asked means that it has ended, which others notice.
            failed = self._question.cancelled() or self._question.exception() is not None
            self._question = None
            self._since_s = self._clock()
            return not failed
        return works and self._clock() - self._since_s < WORKING_S

    def _works(self) -> bool:
        """Whether it has used processor time since the look before, or waits for a processor or a disk."""
        try:
            used = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return False
        before, self._cpu_s = self._cpu_s, used.user + used.system
        return self._cpu_s > before >= 0.0 or not _states(self._pid).isdisjoint("RD")


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process, all of it."""
    return _states(pid) == {"T"}


def _states(pid: int) -> set[str]:
    """Of its threads, in the letters of /proc; empty where the system does not tell."""
    states = set()
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end meanwhile. Its name is in brackets and may hold anything.
        with suppress(OSError, IndexError):
            states.add(status.read_text(errors="replace").rpartition(")")[2].split()[0])
    return states
