"""Values of rows as JSON, and those of cursors in positions. Pure.

Numbers keep all their digits, times are in ISO 8601, bytes are base64, and NULL is null.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from json.encoder import encode_basestring
from typing import Any

Cursor = tuple[Any, ...]


def json_of(value: Any) -> str:
    """A value of a column."""
    # The commonest types do not need the table.
    if value.__class__ is str:
        return encode_basestring(value.encode("utf-8", "replace").decode())
    if value is None:
        return "null"
    return _form_of(value.__class__)(value)


def _clock(value: timedelta) -> str:
    """MySQL's type TIME, which may be negative."""
    seconds, fraction = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{'-' if value < timedelta() else ''}{text}{f'.{fraction:06}' if fraction else ''}"


_FORMS: Sequence[tuple[type | tuple[type, ...], Callable[[Any], str]]] = (
    (str, lambda value: encode_basestring(value.encode("utf-8", "replace").decode())),
    (bool, lambda value: "true" if value else "false"),
    (int, str),
    (float, lambda value: repr(value) if math.isfinite(value) else f'"{value}"'),
    (Decimal, lambda value: format(value, "f") if value.is_finite() else f'"{value}"'),
    ((datetime, date, time), lambda value: f'"{value.isoformat()}"'),
    (timedelta, lambda value: f'"{_clock(value)}"'),
    ((bytes, bytearray, memoryview), lambda value: f'"{base64.b64encode(bytes(value)).decode()}"'),
    ((list, tuple), lambda value: f"[{','.join(map(json_of, value))}]"),
    (dict, lambda value: f"{{{','.join(f'{json_of(str(name))}:{json_of(one)}' for name, one in value.items())}}}"),
    (object, lambda value: json_of(str(value))),
)
"""By type, the first one that fits."""


@cache
def _form_of(kind: type) -> Callable[[Any], str]:
    """How values of a type are written."""
    return next(form for kinds, form in _FORMS if issubclass(kind, kinds))


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
