"""Which rows of the log each task of a Spark job reads. Pure; created where the job is started, pickled for its tasks.

    windows ─► manifest_of ─► Manifest.for_task(i) ─► the runs of rows of one task, entry by entry

A task gets either whole windows (so that nothing has to be combined after it) or a share of the entries.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream_reduce.values import WindowContents, WindowTable

WINDOW = "__window"
"""Column with the window's index in the job."""

Indexes = npt.NDArray[np.int64]


class WindowsOrigin(NamedTuple):
    """The origin of windows, as far as a function sees it."""

    lane: str = ""
    replica: int = 0
    attempt: int = 0
    watermark_us: int = -(2**63)
    traceparent: str = ""


class JobWindow(NamedTuple):
    """A window of a job, and the place of its log."""

    directory: str
    contents: WindowContents
    origin: WindowsOrigin = WindowsOrigin()


@dataclass(frozen=True, eq=False, slots=True)
class JobWindows(Sequence[JobWindow]):
    """The windows of a job, by columns."""

    table: WindowTable
    directories: Sequence[str]
    of_directories: Indexes
    """For each window, the index of its own."""
    origins: Sequence[WindowsOrigin]
    of_origins: Indexes
    """For each window, the index of its own."""

    @classmethod
    def of(cls, parts: Iterable[tuple[str, WindowTable, WindowsOrigin]]) -> JobWindows:
        """The windows of all parts, in order."""
        listed = list(parts)
        directories = sorted({directory for directory, _, _ in listed})
        origins = list(dict.fromkeys(origin for _, _, origin in listed)) or [WindowsOrigin()]
        sizes = [len(table) for _, table, _ in listed]
        return cls(
            WindowTable.joined([table for _, table, _ in listed]),
            directories,
            np.repeat(np.array([directories.index(directory) for directory, _, _ in listed], np.int64), sizes),
            origins,
            np.repeat(np.array([origins.index(origin) for _, _, origin in listed], np.int64), sizes),
        )

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: int) -> JobWindow: ...

    @overload
    def __getitem__(self, index: slice) -> JobWindows: ...

    def __getitem__(self, index: int | slice) -> JobWindow | JobWindows:
        directories, origins = self.of_directories[index], self.of_origins[index]
        if isinstance(index, slice):
            return JobWindows(self.table[index], self.directories, directories, self.origins, origins)
        return JobWindow(self.directories[int(directories)], self.table[index], self.origins[int(origins)])

    def each(self) -> list[JobWindows]:
        """A job for each window."""
        return [self[index : index + 1] for index in range(len(self))]


@dataclass(frozen=True, slots=True)
class RowRuns:
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

    entries: list[RowRuns]
    size: int
    """Bytes of their rows, about."""


@dataclass(frozen=True, slots=True)
class Spans:
    """What the tasks need to know about the windows besides their rows, by columns."""

    starts_us: Indexes
    ends_us: Indexes
    early: Indexes
    keys: Sequence[bytes | None] | None
    """Joined as `group_keys` says, for windows that belong to one key; None if none does."""
    origins: Indexes
    """Numbers among the manifest's origins."""

    def __len__(self) -> int:
        return len(self.starts_us)


_COLUMNS = ("window", "directory", "segment", "offset", "length", "first_row", "rows")


class Manifest:
    """The rows of all tasks of a job."""

    def __init__(
        self,
        directories: Sequence[str],
        spans: Spans,
        pieces: Indexes,
        ends: Sequence[int],
        origins: Sequence[WindowsOrigin],
    ) -> None:
        """`pieces`: one row per piece, those of one task together; `ends`: where those of each task end."""
        self._directories = list(directories)
        self.spans = spans
        self.origins = list(origins)
        self._pieces = pieces
        self._ends = list(ends)

    @property
    def tasks(self) -> int:
        return len(self._ends)

    def by_entry(self, task: int) -> Iterator[RowRuns]:
        """What a task reads: each entry once, in the order of each log; a window's rows in the order of arrival."""
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

    def _runs(self, pieces: Indexes) -> Iterator[RowRuns]:
        """Neighbouring pieces of the same entry become one `RowRuns`."""
        changes = np.flatnonzero((np.diff(pieces[:, 1:4], axis=0) != 0).any(axis=1)) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(pieces)]):
            _, directory, segment, offset, length, _, _ = pieces[start].tolist()
            of_entry = pieces[start:stop]
            yield RowRuns(
                self._directories[directory], segment, offset, length, of_entry[:, 0], of_entry[:, 5], of_entry[:, 6]
            )

    def __getstate__(self) -> bytes:
        # Mostly small numbers that resemble their neighbours: this takes a tenth of the size, and is sent to every
        # task.
        state = self._directories, self.spans, np.ascontiguousarray(self._pieces.T), self._ends, self.origins
        return zlib.compress(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), 1)

    def __setstate__(self, state: bytes) -> None:
        self._directories, self.spans, columns, self._ends, self.origins = pickle.loads(zlib.decompress(state))
        self._pieces = columns.T


def manifest_of(windows: JobWindows, tasks: int = 1, *, whole_windows: bool) -> Manifest:
    """The manifest of a job of at most `tasks` tasks with about as many rows each.

    `whole_windows`: a task gets windows; otherwise entries, and a window may be in several tasks.
    """
    table = windows.table
    counts = table.pieces
    pieces = np.empty((len(table.piece_rows), len(_COLUMNS)), np.int64)
    pieces[:, 0] = np.repeat(np.arange(len(table)), counts)
    pieces[:, 1] = np.repeat(windows.of_directories, counts)
    pieces[:, 2:5] = table.entries[table.piece_entries]
    pieces[:, 5], pieces[:, 6] = table.first_rows, table.piece_rows
    if not whole_windows:
        # An entry is read by one task only.
        pieces = pieces[_entry_order(pieces)]
    spans = Spans(table.starts, table.ends, table.early, table.keys, windows.of_origins)
    return Manifest(windows.directories, spans, pieces, _ends(pieces, tasks, whole_windows), windows.origins)


def _ends(pieces: Indexes, tasks: int, whole_windows: bool) -> list[int]:
    """Where to divide between the tasks: at the window or entry nearest to an equal share."""
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
    return pieces[:, 4] * pieces[:, 6] / np.maximum(rows[places], 1)


TIMESTAMP = pa.timestamp("us", tz="UTC")
SPAN_COLUMNS = ("window_start", "window_end", "window_early")


def span_column(name: str, windows: npt.NDArray[np.int32], spans: Spans) -> Any:
    """One of `SPAN_COLUMNS`, for rows of these windows."""
    if name == "window_early":
        return pa.array(spans.early[windows].astype(np.int32))
    return pa.array((spans.starts_us if name == "window_start" else spans.ends_us)[windows]).cast(TIMESTAMP)
