"""A terminal for tests: a real pseudo-terminal, and an emulator that shows what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pyte

LIMIT_S = 180.0
_HISTORY_LINES = 2000
_IN_TERMINAL = (
    # The session's leader takes its terminal: what is typed there becomes a signal.
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A pseudo-terminal with a viewer. Made by `open_terminal`."""

    def __init__(self, master: int, slave: int, columns: int, lines: int) -> None:
        self._master = master
        self._slave = slave
        self._screen = pyte.HistoryScreen(columns, lines, history=_HISTORY_LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition(threading.RLock())
        self.written = b""
        """All that was ever written, what was drawn over too."""
        self.resize(columns, lines)

    @property
    def shown(self) -> list[str]:
        """The lines of the terminal, without those at its end that are empty."""
        with self._changed:
            return _stripped(list(self._screen.display))

    @property
    def all(self) -> list[str]:
        """With what has scrolled away above."""
        with self._changed:
            above = ["".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top]
            return _stripped([*above, *self._screen.display])

    @property
    def text(self) -> str:
        return "\n".join(self.all)

    def resize(self, columns: int, lines: int) -> None:
        with self._changed:
            fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            self._screen.resize(lines, columns)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def until(self, is_seen: Callable[[Terminal], bool]) -> None:
        """Wait until the terminal shows something."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_seen(self), LIMIT_S):
                raise TimeoutError("\n".join(self.shown))

    def follow(self) -> None:
        """Show what is written, until the terminal is closed."""
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            with self._changed:
                self.written += data
                self._stream.feed(data)
                self._changed.notify_all()

    def stream(self) -> TextIO:
        """What writes to it, in this process."""
        return open(os.dup(self._slave), "w", encoding="utf-8")

    def start(self, *command: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """A command in this terminal, as a shell would start it."""
        return subprocess.Popen(
            [sys.executable, "-c", _IN_TERMINAL, *command],
            cwd=cwd,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
        )


@contextmanager
def open_terminal(columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """A terminal of that size."""
    master, slave = pty.openpty()
    terminal = Terminal(master, slave, columns, lines)
    following = threading.Thread(target=terminal.follow, daemon=True)
    following.start()
    try:
        yield terminal
    finally:
        # Reading ends when no process can write any more.
        os.close(slave)
        following.join(LIMIT_S)
        os.close(master)


def _stripped(lines: Sequence[str]) -> list[str]:
    stripped = [line.rstrip() for line in lines]
    while stripped and not stripped[-1]:
        stripped.pop()
    return stripped
