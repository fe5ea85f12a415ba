"""Plain values of the reduce: windows, and which rows of the log they contain, one by one and by columns. No I/O.

    windows ─► WindowTable ─► log, engine ─► WindowTable ─► manifest, account, frames of results

Windows are handed over by columns. Otherwise, ten thousand sessions of a row or two would be as many messages, and
writing and reading these would cost more than computing the results. A table is never changed. As a sequence it yields
its windows one by one, for people and for windowings that need that.

The format of the log, and with it the bytes of a table, is described in `proto/millstream/reduce/v1/wal.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from millstream import codes
from millstream.errors import DamageError
from millstream.wire.reduce.v1 import wal_pb2

Rows = npt.NDArray[np.int64]
"""Indexes of rows, and other columns of integers."""

Key = bytes | None
"""The key of a window, as `group_keys` joins its parts; None for one that all keys share."""


class Location(NamedTuple):
    """The place of an entry in the log."""

    segment: int
    offset: int
    """Bytes from the start of the segment."""
    length: int
    """Bytes of the whole entry."""


class Piece(NamedTuple):
    """A run of rows of one entry's body."""

    segment: int
    offset: int
    length: int
    first_row: int
    rows: int

    @property
    def location(self) -> Location:
        return Location(self.segment, self.offset, self.length)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """A range of event time, [start, end), in microseconds; of one key for session and global windows."""

    start_us: int
    end_us: int
    key: Key = None
    early: int = 0
    """Number of the early result, from 1; 0 for the final one."""


@dataclass(frozen=True, slots=True)
class WindowContents:
    """A window and the exact rows it contains: fixed once it is created."""

    window: Window
    pieces: tuple[Piece, ...]
    """In the order in which the rows were appended."""
    released: int = 0
    """Rows that no other window needs once this one is committed."""

    @property
    def rows(self) -> int:
        return sum([piece.rows for piece in self.pieces])

    @classmethod
    def from_message(cls, message: wal_pb2.Window) -> WindowContents:
        """A window of a log of format 1."""
        key = message.key if message.HasField("key") else None
        window = Window(message.start_us, message.end_us, key, message.early)
        rows = message.pieces
        columns = (rows.segments, rows.offsets, rows.lengths, rows.first_rows, rows.rows)
        return cls(window, tuple(map(Piece._make, zip(*columns, strict=True))), message.released)


_NO_KEY = -1


class WindowTable(Sequence[WindowContents]):
    """Windows by columns."""

    __slots__ = (
        "_joined_keys", "_key_lengths", "_keys", "bounds", "early", "ends", "entries", "first_rows", "piece_entries",
        "piece_rows", "released", "rows", "starts",
    )  # fmt: skip

    def __init__(
        self,
        starts: Rows,
        ends: Rows,
        keys: Sequence[Key] | None,
        rows: Rows,
        pieces: Rows,
        entries: Rows,
        piece_columns: tuple[Rows, Rows, Rows],
        *,
        released: Rows,
        early: Rows | None = None,
    ) -> None:
        """One number for each window in each column.

        Args:
            keys: None where no window has one.
            pieces: How many each window has.
            entries: Segment, offset and length of the entries that contain the pieces. piece_columns: Window by window:
            the number of the entry, the first row, and the rows. early: Numbers of early results; None: all are final.
            released: Rows that no other window needs.
        """
        self.starts = starts
        """Microseconds."""
        self.ends = ends
        self.early = np.zeros(len(starts), np.int64) if early is None else early
        self.rows = rows
        self.released = released
        self.bounds: Rows = np.concatenate((np.zeros(1, np.int64), np.cumsum(pieces)))
        """Where the pieces of each window begin, and at last where they end."""
        self.entries = entries
        self.piece_entries, self.first_rows, self.piece_rows = piece_columns
        self._keys = keys
        self._key_lengths: Rows | None = None
        self._joined_keys = b""

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> WindowContents: ...

    @overload
    def __getitem__(self, index: slice) -> WindowTable: ...

    def __getitem__(self, index: int | slice) -> WindowContents | WindowTable:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        begin, end = int(self.bounds[index]), int(self.bounds[index + 1])
        entries = self.entries[self.piece_entries[begin:end]].T.tolist()
        pieces = tuple(map(Piece, *entries, self.first_rows[begin:end].tolist(), self.piece_rows[begin:end].tolist()))
        keys = self.keys
        key = None if keys is None else keys[index]
        window = Window(int(self.starts[index]), int(self.ends[index]), key, int(self.early[index]))
        return WindowContents(window, pieces, int(self.released[index]))

    @property
    def keys(self) -> Sequence[Key] | None:
        """None if no window has one."""
        if self._keys is None and self._key_lengths is not None:
            lengths, joined = self._key_lengths, self._joined_keys
            ends = np.cumsum(np.maximum(lengths, 0)).tolist()
            keys: list[Key] = [joined[begin:end] for begin, end in pairwise([0, *ends])]
            for place in np.flatnonzero(lengths == _NO_KEY).tolist():
                keys[place] = None
            self._keys = keys
        return self._keys

    @property
    def pieces(self) -> Rows:
        """The number of pieces of each window."""
        return np.diff(self.bounds)

    def with_keys(self, keys: Sequence[Key]) -> WindowTable:
        """The same windows of other keys."""
        return WindowTable(
            self.starts,
            self.ends,
            keys,
            self.rows,
            self.pieces,
            self.entries,
            (self.piece_entries, self.first_rows, self.piece_rows),
            early=self.early,
            released=self.released,
        )

    def take(self, indexes: npt.ArrayLike) -> WindowTable:
        """Some of the windows, in this order."""
        chosen = np.asarray(indexes, np.int64)
        counts = self.pieces[chosen]
        before = np.cumsum(counts) - counts
        places = np.repeat(self.bounds[:-1][chosen] - before, counts) + np.arange(int(counts.sum()))
        used, piece_entries = np.unique(self.piece_entries[places], return_inverse=True)
        keys = self.keys
        return WindowTable(
            self.starts[chosen],
            self.ends[chosen],
            None if keys is None else [keys[index] for index in chosen.tolist()],
            self.rows[chosen],
            counts,
            self.entries[used],
            (piece_entries, self.first_rows[places], self.piece_rows[places]),
            early=self.early[chosen],
            released=self.released[chosen],
        )

    @classmethod
    def of(cls, windows: Iterable[WindowContents]) -> WindowTable:
        """The same windows by columns."""
        if isinstance(windows, WindowTable):
            return windows
        listed = list(windows)
        numbers: dict[Location, int] = {}
        pieces = [piece for one in listed for piece in one.pieces]
        of_pieces = [numbers.setdefault(piece.location, len(numbers)) for piece in pieces]
        has_keys = any(one.window.key is not None for one in listed)
        return cls(
            _column(one.window.start_us for one in listed),
            _column(one.window.end_us for one in listed),
            [one.window.key for one in listed] if has_keys else None,
            _column(one.rows for one in listed),
            _column(len(one.pieces) for one in listed),
            np.array(list(numbers), np.int64).reshape(-1, 3),
            (np.array(of_pieces, np.int64), _column(p.first_row for p in pieces), _column(p.rows for p in pieces)),
            early=_column(one.window.early for one in listed),
            released=_column(one.released for one in listed),
        )

    @classmethod
    def of_hand_over(cls, hand_over: wal_pb2.HandOver) -> WindowTable:
        """The windows of a hand-over, of any format of the log. Raises `DamageError` as `from_message` does."""
        if hand_over.HasField("table"):
            return cls.from_message(hand_over.table)
        return cls.of(WindowContents.from_message(window) for window in hand_over.windows)

    def message(self) -> wal_pb2.WindowTable:
        """For the log and the engine."""
        message = wal_pb2.WindowTable(
            count=len(self),
            starts_us=_packed(self.starts, "<i8"),
            ends_us=_packed(self.ends, "<i8"),
            early=_packed(self.early, "<u4"),
            rows=_packed(self.rows, "<u8"),
            released=_packed(self.released, "<u8"),
            pieces=_packed(self.pieces, "<u4"),
            segments=_packed(self.entries[:, 0], "<u8"),
            offsets=_packed(self.entries[:, 1], "<u8"),
            lengths=self.entries[:, 2].astype("<u8").tobytes(),
            piece_entries=_packed(self.piece_entries, "<u4"),
            piece_first_rows=_packed(self.first_rows, "<u4"),
            piece_rows=self.piece_rows.astype("<u4").tobytes(),
        )
        if self._key_lengths is not None:
            message.key_lengths, message.keys = self._key_lengths.astype("<i4").tobytes(), self._joined_keys
        elif (keys := self._keys) is not None:
            lengths = [_NO_KEY if key is None else len(key) for key in keys]
            message.key_lengths = np.array(lengths, "<i4").tobytes()
            message.keys = b"".join(key for key in keys if key is not None)
        return message

    @classmethod
    def from_message(cls, message: wal_pb2.WindowTable) -> WindowTable:
        """Inverse of `message`. Raises `DamageError` where the columns do not fit together."""
        count = message.count
        pieces = _unpacked(message.pieces, "<u4", count)
        lengths, piece_rows = _unpacked(message.lengths, "<u8"), _unpacked(message.piece_rows, "<u4")
        entries = np.stack(
            (
                _unpacked(message.segments, "<u8", len(lengths)),
                _unpacked(message.offsets, "<u8", len(lengths)),
                lengths,
            ),
            axis=1,
        )
        piece_entries = _unpacked(message.piece_entries, "<u4", len(piece_rows))
        _check(int(pieces.sum()) == len(piece_rows))
        _check(int(piece_entries.max(initial=-1)) < len(lengths))
        table = cls(
            _unpacked(message.starts_us, "<i8", count),
            _unpacked(message.ends_us, "<i8", count),
            None,
            _unpacked(message.rows, "<u8", count),
            pieces,
            entries,
            (piece_entries, _unpacked(message.piece_first_rows, "<u4", len(piece_rows)), piece_rows),
            early=_unpacked(message.early, "<u4", count),
            released=_unpacked(message.released, "<u8", count),
        )
        if message.key_lengths:
            key_lengths = _unpacked(message.key_lengths, "<i4", count)
            _check(int(key_lengths.min()) >= _NO_KEY and int(np.maximum(key_lengths, 0).sum()) == len(message.keys))
            table._key_lengths, table._joined_keys = key_lengths, message.keys
        return table

    @classmethod
    def joined(cls, tables: Sequence[WindowTable]) -> WindowTable:
        """The windows of all tables, in order. An entry may be named several times."""
        if len(tables) == 1:
            return tables[0]
        before = np.cumsum([0, *(len(table.entries) for table in tables)]).tolist()
        has_keys = any(table.keys is not None for table in tables)
        keys = [key for table in tables for key in table.keys or [None] * len(table)]
        none = np.zeros(0, np.int64)
        return cls(
            np.concatenate([none, *(table.starts for table in tables)]),
            np.concatenate([none, *(table.ends for table in tables)]),
            keys if has_keys else None,
            np.concatenate([none, *(table.rows for table in tables)]),
            np.concatenate([none, *(table.pieces for table in tables)]),
            np.concatenate([none.reshape(0, 3), *(table.entries for table in tables)]),
            (
                np.concatenate([none, *(table.piece_entries + by for table, by in zip(tables, before, strict=False))]),
                np.concatenate([none, *(table.first_rows for table in tables)]),
                np.concatenate([none, *(table.piece_rows for table in tables)]),
            ),
            early=np.concatenate([none, *(table.early for table in tables)]),
            released=np.concatenate([none, *(table.released for table in tables)]),
        )


def _column(values: Iterable[int]) -> Rows:
    return np.fromiter(values, np.int64)


def _packed(column: Rows, dtype: str) -> bytes:
    return column.astype(dtype).tobytes() if column.any() else b""


def _unpacked(packed: bytes, dtype: str, count: int | None = None) -> Rows:
    """`count`: how many there are, where an empty column means zeros."""
    _check(len(packed) % np.dtype(dtype).itemsize == 0)
    column = np.frombuffer(packed, dtype).astype(np.int64)
    if count is None or len(column) == count:
        return column
    _check(not packed)
    return np.zeros(count, np.int64)


def _check(whole: bool) -> None:
    if not whole:
        raise DamageError(
            codes.SEGMENT_DAMAGED, "the windows of a hand-over do not fit together: its columns differ in length"
        )
