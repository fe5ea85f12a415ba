"""Logs written for tests: records of some windows, in as many entries as a test likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.batches import encoded, schema
from millstream_reduce.log.entries import entry_buffers, segment_name
from millstream_reduce.spark.manifest import JobWindows, WindowsOrigin
from millstream_reduce.values import Piece, Window, WindowContents, WindowTable

MINUTE_US = 60_000_000


@dataclass(frozen=True)
class Row:
    """A record of the log."""

    value: bytes
    time_us: int = 0
    keys: tuple[str, ...] = ()
    headers: Mapping[str, bytes] = field(default_factory=dict)


class TestLog:
    """A segment under construction. Windows are given as numbers; window n lasts from minute n to n + 1."""

    __test__ = False

    def __init__(self, directory: Path, segment: int = 1) -> None:
        self._directory = directory
        self._segment = segment
        self._data = bytearray()
        self._pieces: dict[int, list[tuple[int, int, int, int, int]]] = {}

    def append(self, rows: Sequence[Row], runs: Sequence[tuple[int, int, int]]) -> None:
        """One entry; each run is a window, its first row and how many rows."""
        has_keys = any(row.keys for row in rows)
        has_headers = any(row.headers for row in rows)
        columns: dict[str, list[Any]] = {
            "value": [row.value for row in rows],
            "event_time": [row.time_us for row in rows],
            "keys": [list(row.keys) for row in rows],
            "headers": [list(row.headers.items()) for row in rows],
        }
        kinds = schema(has_keys, has_headers)
        arrays: list[pa.Array[Any]] = [pa.array(columns[name.name], name.type) for name in kinds]
        body = encoded(pa.RecordBatch.from_arrays(arrays, schema=kinds))
        meta = wal_pb2.Entry(append=wal_pb2.Append(rows=len(rows), has_keys=has_keys, has_headers=has_headers))
        offset = len(self._data)
        self._data += b"".join(entry_buffers(len(self._pieces) + 1, meta.SerializeToString(), body))
        for window, first, count in runs:
            piece = (self._segment, offset, len(self._data) - offset, first, count)
            self._pieces.setdefault(window, []).append(piece)

    def append_windows(self, rows: Mapping[int, Sequence[Row]]) -> None:
        """One entry with rows of several windows."""
        together: list[Row] = []
        runs = []
        for window, of_window in rows.items():
            runs.append((window, len(together), len(of_window)))
            together += of_window
        self.append(together, [run for run in runs if run[2]])

    def damage(self, offset: int) -> None:
        """Flip a bit."""
        self._data[offset] ^= 1

    def windows(self, keys: Mapping[int, bytes] | None = None, early: int = 0) -> JobWindows:
        """Write the segment; its windows in order. `keys`: of windows that belong to one."""
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / segment_name(self._segment)).write_bytes(self._data)
        windows = [self._window(number, keys or {}, early) for number in sorted(self._pieces)]
        return JobWindows.of([(str(self._directory), WindowTable.of(windows), WindowsOrigin())])

    def _window(self, number: int, keys: Mapping[int, bytes], early: int) -> WindowContents:
        window = Window(number * MINUTE_US, (number + 1) * MINUTE_US, keys.get(number), early)
        return WindowContents(window, tuple(Piece(*piece) for piece in self._pieces[number]))
