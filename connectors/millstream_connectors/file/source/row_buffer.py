"""Rows of a table, as JSON, that were read and not taken yet. Pure.

Above it: `table_file`, and the lanes of lake tables.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from millstream.frame import Frame, build_frame
from millstream.limits import KIB, RECORD_BYTES_MAX
from millstream_reader.source import InvalidRecord

_SHOWN_BYTES = 64 * KIB
_OVERHEAD_BYTES = 16
"""Of a record in the columns besides its value."""


class TakenRows(NamedTuple):
    """Rows that were taken."""

    frame: Frame | None
    """None if none can be a record."""
    invalid: tuple[InvalidRecord, ...]
    """Rows that are too large."""
    rows: int
    """Number of both."""


class RowBuffer:
    """Rows in order."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows) - self._next

    def add(self, rows: list[bytes]) -> None:
        """Append rows."""
        self._rows = self._rows[self._next :] + rows
        self._next = 0

    def take(self, records_max: int, bytes_max: int, *, now_us: int, source: str, before: int) -> TakenRows:
        """Take out the next rows, within the limits. `source`: what they come from, for messages; `before`: its number
        of rows before these."""
        first = self._next
        size = 0
        values: list[bytes] = []
        invalid: list[InvalidRecord] = []
        while self._next < len(self._rows) and len(values) < records_max:
            value = self._rows[self._next]
            if values and size + len(value) > bytes_max:
                break
            self._next += 1
            if len(value) > RECORD_BYTES_MAX:
                place = f"{source}, row {before + self._next - first}"
                reason = f"{place}: its JSON has {len(value)} bytes; the limit is 7 MiB"
                invalid.append(InvalidRecord(value[:_SHOWN_BYTES], reason, place))
                continue
            size += len(value) + _OVERHEAD_BYTES
            values.append(value)
        frame = build_frame(values, array("q", [now_us]) * len(values), ingest_time_us=now_us) if values else None
        return TakenRows(frame, tuple(invalid), self._next - first)
