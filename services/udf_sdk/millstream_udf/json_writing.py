"""Writes users' objects as JSON values, in the forms that `json_types` accepts.

Above it: `typed_values`. Below it: the standard library. Models of pydantic and msgspec write themselves. Values
without a form in JSON are refused, with their place; a number that is not finite becomes null, as in the rows of
tables.
"""

from __future__ import annotations

import base64
import collections.abc as abc
import dataclasses
import enum
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from millstream_udf.json_types import is_msgspec, is_pydantic
from millstream_udf.misfits import path_text


class Unwritable(TypeError):
    """A value that cannot be written as JSON, and its place in an object."""

    def __init__(self, what: str, path: tuple[Any, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.path = path

    def __str__(self) -> str:
        where = path_text(tuple(step if isinstance(step, int) else str(step) for step in self.path))
        return f"{self.what} (field `{where}`)" if where else self.what


def plain(value: Any) -> Any:
    """An object converted for `json`, in the forms that `converter` accepts. Raises `TypeError` with the field that
    cannot be written."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            # JSON has no other numbers; as in tables.
            return value if math.isfinite(value) else None
        case datetime() | time():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case timedelta():
            return duration_text(value)
        case Decimal() | UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case abc.Mapping():
            return {_name(key): _inside(key, item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_inside(index, item) for index, item in enumerate(value)]
    kind = type(value)
    if is_pydantic(kind):
        return kind.__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    if is_msgspec(kind):
        import msgspec

        return msgspec.to_builtins(value, str_keys=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _inside(field.name, getattr(value, field.name))
            for field in dataclasses.fields(value)
            if hasattr(value, field.name)
        }
    raise TypeError(f"JSON has no {kind.__name__}")


def _inside(step: Any, value: Any) -> Any:
    try:
        return plain(value)
    except Unwritable as error:
        raise Unwritable(error.what, (step, *error.path)) from None
    except TypeError as error:
        raise Unwritable(str(error), (step,)) from None


def _name(key: Any) -> str:
    match key:
        case enum.Enum():
            return _name(key.value)
        case bool() | None:
            pass
        case str():
            return key
        case int() | float():
            return json.dumps(key)
        case datetime() | date() | time() | UUID() | Decimal() | timedelta():
            return str(plain(key))
    raise TypeError(f"a name in JSON must be a text or a number, not {key!r:.80}")


def duration_text(value: timedelta) -> str:
    """ISO 8601."""
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    seconds = f"{value.seconds}.{value.microseconds:06}".rstrip("0").rstrip(".")
    days = f"{value.days}D" if value.days or seconds == "0" else ""
    return f"{sign}P{days}" if seconds == "0" else f"{sign}P{days}T{seconds}S"
