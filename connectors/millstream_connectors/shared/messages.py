"""Messages of a server as records: their sizes and times, and messages that cannot become records. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from millstream.limits import RECORD_BYTES_MAX
from millstream_reader.source import InvalidRecord

SHOWN_BYTES = 1024
"""Bytes of a message that is too large that are kept for messages."""
_OVERHEAD_BYTES = 64

T = TypeVar("T")


def size_of(value: bytes, headers: Mapping[str, bytes]) -> int:
    """Approximate bytes of its record."""
    return _OVERHEAD_BYTES + len(value) + sum(len(name) + len(text) for name, text in headers.items())


def event_time(parse: Callable[[T], int], given: T) -> tuple[int, str]:
    """The event time of a message in microseconds, and what is wrong with the given one; empty if nothing is. `parse`:
    raises `ValueError` for a time that is not in the calendar."""
    try:
        return parse(given), ""
    except ValueError as error:
        return 0, f"event time: {error}"


def invalid(value: bytes, size: int, fault: str, place: str) -> InvalidRecord | None:
    """The invalid record for a message that cannot become a record; None if it can. `fault`: what is wrong with the
    message itself; empty if nothing is."""
    if size > RECORD_BYTES_MAX:
        return too_large(value, size, place)
    return InvalidRecord(value, f"{place}: {fault}", place) if fault else None


def divided(
    messages: Sequence[T], invalid_of: Callable[[T], InvalidRecord | None]
) -> tuple[Sequence[T], tuple[InvalidRecord, ...]]:
    """The messages that can become records, and the invalid records for the others."""
    found = [invalid_of(message) for message in messages]
    faults = tuple(fault for fault in found if fault is not None)
    if not faults:
        return messages, ()
    return [message for message, fault in zip(messages, found, strict=True) if fault is None], faults


def too_large(value: bytes, size: int, place: str, noun: str = "the message") -> InvalidRecord:
    """The invalid record for a message that is too large."""
    reason = f"{place}: {noun} has {size} bytes; the limit is {RECORD_BYTES_MAX}"
    return InvalidRecord(value[:SHOWN_BYTES], reason, place)
