"""JSON texts as Avro values: the reverse of `avro`. Pure.

    JSON ─► what Avro stores, by the type of each part ─► fastavro ─► bytes

Above it: the encoder. Below it: fastavro. A schema becomes one function, so nothing is looked up in it per value. A
value that does not fit raises a `ValueError` that names the part of the value. fastavro would omit members that the
schema does not have, and cut off digits that a type cannot hold; here both are errors.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from functools import partial
from io import BytesIO
from typing import Any
from uuid import UUID

from fastavro import schemaless_writer

from millstream.exact_json import double_of
from millstream.extract import microseconds_of, shown
from millstream_connectors.shared.formats.json_values import value_of

Convert = Callable[[Any], Any]
"""Converts a JSON value to what Avro stores. Raises `ValueError`."""

_EPOCH = date(1970, 1, 1)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_MAX = (2 - 2**-23) * 2.0**127


class _MisfitError(ValueError):
    """A part of the encoded value that does not fit its type, with its place."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.place = place

    def __str__(self) -> str:
        return f"at {self.place.removeprefix('.')}: {self.what}" if self.place else self.what

    def within(self, outer: str) -> _MisfitError:
        return _MisfitError(self.what, outer + self.place)


def encoder(schema: Any) -> Callable[[bytes], bytes]:
    """A function from JSON to Avro, for a schema that `avro.parsed` returned. The function raises `ValueError`."""
    convert = _Types(schema).of(schema)

    def encode(value: bytes) -> bytes:
        try:
            made = convert(value_of(value))
        except _MisfitError as error:
            raise ValueError(f"the value does not fit the schema: {error}") from None
        stream = BytesIO()
        schemaless_writer(stream, schema, made)
        return stream.getvalue()

    return encode


class _Types:
    """The functions of a schema's types. A named type may contain itself."""

    def __init__(self, schema: Any) -> None:
        self._schemas: dict[str, Any] = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
        self._named: dict[str, Convert] = {}

    def of(self, schema: Any) -> Convert:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._reached(schema)
        type_, logical = schema["type"], schema.get("logicalType", "")
        if type_ in ("record", "error"):
            return self._record(schema)
        if type_ == "array":
            return self._array(self.of(schema["items"]))
        if type_ == "map":
            return self._map(self.of(schema["values"]))
        if type_ == "enum":
            return self._keep(schema, _enum(schema))
        if type_ == "fixed":
            made = _decimal(schema, schema["size"]) if logical == "decimal" else _fixed(schema["size"])
            return self._keep(schema, made)
        if type_ in _PRIMITIVES:
            return _logical(type_, logical, schema)
        # A nested type, such as {"type": {"type": "string"}}.
        return self.of(type_)

    def _reached(self, name: str) -> Convert:
        if name not in self._named:
            self.of(self._schemas[name])
        return self._named[name]

    def _keep(self, schema: Mapping[str, Any], made: Convert) -> Convert:
        self._named[schema["name"]] = made
        return made

    def _record(self, schema: Mapping[str, Any]) -> Convert:
        fields: list[tuple[str, Convert, bool]] = []
        names = {field["name"] for field in schema["fields"]}

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _expected("an object", value)
            made: dict[str, Any] = {}
            for name, one, has_default in fields:
                if name not in value:
                    if not has_default:
                        raise _MisfitError("it is missing, and has no default", f".{name}")
                    made[name] = defaults[name]
                    continue
                try:
                    made[name] = one(value[name])
                except _MisfitError as error:
                    raise error.within(f".{name}") from None
            if len(value) > len(names) or not names.issuperset(value):
                extra = next(name for name in value if name not in names)
                raise _MisfitError("the schema has no such field", f".{extra[:80]}")
            return made

        self._keep(schema, convert)
        fields += [(field["name"], self.of(field["type"]), "default" in field) for field in schema["fields"]]
        given = [field for field in schema["fields"] if "default" in field]
        defaults = {field["name"]: self._default(field["type"], field["default"]) for field in given}
        return convert

    def _array(self, item: Convert) -> Convert:
        def convert(value: Any) -> Any:
            if not isinstance(value, list):
                raise _expected("an array", value)
            made = []
            for number, entry in enumerate(value):
                try:
                    made.append(item(entry))
                except _MisfitError as error:
                    raise error.within(f"[{number}]") from None
            return made

        return convert

    def _map(self, item: Convert) -> Convert:
        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise _expected("an object", value)
            made = {}
            for name, entry in value.items():
                try:
                    made[_string(name)] = item(entry)
                except _MisfitError as error:
                    raise error.within(f".{name[:80]}") from None
            return made

        return convert

    def _union(self, branches: list[Any]) -> Convert:
        options = [(_branch_name(branch), self.of(branch)) for branch in branches]
        nullable = next((name for name, _ in options if name == "null"), None)

        def convert(value: Any) -> Any:
            if value is None and nullable is not None:
                return nullable, None
            misfits = []
            for name, option in options:
                try:
                    return name, option(value)
                except _MisfitError as error:
                    misfits.append((name, error))
            others = [(name, error) for name, error in misfits if name != "null"]
            if len(others) == 1:
                raise others[0][1]
            raise _MisfitError("; ".join(f"as {name}: {error}" for name, error in others))

        return convert

    def _default(self, schema: Any, value: Any) -> Any:
        """The default of a field, as it appears in schemas: a union's default has the type of its first branch, and
        bytes are text in which each character is one byte."""
        if isinstance(schema, list):
            return _branch_name(schema[0]), self._default(schema[0], value)
        if isinstance(schema, str):
            if schema in self._schemas:
                return self._default(self._schemas[schema], value)
            return value.encode("latin-1") if schema == "bytes" else value
        type_ = schema["type"]
        if type_ in ("record", "error"):
            return {
                field["name"]: self._default(field["type"], value.get(field["name"], field.get("default")))
                for field in schema["fields"]
            }
        if type_ == "array":
            return [self._default(schema["items"], entry) for entry in value]
        if type_ == "map":
            return {name: self._default(schema["values"], entry) for name, entry in value.items()}
        return value.encode("latin-1") if type_ in ("bytes", "fixed") else value


def _branch_name(schema: Any) -> str:
    """The name by which fastavro finds a type in a union."""
    if isinstance(schema, str):
        return schema
    return str(schema["name"] if schema["type"] in ("record", "error", "enum", "fixed") else schema["type"])


def _expected(what: str, value: Any) -> _MisfitError:
    """The error for a value of another type. A large value is abbreviated."""
    return _MisfitError(f"{shown(value)} is not {what}")


def _null(value: Any) -> Any:
    if value is not None:
        raise _expected("null", value)
    return None


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _expected("a boolean", value)
    return value


def _whole(kind: str, bits: int) -> Convert:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _expected(f"a whole number of {bits} bits ({kind})", value)
        return value

    return convert


def _number(value: Any) -> Any:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _expected("a number", value)
    try:
        return double_of(value)
    except ValueError as error:
        raise _MisfitError(str(error)) from None


def _float(value: Any) -> Any:
    number = _number(value)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise _expected("a number within the range of a float", value)
    return number


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _expected("text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MisfitError("the text has an unpaired surrogate") from None
    return value


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        with suppress(binascii.Error, ValueError):
            return b64decode(value, validate=True)
    raise _expected("text in base64", value)


_PRIMITIVES: Mapping[str, Convert] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole("int", 32),
    "long": _whole("long", 64),
    "float": _float,
    "double": _number,
    "bytes": _bytes,
    "string": _string,
}


def _enum(schema: Mapping[str, Any]) -> Convert:
    symbols = frozenset(schema["symbols"])

    def convert(value: Any) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise _expected(f"one of the symbols of {schema['name']}", value)
        return value

    return convert


def _fixed(size: int) -> Convert:
    def convert(value: Any) -> Any:
        made = _bytes(value)
        if len(made) != size:
            raise _MisfitError(f"it has {len(made)} bytes instead of {size}")
        return made

    return convert


def _logical(kind: str, logical: str, schema: Mapping[str, Any]) -> Convert:
    """Functions of logical types. An unknown name is ignored, as Avro's specification requires."""
    if (kind, logical) == ("bytes", "decimal"):
        return _decimal(schema, None)
    if (kind, logical) == ("string", "uuid"):
        return _uuid
    if (kind, logical) not in _READS:
        return _PRIMITIVES[kind]
    read, unit_us = _READS[kind, logical]
    return _or_stored(read, unit_us, _PRIMITIVES[kind])


def _or_stored(read: Callable[[str], int], unit_us: int, stored: Convert) -> Convert:
    """A text, or the number that Avro stores."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return stored(value)
        try:
            whole, rest = divmod(read(value), unit_us)
            if rest:
                raise ValueError("it is more precise than milliseconds, which is all that the schema allows")
        except (ValueError, OverflowError) as error:
            raise _MisfitError(f"{shown(value)}: {error}") from None
        return stored(whole)

    return convert


def _date(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def _time_us(text: str) -> int:
    found = time.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("a time of day has no zone")
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond


def _moment_us(text: str, *, has_zone: bool) -> int:
    found = datetime.fromisoformat(text)
    if (found.tzinfo is not None) != has_zone:
        raise ValueError("it has no zone, such as Z" if has_zone else "a local timestamp has no zone")
    return microseconds_of(found)


_instant_us = partial(_moment_us, has_zone=True)
_local_us = partial(_moment_us, has_zone=False)
_READS: Mapping[tuple[str, str], tuple[Callable[[str], int], int]] = {
    ("int", "date"): (_date, 1),
    ("int", "time-millis"): (_time_us, 1000),
    ("long", "time-micros"): (_time_us, 1),
    ("long", "timestamp-millis"): (_instant_us, 1000),
    ("long", "timestamp-micros"): (_instant_us, 1),
    ("long", "local-timestamp-millis"): (_local_us, 1000),
    ("long", "local-timestamp-micros"): (_local_us, 1),
}
"""The function that reads a text of a logical type, and how many of its units are one that Avro stores."""


def _uuid(value: Any) -> Any:
    text = _string(value)
    try:
        return str(UUID(text))
    except ValueError:
        raise _expected("a UUID", value) from None


def _decimal(schema: Mapping[str, Any], size: int | None) -> Convert:
    """Two's complement, big-endian, in `size` bytes or in as few as possible."""
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            raise _expected("a decimal number, as text", value)
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise _expected("a decimal number", value) from None
        if not number.is_finite():
            raise _expected("a decimal number", value)
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), "it is finite"
        # A short text may have a huge exponent.
        if len(digits) + abs(exponent) > 10 * (precision + scale) + 100:
            raise _MisfitError(f"{value!s:.80} has more than {precision} digits, of which {scale} are decimals")
        shifted, rest = int("".join(map(str, digits))), 0
        if exponent + scale >= 0:
            shifted *= 10 ** (exponent + scale)
        else:
            shifted, rest = divmod(shifted, 10 ** -(exponent + scale))
        if rest or shifted >= 10**precision:
            raise _MisfitError(f"{value!s:.80} has more than {precision} digits, of which {scale} are decimals")
        unscaled = -shifted if sign else shifted
        least = unscaled.bit_length() // 8 + 1
        if size is not None and least > size:
            raise _MisfitError(f"{value!s:.80} does not fit into {size} bytes")
        return unscaled.to_bytes(size or least, signed=True)

    return convert
