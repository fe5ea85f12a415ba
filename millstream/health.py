"""Whether another process is well, for the one that started it; and the heartbeat by which a process shows it.

    start ─► first answer ─► answers ─► silent (reported) ─► hung
                                ▲───────────┘ answers again

Above it: the supervisors (of the local runner: vertices, broker, Spark driver; of a vertex: its functions).
Below it: the clock, a pipe, and what the system says of a process. It ends nothing itself: `until_hung` returns.

The supervisor that measures a silence may be late itself: a machine that was suspended, or is overloaded, stops both.
So each look counts for no longer than the time between two looks, and while a supervisor does not run it sees no
silence.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from millstream.background import open_tasks
from millstream.limits import HUNG_AFTER_S, SILENCE_REPORTED_AFTER_S, START_TIMEOUT_S
from millstream.lines import LineSplitter

HEARTBEAT_VARIABLE = "MILLSTREAM_HEARTBEAT_FD"
"""Environment variable with the number of the file descriptor that a process writes its heartbeat to."""
BEAT_INTERVAL_S = 1.0
"""Between two beats, and between an answer and the next question."""
LOOK_INTERVAL_S = 0.5
"""Between two looks at how long a process has been silent."""
_LOOK_COUNTS_S = 2 * LOOK_INTERVAL_S
"""So much silence a look may add: one that comes later than this was late itself."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process may be silent."""

    hung_s: float = HUNG_AFTER_S
    """Without an answer for so long it is hung."""
    start_s: float = START_TIMEOUT_S
    """The same before its first answer: it may have much to read, or a busy machine to start on."""
    reported_s: float = SILENCE_REPORTED_AFTER_S
    """Silence is reported from here on."""


class Silence:
    """How long a process has been silent, without the time in which the listener did not run. Pure."""

    def __init__(self, now_s: float) -> None:
        self.seconds = 0.0
        self._looked_s = now_s

    def on_answer(self) -> None:
        """It has answered."""
        self.seconds = 0.0

    def look(self, now_s: float) -> float:
        """Seconds of silence up to now."""
        self.seconds += min(now_s - self._looked_s, _LOOK_COUNTS_S)
        self._looked_s = now_s
        return self.seconds


class Health:
    """Watches one process from its start; see `until_hung`."""

    def __init__(
        self,
        pid: int,
        patience: Patience,
        *,
        report: Callable[[str], None],
        has_answered: bool = False,
        waits: bool = False,
    ) -> None:
        """`report` gets what a person should know, in words that follow the name of the process. `has_answered`: its
        start is over. `waits`: the process only waits for one that it has started, which is the one that answers."""
        self.hung = ""
        """What is wrong with a hung process, in words that follow its name; empty as long as it is not hung."""
        self._reported = False
        """Its silence has been reported, and it has not answered since."""
        self._pid = pid
        self._patience = patience
        self._report = report
        self._answered = has_answered
        self._waits = waits
        self._silence = Silence(time.monotonic())

    @property
    def silent_s(self) -> float:
        """Since its last answer, or since its start."""
        return self._silence.seconds

    async def until_hung(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Returns when the process is hung.

        `ask` returns when the process has answered, however long that takes; or True or False, whether it has.
        A process that the system says is stopped is hung after `HUNG_AFTER_S`, whatever the patience.
        """
        async with open_tasks() as tasks:
            asking = tasks.create_task(self._keep_asking(ask), name=f"questions to process {self._pid}")
            while not self.hung:  # silence is not an event
                await asyncio.sleep(LOOK_INTERVAL_S)
                self._look(time.monotonic())
            asking.cancel()

    async def _keep_asking(self, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            if await ask() is not False:
                self._hear()
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _hear(self) -> None:
        if self._reported:
            self._reported = False
            self._report(f"answers again, after {self.silent_s:.0f} s")
        self._answered = True
        self._silence.on_answer()

    def _look(self, now_s: float) -> None:
        patience, silent_s = self._patience, self._silence.look(now_s)
        since = "" if self._answered else " since its start"
        limit_s = patience.hung_s if self._answered else patience.start_s
        reported_s = patience.reported_s if self._answered else max(patience.reported_s, patience.start_s / 4)
        if silent_s >= min(HUNG_AFTER_S, limit_s) and is_stopped(self._pid, children=self._waits):
            self.hung = f"was stopped by a signal, and did not answer for {silent_s:.0f} s"
        elif silent_s >= limit_s:
            self.hung = f"did not answer for {silent_s:.0f} s{since}"
        elif silent_s >= reported_s and not self._reported:
            self._reported = True
            self._report(f"has not answered for {silent_s:.0f} s{since}; it is replaced after {limit_s:.0f} s")


def is_stopped(pid: int, *, children: bool = False) -> bool:
    """Whether a signal has stopped the process (SIGSTOP, Ctrl-Z), or one of its children where those are asked for; one
    in a debugger's hands is not meant."""
    try:
        process = psutil.Process(pid)
        looked_at = [process, *(process.children() if children else ())]
        return any(one.status() == psutil.STATUS_STOPPED for one in looked_at)
    except psutil.Error:
        return False


class Heartbeat:
    """The reading end of a process's heartbeat: an empty line a beat, and what it says between them. Made by
    `open_heartbeat`."""

    def __init__(self, read_end: int, write_end: int, on_said: Callable[[str], None]) -> None:
        self.write_end = write_end
        """To be inherited by the process; see `environment`."""
        self._read_end = read_end
        self._on_said = on_said
        self._beaten = asyncio.Event()
        self._lines = LineSplitter()

    @property
    def environment(self) -> dict[str, str]:
        """What tells the process where to beat."""
        return {HEARTBEAT_VARIABLE: str(self.write_end)}

    async def beat(self) -> None:
        """Returns when the process has beaten since the last call."""
        await self._beaten.wait()
        self._beaten.clear()

    def take(self) -> None:
        """Read what has come. Called by the event loop, and once more when the process has ended."""
        with suppress(BlockingIOError):
            data = os.read(self._read_end, 65536)
            self._beaten.set()
            for line in self._lines.feed(data):
                if line:
                    self._on_said(line.decode())


@contextmanager
def open_heartbeat(on_said: Callable[[str], None] = lambda text: None) -> Iterator[Heartbeat]:
    """A pipe for the heartbeat of a process that is about to be started, with `write_end` passed on to it. `on_said`
    gets what the process says."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(read_end, False)
        # A full pipe must not stop the process: its supervisor may be stopped.
        os.set_blocking(write_end, False)
        heartbeat = Heartbeat(read_end, write_end, on_said)
        loop = asyncio.get_running_loop()
        loop.add_reader(read_end, heartbeat.take)
        try:
            yield heartbeat
        finally:
            loop.remove_reader(read_end)
    finally:
        os.close(read_end)
        os.close(write_end)


def start_heartbeat(loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
    """Beat as long as the event loop turns, if the process was started with a heartbeat. Returns what says a line of
    text to who listens."""
    # Not for what this process starts in turn.
    text = os.environ.pop(HEARTBEAT_VARIABLE, None)
    # Any other descriptor belongs to something else: the variable has come from elsewhere.
    with suppress(OSError):
        if text is not None and stat.S_ISFIFO(os.fstat(int(text)).st_mode):
            os.set_inheritable(int(text), False)
            beating = _Beating(int(text), loop)
            beating.beat()
            return beating.say
    return lambda text: None


class _Beating:
    """The writing end of a heartbeat."""

    def __init__(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._unsaid: list[bytes] = []
        """Lines that the pipe had no room for: who listens may be stopped."""

    def say(self, text: str) -> None:
        self._unsaid.append(text.encode() + b"\n")
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            while self._unsaid:
                # So short a line is written whole or not at all.
                os.write(self._descriptor, self._unsaid[0])
                del self._unsaid[0]

    def beat(self) -> None:
        if not self._unsaid:
            self._unsaid.append(b"\n")
        self._write()
        self._loop.call_later(BEAT_INTERVAL_S, self.beat)
