"""What a person sees of a running pipeline: a table redrawn in place, plain lines, or nothing.

Above it: the runner, `status --watch`. Below it: the terminal's stream. `scene.py` creates what it writes.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from millstream.printable import PrintableStream
from millstream_runner.colours import show_message
from millstream_runner.local.scene import Scene, plain_lines, table
from millstream_runner.local.states import State

PLAIN_INTERVAL_S = 5.0
"""Time between two plain lines, at first."""
PLAIN_OFTEN_S = 60.0
"""For this long."""
PLAIN_LATER_INTERVAL_S = 30.0
"""Time between two plain lines from then on, so that the log of a run of days stays short."""
MESSAGES_PER_S = 5
"""The most lines of the vertices that are shown; the logs have all of them."""


def terminal_size(stream: TextIO) -> os.terminal_size:
    """Size of this very terminal; standard output may be another one, or none. A terminal that does not know its size
    reports 0."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return size if size.columns and size.lines else shutil.get_terminal_size()


def width_of(stream: TextIO) -> int | None:
    """How wide a printed table may be; None if the stream is not a terminal."""
    return terminal_size(stream).columns if stream.isatty() else None


class Screen:
    """Where progress goes. This one shows messages only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def message(self, text: str) -> None:
        """Show something that a person should read."""
        show_message(text, self._stream)
        self._stream.flush()

    def printing(self) -> AbstractContextManager[None]:
        """While the block writes to standard output, nothing else may be written to the same terminal."""
        return nullcontext()

    def show(self, scene: Scene) -> None:
        """Replace what was shown before."""

    def close(self) -> None:
        """Leave what was shown last."""


class PlainScreen(Screen):
    """A line or two now and then, and when the state changes; for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._shown_s = 0.0
        self._state = State.STARTING.value

    def show(self, scene: Scene) -> None:
        pause_s = PLAIN_INTERVAL_S if scene.elapsed_s < PLAIN_OFTEN_S else PLAIN_LATER_INTERVAL_S
        if scene.state == self._state and scene.elapsed_s - self._shown_s < pause_s:
            return
        self._shown_s, self._state = scene.elapsed_s, scene.state
        _write(self._stream, "".join(f"{line}\n" for line in plain_lines(scene)))


class TerminalScreen(Screen):
    """A table at the bottom of the terminal, redrawn in place; messages scroll past above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines_drawn = 0
        self._columns_drawn = 0
        self._scene: Scene | None = None
        self._prints = 0
        """Blocks that write to standard output now, on the same terminal."""
        self._unsent: list[str] = []
        """Messages that came meanwhile."""

    def message(self, text: str) -> None:
        if self._prints:
            self._unsent.append(text)
            return
        self._erase()
        super().message(text)
        self._draw()

    @contextmanager
    def printing(self) -> Iterator[None]:
        if not sys.stdout.isatty():
            yield
            return
        if not self._prints:
            self._erase()
        self._prints += 1
        try:
            yield
        finally:
            self._prints -= 1
            if not self._prints:
                for text in self._unsent:
                    super().message(text)
                self._unsent.clear()
                self._draw()

    def show(self, scene: Scene) -> None:
        self._scene = scene
        if not self._prints:
            self._erase()
            self._draw()

    def close(self) -> None:
        """What was shown last remains completely; from now on it scrolls with the terminal."""
        if self._scene is not None:
            self._erase()
            self._put(table(self._scene, self._size().columns - 1))
        self._lines_drawn = 0
        self._scene = None

    def _size(self) -> os.terminal_size:
        return terminal_size(self._stream)

    def _erase(self) -> None:
        # A terminal that has become narrower may have wrapped the lines: their number is unknown, and the lines above
        # are not ours to erase.
        if self._lines_drawn and self._size().columns >= self._columns_drawn:
            raw = self._stream.stream if isinstance(self._stream, PrintableStream) else self._stream
            _write(raw, f"\x1b[{self._lines_drawn}F\x1b[J")
        self._lines_drawn = 0

    def _draw(self) -> None:
        if self._scene is not None:
            size = self._size()
            # A table as high as the terminal could not be erased again, because its last line feed scrolls.
            self._put(table(self._scene, size.columns - 1, max(1, size.lines - 1)))
            self._columns_drawn = size.columns

    def _put(self, lines: list[str]) -> None:
        _write(self._stream, "\n".join(lines) + "\n")
        self._lines_drawn = len(lines)


def choose_screen(stream: TextIO, *, quiet: bool) -> Screen:
    """The screen that fits the stream."""
    if quiet:
        return Screen(stream)
    return TerminalScreen(stream) if stream.isatty() else PlainScreen(stream)


def _write(stream: TextIO, text: str) -> None:
    # If the terminal of standard error is gone, nothing happens (`printable_output`): the run continues without being
    # watched.
    stream.write(text)
    stream.flush()
