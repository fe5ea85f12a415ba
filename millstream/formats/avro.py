"""Avro values as JSON texts. Pure.

Above it: the decoder. Below it: fastavro. Types that JSON lacks become text: bytes in base64, decimals as their digits,
dates and times as in ISO 8601, NaN and infinities by their names.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

from fastavro import parse_schema, schemaless_reader

from millstream.formats.registry import Schema


def parsed(schema: Schema) -> Any:
    """A schema as fastavro parses it. Raises `ValueError` for one that it does not accept."""
    named: dict[str, Any] = {}
    try:
        for referred in schema.references:
            parse_schema(json.loads(referred.text), named_schemas=named)
        return parse_schema(json.loads(schema.text), named_schemas=named)
    except Exception as error:  # fastavro raises errors of any kind
        raise ValueError(f"cannot be used: {type(error).__name__}: {error}") from error


def decoder(writer: Any, reader: Any) -> Callable[[bytes], bytes]:
    """A function from Avro to JSON, for values that were written with one schema. The function raises `ValueError`."""

    def decode(data: bytes) -> bytes:
        stream = BytesIO(data)
        try:
            value = schemaless_reader(stream, writer, reader)
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
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)
    except ValueError:
        # The value contains NaN or an infinity, which is so rare that this may be slow.
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)
    return text.encode()


def _text(value: object) -> str:
    """The JSON form of types that JSON lacks."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        return value.isoformat().removesuffix("+00:00") + ("Z" if value.tzinfo is not None else "")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise ValueError(f"{type(value).__name__} has no form in JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list) else value
