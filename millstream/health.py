"""Watches the health of a process for its supervisor, and sends the heartbeat of a process.

    start ─► first answer ─► answers ─► silent (reported) ─► hung
                                ▲───────────┘ answers again

Above it: the supervisors (of the local runner: vertices, broker, Spark driver; of a vertex: its functions).
Below it: the clock, a pipe, and the system's information about a process. It ends no process: `until_hung` returns.

The supervisor that measures a silence may be late itself: a machine that was suspended, or is overloaded, stops both
processes. So each check adds only a limited time, and a supervisor that does not run sees no silence.
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

from millstream.background import beside
from millstream.limits import HUNG_AFTER_S, SILENCE_REPORTED_AFTER_S, START_TIMEOUT_S
from millstream.lines import LineSplitter
from millstream.pauses import until_next

HEARTBEAT_VARIABLE = "MILLSTREAM_HEARTBEAT_FD"
"""Environment variable with the number of the file descriptor that a process writes its heartbeat to."""
BEAT_INTERVAL_S = 1.0
"""Time between two beats, and between an answer and the next question, unless the process may rest."""
LOOK_INTERVAL_S = 0.5
"""Time between two checks of how long a process has been silent."""
REST_S = 4.0
"""How much later than others a process that has answered is asked again if a question costs much. One to a function
takes 4 ms of processor time, and one about the streams of 14 vertices 2.4 ms."""
_LOOK_COUNTS_S = 2 * LOOK_INTERVAL_S
"""The most silence that one check may add: if more time has passed, the check itself was late."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a process may be silent."""

    hung_s: float = HUNG_AFTER_S
    """A process that has not answered for this long is hung."""
    start_s: float = START_TIMEOUT_S
    """The same before the first answer: the process may have much to read, or start on a busy machine."""
    reported_s: float = SILENCE_REPORTED_AFTER_S
    """A silence of this length is reported."""


class Silence:
    """How long a process has been silent, without the time in which the supervisor did not run. Pure."""

    def __init__(self, now_s: float) -> None:
        self.seconds = 0.0
        self._checked_at_s = now_s

    def on_answer(self) -> None:
        """Called when the process has answered."""
        self.seconds = 0.0

    def look(self, now_s: float) -> float:
        """Returns the seconds of silence up to now."""
        self.seconds += min(now_s - self._checked_at_s, _LOOK_COUNTS_S)
        self._checked_at_s = now_s
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
        rest_s: float = 0.0,
    ) -> None:
        """`report` gets messages for people, worded to follow the name of the process. `has_answered`: the process has
        started up. `waits`: the process only waits for a child that it has started, and that child answers. `rest_s`:
        how much longer than usual a process that has answered is left alone, for questions that cost much. That time
        does not count as silence, and ends when the process itself is stopped."""
        self.hung = ""
        """What is wrong with a hung process, worded to follow its name; empty while it is not hung."""
        self._reported = False
        """The silence has been reported, and the process has not answered since."""
        self._pid = pid
        self._patience = patience
        self._report = report
        self._answered = has_answered
        self._waits = waits
        # Whether its child is stopped would cost more than to ask.
        self._rest_s = 0.0 if waits else rest_s
        self._rests = False
        self._silence = Silence(time.monotonic())

    @property
    def silent_s(self) -> float:
        """Seconds of silence since the last answer, or since the start."""
        return self._silence.seconds

    async def until_hung(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Returns when the process is hung.

        `ask` returns when the process has answered, however long that takes. It may also return False: the process has
        not answered. If the system reports a process as stopped, it is hung after `HUNG_AFTER_S`, or after its patience
        if that is shorter.
        """
        async with beside(self._keep_asking(ask), f"questions to process {self._pid}"):
            while not self.hung:  # silence is not an event
                await asyncio.sleep(until_next(LOOK_INTERVAL_S))
                self._look(time.monotonic())

    async def _keep_asking(self, ask: Callable[[], Awaitable[object]]) -> None:
        while True:
            rest_s = 0.0
            if await ask() is not False:
                self._hear()
                rest_s = self._rest_s
            await asyncio.sleep(until_next(BEAT_INTERVAL_S))
            if rest_s:
                await self._rest(rest_s)

    async def _rest(self, rest_s: float) -> None:
        """Returns when it is time for the next question."""
        loop = asyncio.get_running_loop()
        # Beats are never exactly on time: the last one must end the rest also if it was less late than the first.
        until_s = loop.time() + rest_s - BEAT_INTERVAL_S / 2
        self._rests = True
        while loop.time() < until_s and not is_stopped(self._pid):  # noqa: ASYNC110  # the system sends no event
            await asyncio.sleep(until_next(BEAT_INTERVAL_S))
        self._rests = False

    def _hear(self) -> None:
        if self._reported:
            self._reported = False
            self._report(f"answers again, after {self.silent_s:.0f} s")
        self._answered = True
        self._silence.on_answer()

    def _look(self, now_s: float) -> None:
        if self._rests:
            self._silence.look(now_s)
            self._silence.on_answer()
            return
        # Rounded down for a process that hung: at most a second counts between two looks, so that is its limit.
        patience, silent_s = self._patience, self._silence.look(now_s)
        since = "" if self._answered else " since its start"
        limit_s = patience.hung_s if self._answered else patience.start_s
        reported_s = patience.reported_s if self._answered else max(patience.reported_s, patience.start_s / 4)
        if silent_s >= min(HUNG_AFTER_S, limit_s) and is_stopped(self._pid, children=self._waits):
            self.hung = f"was stopped by a signal, and did not answer for {int(silent_s)} s"
        elif silent_s >= limit_s:
            self.hung = f"did not answer for {int(silent_s)} s{since}"
        elif silent_s >= reported_s and not self._reported:
            self._reported = True
            self._report(f"has not answered for {silent_s:.0f} s{since}; it is replaced after {limit_s:.0f} s")


def is_stopped(pid: int, *, children: bool = False) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) has stopped the process or, with `children`, one of its children. A process
    that a debugger has stopped does not count."""
    try:
        process = psutil.Process(pid)
        return any(
            one.status() == psutil.STATUS_STOPPED for one in (process, *(process.children() if children else ()))
        )
    except psutil.Error:
        return False


class Heartbeat:
    """The reading end of a process's heartbeat: an empty line for each beat, and messages of the process between them.
    Made by `open_heartbeat`."""

    def __init__(self, read_end: int, write_end: int, on_line: Callable[[str], None]) -> None:
        self.write_end = write_end
        """The descriptor that the process must inherit; see `environment`."""
        self._read_end = read_end
        self._on_line = on_line
        self._beaten = asyncio.Event()
        self._lines = LineSplitter()

    @property
    def environment(self) -> dict[str, str]:
        """The variable that gives the process the descriptor for its heartbeat."""
        return {HEARTBEAT_VARIABLE: str(self.write_end)}

    async def beat(self) -> None:
        """Returns when the process has sent a beat since the last call."""
        await self._beaten.wait()
        self._beaten.clear()

    def take(self) -> None:
        """Reads what has arrived. The event loop calls it, and it is called once more when the process has ended."""
        with suppress(BlockingIOError):
            data = os.read(self._read_end, 65536)
            self._beaten.set()
            for line in self._lines.feed(data):
                if line:
                    self._on_line(line.decode())


@contextmanager
def open_heartbeat(on_line: Callable[[str], None] = lambda text: None) -> Iterator[Heartbeat]:
    """A pipe for the heartbeat of a process that is about to start and that inherits `write_end`. `on_line` gets the
    messages of the process."""
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(read_end, False)
        # A full pipe must not stop the process: its supervisor may be stopped.
        os.set_blocking(write_end, False)
        heartbeat = Heartbeat(read_end, write_end, on_line)
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
    """Sends beats while the event loop runs, if the process was started with a heartbeat. Returns a function that sends
    a line of text to the supervisor."""
    # Processes that this one starts must not inherit the variable.
    text = os.environ.pop(HEARTBEAT_VARIABLE, None)
    # If the descriptor is not a pipe, it belongs to something else, and the variable came from elsewhere.
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
        self._unsent: list[bytes] = []
        """Lines that did not fit into the pipe: the supervisor may be stopped."""

    def say(self, text: str) -> None:
        self._unsent.append(text.encode() + b"\n")
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            while self._unsent:
                # A pipe takes such a short line completely or not at all.
                os.write(self._descriptor, self._unsent[0])
                del self._unsent[0]

    def beat(self) -> None:
        if not self._unsent:
            self._unsent.append(b"\n")
        self._write()
        # The beats of all processes come at the same moments, so that they wake up their supervisor only once.
        self._loop.call_later(until_next(BEAT_INTERVAL_S, self._loop), self.beat)
