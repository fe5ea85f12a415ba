"""What a reduce lane requires of its windows: the boundary of `millstream_reduce.windows`. Pure: no clock, no files.

A windowing keeps, in memory, which rows of the log belong to which open window. It is driven by the lane's queue:

    sort(times, keys) ─► the queue writes the admitted rows, in that order ─► add(the same rows, with their place)
    close(watermark)  ─► the queue stores a hand-over of the contents durably ─► computed, committed
    after a restart   ─► restore(checkpoint), then `closed` and `add` again, in the order of the log

Rows are sorted into groups (panes of time, pieces of sessions, keys), so that what one window needs of one entry is a
run of rows. `add` finds the groups again from the sorted columns alone: the log keeps no list of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from millstream_reduce.values import Location, Rows, WindowContents

Times = npt.NDArray[np.int64]
"""Event times, microseconds."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The key of each row, dictionary encoded. The parts are joined as `group_keys` says."""

    codes: npt.NDArray[np.int32]
    """Index into `values` of each row."""
    values: Sequence[bytes]
    """Every key once."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Which rows are admitted, in which order they are stored, and which are too late."""

    order: Rows | None
    """Admitted rows, group by group, in the order of arrival inside a group; None: all rows, as they are."""
    late: Rows
    """Rows all of whose windows are closed, in the order of arrival."""
    outside: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    """Rows that are in no window (between sliding windows whose slide is longer than their length), however old, in the
    order of arrival. They are neither admitted nor late; the lane counts them as filtered."""
    joined: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    """Admitted rows that would be late by themselves, but belong to a session that is open, in the order of arrival."""


class Windowing(ABC):
    """The open windows of one lane."""

    needs_keys: bool
    """Whether windows belong to keys; otherwise `keys` may be None everywhere."""
    closed_us: int
    """Windows that end at or before this, including allowed lateness, are closed permanently; never falls."""

    @abstractmethod
    def sort(self, times: Times, keys: Keys | None, joined: Rows | None = None) -> Admission:
        """Decide about rows, one after the other, without taking them in. `joined`: where an input is read again, what
        was decided the first time; it depends on the order of several inputs, which is another one now."""

    def depends_on_closing(self, times: Times) -> bool:
        """Whether these rows could be in other windows, or move others there, if no windows had been closed before
        them. Not where a row is in the windows of its time, or late for them; nor where rows are counted,
        whatever their time."""
        return False

    @abstractmethod
    def add(self, times: Times, keys: Keys | None, location: Location) -> None:
        """Add rows that are at `location`, in the order that `sort` returned."""

    @abstractmethod
    def close(self, watermark_us: int, windows_max: int | None = None) -> Sequence[WindowContents]:
        """Move `closed_us` on to the watermark; the windows that are closed by it, in the order of their ends, are
        open no more. Windows without rows have no contents and are not among them.

        At most so many windows: a million may close at once, so call it again until none come. Those that are left
        keep their contents, whatever is added meanwhile. A global window's results come from here too, those that a
        count triggers with the next call after `add`."""

    def early(self, windows_max: int | None = None, rows_min: int = 1) -> Sequence[WindowContents]:
        """The contents so far of the open windows that have at least so many new rows since their last early result,
        numbered on. At most so many windows; the others with the next call. Global windows have none: their trigger
        says when."""
        return []

    def rows_to_early(self, rows_min: int) -> int:
        """How many more rows are needed, at least, until a window has this many new ones. At least 1 after `early` has
        returned all windows."""
        return rows_min

    @abstractmethod
    def closed(self, contents: Sequence[WindowContents], closed_us: int) -> None:
        """After a restart: these windows were handed over at this point of the log, early results among them. Also
        called without contents, before `add`, with the `closed_us` of the entry: rows that came late are not in the
        windows that were closed by then. Rows that the log holds no more are missing in what is open, and are not
        missed."""

    def replayed(self) -> None:  # noqa: B027  # most windowings check in add
        """The log has been read back to its end. Raises `DamageError` if it contains rows for which there was no
        window, unless `add` has refused them."""

    @abstractmethod
    def oldest_end_us(self) -> int | None:
        """End of the window that ends first among those that are open, or closed and not handed over; None if there is
        none. A global window counts only if a result of it is due: until then its end moves with the watermark."""

    @abstractmethod
    def live_segments(self) -> set[int]:
        """Segments with rows of open windows, and of those that are closed and not handed over."""

    @abstractmethod
    def checkpoint(self) -> bytes:
        """The open windows, for `restore` of the same windowing."""

    @abstractmethod
    def restore(self, checkpoint: bytes) -> None:
        """Replace the open windows by those of a checkpoint."""

    @abstractmethod
    def open_windows(self) -> int:
        """How many windows are open."""

    @abstractmethod
    def open_rows(self) -> int:
        """Rows that open windows need, each counted once."""
