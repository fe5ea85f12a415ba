"""A server outside the pipeline, in a process of its own: started, killed, paused, stopped.

Above it: the servers of tests, each of which knows its program and when it answers. Below it: the operating system.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from millstream.die_with_parent import dying_with_parent

START_TIMEOUT_S = 180.0
_POLL_S = 0.02


class ServerProcess(ABC):
    """After `kill` and `start` it has the same port, and what it had stored. It ends with the thread that starts it."""

    name: str
    """In messages of tests."""
    start_timeout_s = START_TIMEOUT_S

    def __init__(self, directory: Path) -> None:
        """`directory`: for all that it writes."""
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Returns when it answers."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes requests."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs"
        return self._process.pid

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As an operator does it: it may store what it has."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(self.start_timeout_s)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """It keeps its connections and answers nothing, until `go_on`."""
        self._signal(signal.SIGSTOP)
        # The signal reaches one thread. Until that one gets a processor, the others go on.
        assert self._process is not None, "it runs"
        for pid in (self.pid, *self._children_in_group()):
            self._until(self._process, partial(_is_stopped, pid))

    def go_on(self) -> None:
        """After `pause`."""
        self._signal(signal.SIGCONT)

    def _run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the program; returns when it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_parent([*command]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        self._until(self._process, self._answers)

    def _until(self, process: subprocess.Popen[bytes], is_there: Callable[[], bool]) -> None:
        """Wait for what the process does when it starts, or is paused."""
        deadline_s = time.monotonic() + self.start_timeout_s
        while not is_there():
            assert process.poll() is None, f"{self.name} ended at once: {self._tail()}"
            assert time.monotonic() < deadline_s, f"{self.name} did not answer: {self._tail()}"
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)

    def _tail(self) -> str:
        """The end of what it has logged."""
        return (self.directory / "log").read_text(errors="replace")[-3000:]

    def _children_in_group(self) -> list[int]:
        """Those that signals reach: Erlang starts helpers in groups of their own."""
        found = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with suppress(ProcessLookupError):
                if os.getpgid(child.pid) == self.pid:
                    found.append(child.pid)
        return found

    def _signal(self, number: signal.Signals) -> None:
        """To all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped, or it has ended."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] not in "TZX":
                return False
    return True


_Server = TypeVar("_Server", bound=ServerProcess)


@contextmanager
def started_server(server: _Server) -> Iterator[_Server]:
    """Killed when the context ends."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


def listens(port: int) -> bool:
    """Whether a process takes connections there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False
