"""Names of keys in logs before format 4, which `group_keys` describes: what has an ambiguous name is named again.

    open windows, hand-overs ─► those with an ambiguous name ─► the key of their first row, in the log ─► today's name

This happens once, when such a log is opened: the segment that is begun then holds the result. A window into which
that log had merged several keys has the key of its first row.

Above it: the contents of a queue. Below it: segments, read only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import KEY_SEPARATOR
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce import batches
from millstream_reduce.group_keys import join_key
from millstream_reduce.log.entries import EntryError, read_entry
from millstream_reduce.log.segments import mapped, segment_path
from millstream_reduce.values import Location, WindowTable

KeyOfRow = Callable[[Location, int], bytes]
"""The key of a row of an entry."""

_ENTRIES_MAX = 64


def is_ambiguous(key: bytes | None) -> bool:
    """Whether several keys had this name."""
    return key is not None and (not key or KEY_SEPARATOR in key)


class StoredKeys:
    """The keys of rows in the segments of a directory: a `KeyOfRow`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._column = lru_cache(_ENTRIES_MAX)(self._read)

    def __call__(self, location: Location, row: int) -> bytes:
        """Raises `DamageError`."""
        column = self._column(location)
        return b"" if column is None else join_key([part.encode() for part in column[row].as_py() or ()])

    def _read(self, location: Location) -> Any:
        path = segment_path(self._directory, location.segment)
        try:
            with mapped(path) as data:
                entry = read_entry(data, location.offset)
                append = entry.message().append
                return batches.decoded(entry.body, append).column("keys") if append.has_keys else None
        except (EntryError, OSError) as error:
            raise DamageError(codes.SEGMENT_DAMAGED, f"{path}, offset {location.offset}: {error}") from error


def renamed(hand_over: wal_pb2.HandOver, key_of_row: KeyOfRow) -> wal_pb2.HandOver:
    """A hand-over of such a log, with today's names."""
    windows = WindowTable.of_hand_over(hand_over)
    if not any(map(is_ambiguous, windows.keys or ())):
        return hand_over
    keys: list[bytes | None] = []
    for one in windows:
        key = one.window.key
        keys.append(key_of_row(one.pieces[0].location, one.pieces[0].first_row) if is_ambiguous(key) else key)
    again = wal_pb2.HandOver()
    again.CopyFrom(hand_over)
    del again.windows[:]
    again.table.CopyFrom(windows.with_keys(keys).message())
    return again
