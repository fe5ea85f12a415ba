"""What the messages of an Arrow stream say of themselves, read before Arrow decodes them. Pure.

    0xFFFFFFFF, length ─► metadata (a flatbuffer: kind, header, length of the body) ─► body ─► the next message

A few kilobytes of compressed columns can need gigabytes. Arrow decompresses a batch when it reads it, and has no limit
for that. Above it: `arrow_values`. Below it: nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

JSON_TIMES = 8
"""Bytes of JSON for a byte of columns, at most: see `arrow_values`."""
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3
"""Kinds of messages with columns."""


def is_compressed(stream: bytes) -> bool:
    """Whether a batch of the stream is compressed. Raises `ValueError` for bytes that are not such a stream."""
    try:
        return any(_batches(stream))
    except (struct.error, IndexError) as error:
        raise ValueError(f"the values are not Arrow columns: {error!r}") from error


def _batches(stream: bytes) -> Iterator[bool]:
    """For each batch, whether it is compressed."""
    at = 0
    while at + 8 <= len(stream):
        first, length = struct.unpack_from("<Ii", stream, at)
        if first != _CONTINUATION:
            # As before Arrow 0.15.
            at, length = at - 4, first
        if length <= 0:
            return
        metadata = at + 8
        message = metadata + _number(stream, "<I", metadata)
        kind, header, body = (_field(stream, message, field) for field in (1, 2, 3))
        if header and kind and stream[kind] in (_DICTIONARY, _BATCH):
            table = header + _number(stream, "<I", header)
            if stream[kind] == _DICTIONARY:
                data = _field(stream, table, 1)
                table = data + _number(stream, "<I", data)
            yield _field(stream, table, 3) != 0
        size = _number(stream, "<q", body) if body else 0
        if size < 0:
            raise IndexError("a negative length")
        at = metadata + length + size


def _field(stream: bytes, table: int, number: int) -> int:
    """The place of a field of a table; 0 if the table does not have it."""
    fields = table - _number(stream, "<i", table)
    if fields < 0:
        raise IndexError("a place before the stream")
    entry = 4 + 2 * number
    offset = _number(stream, "<H", fields + entry) if entry < _number(stream, "<H", fields) else 0
    return table + offset if offset else 0


def _number(stream: bytes, form: str, at: int) -> int:
    return int(struct.unpack_from(form, stream, at)[0])
