"""Avro values as JSON texts. Pure.

Above it: the decoder. Below it: fastavro. Types that JSON lacks become text: bytes in base64, decimals as their digits,
dates and times as in ISO 8601, NaN and infinities by their names.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

from fastavro import parse_schema

from millstream.json_parser import parse_json
from millstream_connectors.shared.formats.avro_bounds import TOO_DEEP, check_items, values_reader
from millstream_connectors.shared.formats.registry import Schema


def parsed(schema: Schema) -> Any:
    """A schema as fastavro parses it. Raises `ValueError` for one that it does not accept."""
    named: dict[str, Any] = {}
    try:
        for referred in schema.references:
            parse_schema(parse_json(referred.text), named_schemas=named)
        made = parse_schema(parse_json(schema.text), named_schemas=named)
        check_items(made, named)
        return made
    except Exception as error:  # fastavro raises errors of any kind
        raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error


def decoder(writer: Any, reader: Any) -> Callable[[bytes], bytes]:
    """A function from Avro to JSON, for values that were written with one schema. The function raises `ValueError`.

    Raises `ValueError` for a schema without values."""
    try:
        read = values_reader(writer)
    except ValueError as error:
        raise ValueError(f"cannot be used: {error}") from None

    def decode(data: bytes) -> bytes:
        stream = BytesIO(data)
        try:
            value = read(stream, writer, reader)
        except RecursionError:
            raise ValueError(f"the value cannot be read: {TOO_DEEP}") from None
        except Exception as error:  # fastavro raises errors of any kind
            what = str(error) or type(error).__name__
            raise ValueError(f"the value does not fit its schema: {what}") from error
        if stream.tell() != len(data):
            raise ValueError(f"the value does not fit its schema: {len(data) - stream.tell()} bytes are left after it")
        return as_json(value)

    return decode


def as_json(value: Any) -> bytes:
    """JSON of a value as fastavro returns it. Raises `ValueError` for text that is not valid Unicode."""
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)
        except ValueError:
            # The value contains NaN or an infinity, which is so rare that this may be slow.
            text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)
    except RecursionError:
        raise ValueError(f"the value has no form in JSON: {TOO_DEEP}") from None
    return text.encode()


_TEXTS: Mapping[type, Callable[[Any], str]] = {
    bytes: lambda value: b64encode(value).decode(),
    Decimal: lambda value: format(value, "f"),
    datetime: lambda value: value.isoformat().removesuffix("+00:00") + ("Z" if value.tzinfo is not None else ""),
    date: date.isoformat,
    time: time.isoformat,
    UUID: str,
}
"""The JSON form of types that JSON lacks."""


def _text(value: object) -> str:
    if type(value) not in _TEXTS:
        raise ValueError(f"{type(value).__name__} has no form in JSON")
    return _TEXTS[type(value)](value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value
