"""Values of rows as JSON, and those of cursors in positions. Pure.

Numbers keep all their digits, times are in ISO 8601, bytes are base64, and NULL is null.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

Cursor = tuple[Any, ...]


def json_of(value: Any) -> str:
    """A value of a column."""
    if isinstance(value, str):
        return encode_basestring(value.encode("utf-8", "replace").decode())
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else f'"{value}"'
    if isinstance(value, datetime | date | time):
        return f'"{value.isoformat()}"'
    if isinstance(value, timedelta):
        return f'"{_clock(value)}"'
    if isinstance(value, bytes | bytearray | memoryview):
        return f'"{base64.b64encode(bytes(value)).decode()}"'
    if isinstance(value, list | tuple):
        return f"[{','.join(map(json_of, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json_of(str(name))}:{json_of(one)}' for name, one in value.items())}}}"
    return json_of(str(value))


def _clock(value: timedelta) -> str:
    """MySQL's type TIME, which may be negative."""
    seconds, fraction = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{'-' if value < timedelta() else ''}{text}{f'.{fraction:06}' if fraction else ''}"


def packed(cursor: Cursor) -> list[list[str]]:
    """The form in a position: each value with its type. Raises `TypeError` for a type that text cannot represent
    exactly."""
    found = []
    for value in cursor:
        if isinstance(value, bool) or not isinstance(value, int | str | Decimal | datetime | date):
            raise TypeError(type(value).__name__)
        found.append([type(value).__name__, value.isoformat() if isinstance(value, date) else str(value)])
    return found


def unpacked(written: Sequence[Sequence[str]]) -> Cursor:
    """The inverse of `packed`. Raises `ValueError`, `TypeError`, `KeyError` and `ArithmeticError`."""
    read: dict[str, Callable[[str], Any]] = {
        "int": int,
        "str": str,
        "Decimal": Decimal,
        "datetime": datetime.fromisoformat,
        "date": date.fromisoformat,
    }
    return tuple(read[kind](text) for kind, text in written)
