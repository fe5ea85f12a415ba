"""The numbers of a JSON value as Protobuf's fields hold them. Pure.

Protobuf's own JSON parser cuts fractions of a `Decimal` for a whole-number field, and rounds large whole numbers for a
double. So numbers are converted by the type of their field before it gets the value. Everything else is left to it.

Above it: the encoder of messages. Below it: descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from millstream.exact_json import double_of

Convert = Callable[[Any], Any]

_ANY = "google.protobuf.Any"
_VALUES = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Messages whose JSON is any value, with doubles as numbers."""
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value" for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32")
)
"""Messages whose JSON is their only field."""
_WHOLE = frozenset((
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_ENUM,
))  # fmt: skip
_DIGITS_MAX = 40
"""More than those of any whole number in Protobuf."""


def numbers_of(descriptor: Descriptor) -> Convert:
    """A function that converts the numbers of a JSON value for this message. The function raises `ValueError` for a
    number that its field cannot hold."""
    return _Messages().of(descriptor)


class _Messages:
    """The functions of messages, by name: a message may contain itself."""

    def __init__(self) -> None:
        self._known: dict[str, Convert] = {}

    def of(self, descriptor: Descriptor) -> Convert:
        name = descriptor.full_name
        if name in _VALUES or name == _ANY:
            return _doubles
        if name in _WRAPPERS:
            return _scalar(descriptor.fields[0])
        if name in self._known:
            return self._known[name]
        fields: dict[str, Convert] = {}

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {name: fields[name](one) if name in fields else one for name, one in value.items()}

        self._known[name] = convert
        for field in descriptor.fields:
            fields[field.name] = fields[field.json_name] = _within(field.name, self._field(field))
        return convert

    def _field(self, field: FieldDescriptor) -> Convert:
        if field.message_type is None:
            one = _scalar(field)
        elif field.message_type.GetOptions().map_entry:
            of_values = self._field(field.message_type.fields_by_name["value"])
            return lambda value: (
                {name: of_values(one) for name, one in value.items()} if isinstance(value, dict) else value
            )
        else:
            one = self.of(field.message_type)
        if not field.is_repeated:
            return one
        return lambda value: [one(item) for item in value] if isinstance(value, list) else value


def _within(name: str, convert: Convert) -> Convert:
    def within(value: Any) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    return within


def _scalar(field: FieldDescriptor) -> Convert:
    if field.cpp_type in _WHOLE:
        return _whole
    return _double if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT) else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _whole(value: Any) -> Any:
    number = value
    if isinstance(value, str) and not value.lstrip("-").isdecimal():
        # Protobuf's parser takes "1e3" by way of a double. Names of enums are not numbers.
        try:
            number = Decimal(value)
        except InvalidOperation:
            return value
    if not isinstance(number, Decimal) or not number.is_finite():
        return value
    if number.adjusted() > _DIGITS_MAX or number != number.to_integral_value():
        raise ValueError(f"{value!s:.60} is not a whole number")
    return int(number)


def _double(value: Any) -> Any:
    return double_of(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def _doubles(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _doubles(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_doubles(one) for one in value]
    return _double(value)
