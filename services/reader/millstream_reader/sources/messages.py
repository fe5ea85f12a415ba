"""From messages of a server to records: sizes, and those that are too large. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.source import InvalidRecord

SHOWN_BYTES = 1024
"""Of a message that is too large."""
_OVERHEAD_BYTES = 64


def size_of(value: bytes, headers: Mapping[str, bytes]) -> int:
    """Bytes that a record of it has, about."""
    return _OVERHEAD_BYTES + len(value) + sum(len(name) + len(text) for name, text in headers.items())


def too_large(value: bytes, size: int, place: str) -> InvalidRecord:
    """Of one that no record can hold."""
    reason = f"{place}: the message has {size} bytes; the limit is {RECORD_BYTES_MAX}"
    return InvalidRecord(value[:SHOWN_BYTES], reason, place)
