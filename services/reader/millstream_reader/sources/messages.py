"""Messages of a server as records: their sizes, and messages that are too large. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.source import InvalidRecord

SHOWN_BYTES = 1024
"""Bytes of a message that is too large that are kept for messages."""
_OVERHEAD_BYTES = 64


def size_of(value: bytes, headers: Mapping[str, bytes]) -> int:
    """Approximate bytes of its record."""
    return _OVERHEAD_BYTES + len(value) + sum(len(name) + len(text) for name, text in headers.items())


def too_large(value: bytes, size: int, place: str) -> InvalidRecord:
    """The invalid record for a message that is too large."""
    reason = f"{place}: the message has {size} bytes; the limit is {RECORD_BYTES_MAX}"
    return InvalidRecord(value[:SHOWN_BYTES], reason, place)
