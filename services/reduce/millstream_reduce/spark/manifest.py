"""Which rows of the log each task of a Spark job reads. Pure; made where the job is started, pickled to its tasks.

    windows ─► manifest_of ─► Manifest.for_task(i) ─► the runs of rows of one task, entry by entry

A task is given either whole windows (so that nothing has to be brought together behind it) or a share of the entries.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.wire.reduce.v1 import wal_pb2

WINDOW = "__window"
"""Column with the window's index in the job."""

KEY_SEPARATOR = b"\x1f"
"""Joins the parts of a key."""

Indexes = npt.NDArray[np.int64]


class Origin(NamedTuple):
    """Who asked for windows, as far as a function sees it."""

    lane: str = ""
    replica: int = 0
    attempt: int = 0
    watermark_us: int = -(2**63)
    traceparent: str = ""


class JobWindow(NamedTuple):
    """A window of a job, and where its log lies."""

    directory: str
    window: wal_pb2.Window
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of rows of one entry, by columns: rows `first_rows[i]` on, `rows[i]` of them, belong to `windows[i]`."""

    directory: str
    segment: int
    offset: int
    length: int
    windows: Indexes
    first_rows: Indexes
    rows: Indexes


class WindowRuns(NamedTuple):
    """The runs of some whole windows, entry by entry."""

    entries: list[Runs]
    size: int
    """Bytes of their rows, about."""


class Span(NamedTuple):
    """What the tasks need to know of a window beside its rows."""

    start_us: int
    end_us: int
    early: int
    key: bytes | None
    """Key parts joined by 0x1F, of a window that belongs to one key."""
    origin: int = 0
    """Number among the manifest's origins."""


_COLUMNS = ("window", "directory", "segment", "offset", "length", "first_row", "rows")
_OFFSET = _COLUMNS.index("offset")


_State = tuple[list[str], list[Span], bytes, tuple[int, ...], list[int], list[Origin]]


class Manifest:
    """The rows of all tasks of a job."""

    def __init__(
        self,
        directories: Sequence[str],
        spans: Sequence[Span],
        pieces: Indexes,
        ends: Sequence[int],
        origins: Sequence[Origin] = (Origin(),),
    ) -> None:
        """`pieces`: a row a piece, those of one task together; `ends`: where each task's end."""
        self._directories = list(directories)
        self.spans = list(spans)
        self.origins = list(origins)
        self._pieces = pieces
        self._ends = list(ends)

    @property
    def tasks(self) -> int:
        return len(self._ends)

    @property
    def rows(self) -> int:
        return int(self._pieces[:, -1].sum())

    def by_entry(self, task: int) -> Iterator[Runs]:
        """What a task reads, each entry once, in the order of each log; a window's rows in the order of arrival."""
        pieces = self._of_task(task)
        if len(pieces):
            yield from self._runs(pieces[_entry_order(pieces)])

    def by_window(self, task: int, bytes_max: int) -> Iterator[WindowRuns]:
        """What a task reads, some whole windows at a time: as many as have `bytes_max` bytes together, at least one."""
        pieces = self._of_task(task)
        if len(pieces) == 0:
            return
        sizes = np.cumsum(_sizes(pieces))
        ends = np.append(np.flatnonzero(np.diff(pieces[:, 0])) + 1, len(pieces))
        start, before = 0, 0.0
        while start < len(pieces):
            fitting = int(np.searchsorted(sizes[ends - 1], before + bytes_max, side="right"))
            first = int(np.searchsorted(ends, start, side="right"))
            stop = int(ends[max(first, fitting - 1)])
            some = pieces[start:stop]
            yield WindowRuns(list(self._runs(some[_entry_order(some)])), int(sizes[stop - 1] - before))
            start, before = stop, float(sizes[stop - 1])

    def _of_task(self, task: int) -> Indexes:
        return self._pieces[self._ends[task - 1] if task else 0 : self._ends[task]]

    def _runs(self, pieces: Indexes) -> Iterator[Runs]:
        """Neighbouring pieces of the same entry become one `Runs`."""
        changes = np.flatnonzero((np.diff(pieces[:, 1:4], axis=0) != 0).any(axis=1)) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(pieces)]):
            _, directory, segment, offset, length, _, _ = pieces[start].tolist()
            of_entry = pieces[start:stop]
            yield Runs(
                self._directories[directory], segment, offset, length, of_entry[:, 0], of_entry[:, 5], of_entry[:, 6]
            )

    def __getstate__(self) -> _State:
        # Mostly small numbers that resemble their neighbours: a tenth of the size, and it is sent to every task.
        pieces = zlib.compress(np.ascontiguousarray(self._pieces.T).tobytes(), 1)
        return self._directories, self.spans, pieces, self._pieces.shape, self._ends, self.origins

    def __setstate__(self, state: _State) -> None:
        self._directories, self.spans, pieces, (rows, width), self._ends, self.origins = state
        self._pieces = np.frombuffer(zlib.decompress(pieces), np.int64).reshape(width, rows).T


def manifest_of(windows: Sequence[JobWindow], tasks: int = 1, *, whole_windows: bool) -> Manifest:
    """The manifest of a job of at most `tasks` tasks, of about as many rows each.

    `whole_windows`: a task is given windows; otherwise entries, and a window may be in several tasks.
    """
    directories = sorted({window.directory for window in windows})
    numbers = {directory: number for number, directory in enumerate(directories)}
    parts = [_pieces_of(index, numbers[item.directory], item.window) for index, item in enumerate(windows)]
    pieces = np.concatenate([np.empty((0, len(_COLUMNS)), np.int64), *parts])
    if not whole_windows:
        # An entry is read by one task only.
        pieces = pieces[_entry_order(pieces)]
    origins = {item.origin: None for item in windows} or {Origin(): None}
    places = {origin: place for place, origin in enumerate(origins)}
    spans = [_span_of(item.window, places[item.origin]) for item in windows]
    return Manifest(directories, spans, pieces, _ends(pieces, tasks, whole_windows), list(origins))


def _ends(pieces: Indexes, tasks: int, whole_windows: bool) -> list[int]:
    """Where to cut between the tasks: at the window or entry nearest to an equal share."""
    if len(pieces) == 0:
        return [0]
    unit = pieces[:, :1] if whole_windows else pieces[:, 1:4]
    cuts = np.append(np.flatnonzero((np.diff(unit, axis=0) != 0).any(axis=1)) + 1, len(pieces))
    rows = np.cumsum(pieces[:, -1])
    rows_at = rows[cuts - 1]
    wanted = rows[-1] * np.arange(1, tasks) / tasks
    after = np.searchsorted(rows_at, wanted)
    before = np.maximum(after - 1, 0)
    chosen = np.where(wanted - rows_at[before] < rows_at[after] - wanted, before, after)
    return sorted({*cuts[chosen].tolist(), len(pieces)})


def _entry_order(pieces: Indexes) -> Indexes:
    _, directory, segment, offset, _, first_row, _ = pieces.T
    return np.lexsort((first_row, offset, segment, directory))


def _sizes(pieces: Indexes) -> npt.NDArray[np.float64]:
    """Bytes of each piece, about: its share of the entry, as far as the entry's number of rows can be seen."""
    _, places = np.unique(pieces[:, 1:4], axis=0, return_inverse=True)
    places = places.reshape(-1)
    rows = np.zeros(int(places.max()) + 1, np.int64)
    np.maximum.at(rows, places, pieces[:, 5] + pieces[:, 6])
    shares: npt.NDArray[np.float64] = pieces[:, 4] * pieces[:, 6] / np.maximum(rows[places], 1)
    return shares


def _pieces_of(window: int, directory: int, message: wal_pb2.Window) -> Indexes:
    of = message.pieces
    table = np.empty((len(of.segments), len(_COLUMNS)), np.int64)
    table[:, 0] = window
    table[:, 1] = directory
    for column, values in enumerate((of.segments, of.offsets, of.lengths, of.first_rows, of.rows), start=2):
        table[:, column] = values
    return table


def _span_of(message: wal_pb2.Window, origin: int) -> Span:
    key = message.key if message.HasField("key") else None
    return Span(message.start_us, message.end_us, message.early, key, origin)


TIMESTAMP = pa.timestamp("us", tz="UTC")
_OF_SPAN: Mapping[str, Callable[[Span], int]] = {
    "window_start": lambda span: span.start_us,
    "window_end": lambda span: span.end_us,
    "window_early": lambda span: span.early,
}
SPAN_COLUMNS = tuple(_OF_SPAN)


def span_column(name: str, windows: npt.NDArray[np.int32], spans: Sequence[Span]) -> Any:
    """One of `SPAN_COLUMNS`, for rows of these windows."""
    present, inverse = np.unique(windows, return_inverse=True)
    values = np.array([_OF_SPAN[name](spans[index]) for index in present.tolist()], np.int64)[inverse]
    if name == "window_early":
        return pa.array(values.astype(np.int32))
    return pa.array(values).cast(TIMESTAMP)
