"""Rows of a query that wait to become records. Pure.

Above it: lanes that read queries in the order of a cursor.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.source import InvalidRecord

T = TypeVar("T")


class QueryRow(NamedTuple, Generic[T]):
    """One row of a query."""

    cursor: T
    size: int
    """Bytes of the value."""
    value: bytes
    """The row as a JSON object; only its beginning if it is larger than a record may be."""


class RowBatch(NamedTuple, Generic[T]):
    """The rows of a batch."""

    values: list[bytes]
    invalid: tuple[InvalidRecord, ...]
    at: T | None
    """The cursor of the last row; None if there was none."""


def take(waiting: deque[QueryRow[T]], shown: str, records_max: int, bytes_max: int) -> RowBatch[T]:
    """Removes the first rows, within the limits; one that is larger than a record may be is invalid. `shown`: a
    template for a cursor in messages, with `{}` in its place."""
    values: list[bytes] = []
    invalid: list[InvalidRecord] = []
    at: T | None = None
    size = 0
    while waiting and len(values) < records_max:
        row = waiting[0]
        if values and size + row.size > bytes_max:
            break
        waiting.popleft()
        at = row.cursor
        if row.size > RECORD_BYTES_MAX:
            cursor = ", ".join(map(str, row.cursor)) if isinstance(row.cursor, tuple) else str(row.cursor)
            place = shown.format(cursor)
            reason = f"{place}: its JSON has {row.size} bytes; the limit is {RECORD_BYTES_MAX}"
            invalid.append(InvalidRecord(row.value, reason, place))
            continue
        size += row.size
        values.append(row.value)
    return RowBatch(values, tuple(invalid), at)
