"""Properties of messages as the client decodes them, of any content.

A publisher chooses the bytes of a property, and the server passes them on. pamqp, the decoder below aiormq, raises for
some of them, which ends the connection, and the server sends the same message over the next one. So those types get
decoders that accept everything. The source decides what becomes of such a message.

Above it: the link. Below it: pamqp's tables of decoders, which this module changes for the whole process.
"""

from __future__ import annotations

import struct
from datetime import datetime
from typing import Any

from pamqp import decode

UNREADABLE = "x-millstream-unreadable"
"""A header that a message gets if one of its own cannot be decoded; its value is the reason."""


def accept_any_content() -> None:
    """Replace the decoders that raise. May be called repeatedly."""
    methods: dict[str, Any] = decode.METHODS
    fields: dict[bytes, Any] = decode.TABLE_MAPPING
    methods |= {"shortstr": _short_text, "timestamp": _timestamp, "table": _table}
    fields |= {b"T": _timestamp}


def text_bytes(text: str) -> bytes:
    """The bytes of a short text as they were sent."""
    return text.encode(errors="surrogateescape")


def _timestamp(value: bytes) -> tuple[int, datetime | int]:
    """A moment; the number itself if it is not in the calendar."""
    try:
        return decode.timestamp(value)
    except (OverflowError, OSError):
        pass
    except ValueError:
        if len(value) < struct.calcsize("!Q"):
            raise
    return 8, int.from_bytes(value[:8], "big")


def _short_text(value: bytes) -> tuple[int, str]:
    """A text. Bytes that are not UTF-8 become lone surrogates, which `text_bytes` turns back."""
    end = value[0] + 1
    return end, value[1:end].decode(errors="surrogateescape")


def _table(value: bytes) -> tuple[int, dict[str, Any]]:
    """The headers of a message, as far as they can be decoded."""
    (length,) = struct.unpack_from("!I", value)
    end = 4 + length
    if end > len(value):
        raise ValueError("the table is longer than its frame")
    found: dict[str, Any] = {}
    at = 4
    while at < end:
        start = at + 1 + value[at]
        try:
            name = value[at + 1 : start].decode()
            consumed, found[name] = decode.embedded_value(value[start:end])
        except (ValueError, OverflowError, RecursionError) as error:
            found[UNREADABLE] = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            if value[start : start + 1] not in (b"A", b"F"):
                # It is not known where the next one begins.
                break
            consumed = 5 + int.from_bytes(value[start + 1 : start + 5], "big")
        at = start + consumed
    return end, found
