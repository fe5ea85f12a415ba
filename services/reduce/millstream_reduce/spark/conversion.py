"""Converts single values to the declared types, as Spark's readers do. Pure.

The slow way of `decoding`: used for what is not exactly as declared, so it decides what becomes of that.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

import pyarrow as pa

_SPECIAL_NUMBERS = {
    "NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf,
    "INF": math.inf, "+INF": math.inf, "-INF": -math.inf,
}  # fmt: skip
_SECOND_US = 1_000_000


class Malformed(ValueError):
    """Not a value of the declared type."""


class Text(str):
    """A text that stands for a value of any type, as in CSV."""

    __slots__ = ()


def from_text(text: str, kind: pa.DataType) -> Any:
    """What `convert` takes, of a field of a line: nothing is NULL, also for texts."""
    if not text:
        return None
    return text if pa.types.is_string(kind) else Text(text)


def convert(value: Any, kind: pa.DataType) -> Any:
    """A Python value of the declared type that pyarrow accepts. Raises `Malformed`."""
    if value is None:
        return None
    types = pa.types
    try:
        if types.is_string(kind):
            return _text(value)
        if types.is_boolean(kind):
            return _boolean(value)
        if types.is_integer(kind):
            return _integer(value, kind.bit_width)
        if types.is_floating(kind):
            return _number(value)
        if types.is_decimal(kind):
            return _decimal(value, kind)
        if types.is_timestamp(kind):
            return _timestamp(value, with_zone=kind.tz is not None)
        if types.is_date(kind):
            return _date(value)
        if types.is_binary(kind):
            return value if isinstance(value, bytes) else base64.b64decode(_required(value, str), validate=True)
        return _nested(value, kind)
    except (ValueError, OverflowError, InvalidOperation, ArithmeticError) as error:
        raise Malformed(str(error)) from error


def _nested(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        _required(value, dict)
        return {field.name: convert(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        _required(value, dict)
        return [(convert(name, kind.key_type), convert(item, kind.item_type)) for name, item in value.items()]
    if pa.types.is_list(kind):
        return [convert(item, kind.value_type) for item in _required(value, list)]
    raise Malformed(f"{kind} cannot be read")


def _required(value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted):
        raise Malformed(f"{type(value).__name__} is not {wanted.__name__}")
    return value


def _text(value: Any) -> str:
    if isinstance(value, str):
        # A lone surrogate, which JSON can write, is no text.
        value.encode()
        return value
    if isinstance(value, (datetime, date, Decimal)):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if isinstance(value, Text):
        named = {"true": True, "false": False}.get(value.lower())
        if named is None:
            raise Malformed("not a boolean")
        return named
    return bool(_required(value, bool))


def _integer(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, Text)):
        raise Malformed("not an integer")
    number = int(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise Malformed("out of range")
    return number


def _number(value: Any) -> float:
    if isinstance(value, str):
        if value in _SPECIAL_NUMBERS:
            return _SPECIAL_NUMBERS[value]
        if not isinstance(value, Text):
            raise Malformed("not a number")
    elif isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Malformed("not a number")
    return float(value)


def _decimal(value: Any, kind: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise Malformed("not a number")
    with localcontext(prec=76):
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), rounding=ROUND_HALF_UP)
        if len(number.as_tuple().digits) > kind.precision or not number.is_finite():
            raise Malformed("out of range")
        return number


def _timestamp(value: Any, *, with_zone: bool) -> int:
    """Microseconds."""
    if isinstance(value, int) and not isinstance(value, bool) and with_zone:
        moment_us = value * _SECOND_US
    else:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(_required(value, str))
        if not with_zone and moment.tzinfo is not None:
            raise Malformed("a time of day everywhere has no zone")
        difference = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        moment_us = (difference.days * 86400 + difference.seconds) * _SECOND_US + difference.microseconds
    if not -(1 << 63) <= moment_us < 1 << 63:
        raise Malformed("out of range")
    return moment_us


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    text = _required(value, str)
    try:
        return date.fromisoformat(text)
    except ValueError:
        return datetime.combine(datetime.fromisoformat(text).date(), time()).date()
