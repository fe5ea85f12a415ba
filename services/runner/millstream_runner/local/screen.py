"""What a person sees of a running pipeline: a table redrawn in place, plain lines, or nothing.

Above it: the runner. Below it: the terminal's stream. The formatting is pure; only the classes write.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TextIO

from millstream.clock import END_OF_TIME_US, MICROSECONDS
from millstream.printable import PrintableStream, in_line
from millstream_runner.local.progress import VertexProgress

PLAIN_INTERVAL_S = 5.0
"""Between two plain lines."""
_LAG_SHOWN_AS_TIME_S = 24 * 3600.0
"""A watermark further back than this is shown as a time: the pipeline replays the past."""
MESSAGES_PER_S = 5
"""Lines of the vertices shown at most; all of them are in the logs."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All there is to show at one moment."""

    pipeline: str
    state: str
    elapsed_s: float
    durability: str
    vertices: Sequence[VertexProgress]
    states: dict[str, str]
    """Of each vertex's processes, in words."""
    spark: str = ""
    """Of the Spark driver; empty where there is none."""


class Screen(Protocol):
    """Where progress goes."""

    def message(self, text: str) -> None:
        """Something a person should read."""

    def output(self, lines: list[bytes]) -> None:
        """What a vertex printed (a log sink prints records): goes to standard output as it is."""

    def show(self, scene: Scene) -> None:
        """Replace what was shown before."""

    def close(self) -> None:
        """Leave what was shown last."""


class NoScreen:
    """Shows messages only."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def message(self, text: str) -> None:
        _write(self._stream, text + "\n")

    def output(self, lines: list[bytes]) -> None:
        _print(lines)

    def show(self, scene: Scene) -> None:
        pass

    def close(self) -> None:
        pass


class PlainScreen:
    """One line every few seconds: for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = 0.0
        self._last = ""

    def message(self, text: str) -> None:
        _write(self._stream, text + "\n")

    def output(self, lines: list[bytes]) -> None:
        _print(lines)

    def show(self, scene: Scene) -> None:
        if scene.elapsed_s - self._shown_s < PLAIN_INTERVAL_S:
            return
        self._shown_s = scene.elapsed_s
        _write(self._stream, plain_line(scene) + "\n")

    def close(self) -> None:
        pass


class TerminalScreen:
    """A table at the bottom of the terminal, redrawn in place; messages scroll by above it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines_drawn = 0
        self._lines: list[str] = []

    def message(self, text: str) -> None:
        self._erase()
        _write(self._stream, text + "\n")
        self._draw()

    def output(self, lines: list[bytes]) -> None:
        self._erase()
        _print(lines)
        self._draw()

    def show(self, scene: Scene) -> None:
        size = shutil.get_terminal_size()
        # A table higher than the terminal could not be erased again.
        self._lines = [in_line(line)[: size.columns - 1] for line in table(scene)][: max(1, size.lines - 1)]
        self._erase()
        self._draw()

    def close(self) -> None:
        self._lines_drawn = 0
        self._lines = []

    def _erase(self) -> None:
        if self._lines_drawn:
            raw = self._stream.stream if isinstance(self._stream, PrintableStream) else self._stream
            _write(raw, f"\x1b[{self._lines_drawn}F\x1b[J")
            self._lines_drawn = 0

    def _draw(self) -> None:
        if self._lines:
            _write(self._stream, "\n".join(self._lines) + "\n")
            self._lines_drawn = len(self._lines)


def choose_screen(stream: TextIO, *, quiet: bool) -> Screen:
    """The one that fits the stream."""
    if quiet:
        return NoScreen(stream)
    return TerminalScreen(stream) if stream.isatty() else PlainScreen(stream)


def table(scene: Scene) -> list[str]:
    """The table's lines."""
    head = f"{scene.pipeline}  {scene.state}  {duration_text(scene.elapsed_s)}  durability: {scene.durability}"
    rows = [("VERTEX", "TYPE", "RECORDS", "RATE/S", "WAITING", "FULL", "WATERMARK", "STATE")]
    rows += [
        (
            vertex.vertex,
            vertex.kind,
            f"{vertex.records:,}",
            f"{vertex.records_per_s:,.0f}",
            "" if not vertex.has_input else f"{vertex.waiting:,}",
            "" if not vertex.has_input else f"{vertex.fill:.0%}",
            watermark_text(vertex.watermark_us, vertex.watermark_lag_s),
            scene.states.get(vertex.vertex, ""),
        )
        for vertex in scene.vertices
    ]
    spark = [f"spark: {scene.spark}"] if scene.spark else []
    return [head, *aligned(rows, left={0, 1, 7}), *spark]


def plain_line(scene: Scene) -> str:
    """All vertices on one line."""
    parts = []
    for vertex in scene.vertices:
        text = f"{vertex.vertex} {vertex.records:,} ({vertex.records_per_s:,.0f}/s"
        if vertex.has_input:
            text += f", {vertex.waiting:,} waiting"
        if vertex.watermark_lag_s is not None:
            text += f", watermark {watermark_text(vertex.watermark_us, vertex.watermark_lag_s)}"
        parts.append(text + ")")
    if scene.spark:
        parts.append(f"spark {scene.spark}")
    return f"{duration_text(scene.elapsed_s)} {scene.state}: " + "; ".join(parts)


def aligned(rows: Sequence[Sequence[str]], *, left: set[int]) -> list[str]:
    """Rows as lines with columns of equal width; those in `left` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def watermark_text(watermark_us: int | None, lag_s: float | None) -> str:
    """A watermark as its distance from now, or as a time when that says more."""
    if watermark_us is None:
        return "none yet"
    if watermark_us >= END_OF_TIME_US:
        return "end"
    if lag_s is not None and abs(lag_s) < _LAG_SHOWN_AS_TIME_S:
        return f"{lag_s:.1f} s behind"
    return time_text(watermark_us)


def time_text(time_us: int) -> str:
    """A time for people, UTC, to the millisecond."""
    try:
        moment = datetime.fromtimestamp(time_us / MICROSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def duration_text(seconds: float) -> str:
    """A stretch of time as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def _print(lines: list[bytes]) -> None:
    _write(sys.stdout, b"\n".join(lines).decode(errors="backslashreplace") + "\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # The terminal has gone away, or the reader of the pipe. The run goes on without being watched.
        pass
