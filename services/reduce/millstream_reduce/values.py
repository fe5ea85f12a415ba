"""Plain values of the reduce: windows, and which rows of the log they contain. No I/O.

The format of the log is described in `proto/millstream/reduce/v1/wal.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millstream.wire.reduce.v1 import wal_pb2

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
