"""Converts JSON values to annotated types: what each type accepts is determined once, when a function is loaded.

Above it: `typed_values`. Below it: the standard library. It determines whether a type can be read from JSON, explains
values that do not fit, and creates the objects if no faster package does. Models of pydantic and msgspec create
themselves.

    JSON              type
    null, true, ...   None, bool, int (no fraction), float (also whole numbers), str
    a string          datetime, date, time, timedelta (RFC 3339, ISO 8601), Decimal (also a number), UUID,
                      bytes (base64)
    its value         Enum, Literal
    an array          list, tuple, set, frozenset, NamedTuple
    an object         dict, TypedDict, dataclasses; fields that are not named are left out
    several           unions, the first that fits
"""

from __future__ import annotations

import base64
import collections.abc as abc
import dataclasses
import enum
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from millstream_udf.misfits import Misfit, expected, missing, refused, shown_bytes

Convert = Callable[[Any], Any]
"""Converts a JSON value to an object. Raises `Misfit`."""

_LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
_SETS = {set: set, abc.MutableSet: set, frozenset: frozenset, abc.Set: frozenset}
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?")
_TIME = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:?\d\d)?")
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


class UnsupportedType(TypeError):
    """A type that cannot be read from JSON."""


def name_of(kind: Any) -> str:
    """A type as users write it."""
    if kind is None or kind is type(None):
        return "None"
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__qualname__.rpartition("<locals>.")[2]
    return inspect.formatannotation(kind).replace("typing.", "")


def is_pydantic(kind: Any) -> bool:
    """Whether it is a pydantic model or dataclass."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def is_msgspec(kind: Any) -> bool:
    """Whether it is a `msgspec.Struct`, or an attrs class, which msgspec supports."""
    return isinstance(kind, type) and (hasattr(kind, "__struct_fields__") or hasattr(kind, "__attrs_attrs__"))


def converter(kind: Any) -> Convert:
    """The conversion of a JSON value to a `kind`. Raises `UnsupportedType` if there is none, with the field that is the
    reason."""
    return _Types().converter(kind)


class _Types:
    """The converters of one type and all types in it; a type may contain itself."""

    def __init__(self) -> None:
        self._known: dict[Any, Convert] = {}

    def converter(self, kind: Any) -> Convert:
        kind = _bare(kind)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind in (Any, object):
            return _as_it_is
        if kind is None or kind is type(None):
            return _none
        if origin is typing.Union or origin is types.UnionType:
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(arguments)
        if origin is None and isinstance(kind, type) and (simple := _SIMPLE.get(kind)) is not None:
            return simple
        collection = origin or kind
        if collection in _LISTS:
            return self._list(list, arguments)
        if collection in _SETS:
            return self._list(_SETS[collection], tuple(map(_hashable, arguments)))
        if collection is tuple:
            return self._tuple(arguments)
        if collection in _DICTS:
            return self._dict(arguments)
        return self._class(kind, collection, arguments)

    def _class(self, kind: Any, found: Any, arguments: tuple[Any, ...]) -> Convert:
        """The converter of a class with special handling."""
        if not isinstance(found, type):
            raise UnsupportedType(f"{name_of(kind)} is not a type")
        if is_pydantic(found):
            return lambda value: validated(found, _rewritten(value))
        if is_msgspec(found):
            return _msgspec(kind)
        if issubclass(found, enum.Enum):
            return _enum(found)
        if typing.is_typeddict(found):
            return self._once(kind, lambda: self._typed_dict(found, arguments))
        if dataclasses.is_dataclass(found):
            return self._once(kind, lambda: self._dataclass(found, arguments))
        if issubclass(found, tuple) and hasattr(found, "_fields"):
            return self._once(kind, lambda: self._named_tuple(found, arguments))
        raise UnsupportedType(f"{name_of(kind)} cannot be read from JSON")

    def _once(self, kind: Any, make: Callable[[], Convert]) -> Convert:
        known = self._known
        if kind not in known:
            # A type may occur again while its own fields are inspected.
            known[kind] = lambda value: known[kind](value)  # noqa: PLW0108  # what is there then, not now
            known[kind] = make()
        return known[kind]

    def _fields(self, found: Any, arguments: tuple[Any, ...]) -> dict[str, Convert]:
        converters: dict[str, Convert] = {}
        for name, hint in _hints(found, arguments).items():
            if typing.get_origin(hint) is typing.ClassVar or hint is typing.ClassVar:
                continue
            try:
                converters[name] = self.converter(hint)
            except UnsupportedType as error:
                raise UnsupportedType(f"{error} (field {name} of {name_of(found)})") from None
        return converters

    def _dataclass(self, found: Any, arguments: tuple[Any, ...]) -> Convert:
        fields = {field.name: field for field in dataclasses.fields(found) if field.init}
        converters = {name: one for name, one in self._fields(found, arguments).items() if name in fields}
        required = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        return _object(converters, required, lambda given: found(**given), name_of(found))

    def _typed_dict(self, found: Any, arguments: tuple[Any, ...]) -> Convert:
        hints = _hints(found, arguments)
        # If annotations are texts, Python treats a NotRequired field as required.
        required = [
            name
            for name, hint in hints.items()
            if typing.get_origin(hint) is typing.Required
            or (name in found.__required_keys__ and typing.get_origin(hint) is not typing.NotRequired)
        ]
        return _object(self._fields(found, arguments), required, lambda given: given, name_of(found))

    def _named_tuple(self, found: Any, arguments: tuple[Any, ...]) -> Convert:
        converters = list(self._fields(found, arguments).values()) or [_as_it_is] * len(found._fields)
        return _array(converters, len(converters) - len(found._field_defaults), lambda items: found(*items))

    def _list(self, make: Callable[[Any], Any], arguments: tuple[Any, ...]) -> Convert:
        convert_item = self.converter(arguments[0]) if arguments else _as_it_is

        def convert(value: Any) -> Any:
            if not isinstance(value, list):
                raise expected("an array", value)
            return make(_items(value, [convert_item] * len(value)))

        return convert

    def _tuple(self, arguments: tuple[Any, ...]) -> Convert:
        if not arguments or arguments[1:] == (...,):
            return self._list(tuple, arguments)
        converters = [self.converter(argument) for argument in arguments]
        return _array(converters, len(converters), tuple)

    def _dict(self, arguments: tuple[Any, ...]) -> Convert:
        key, item = arguments or (str, Any)
        convert_key, convert_item = _key_converter(key, self.converter(key)), self.converter(item)

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise expected("an object", value)
            converted = {}
            for name, content in value.items():
                try:
                    converted[convert_key(name)] = convert_item(content)
                except Misfit as misfit:
                    raise misfit.below(name) from None
            return converted

        return convert

    def _union(self, arguments: tuple[Any, ...]) -> Convert:
        converters = [(self.converter(argument), name_of(argument)) for argument in arguments]

        def convert(value: Any) -> Any:
            misfits = []
            for one, _ in converters:
                try:
                    return one(value)
                except Misfit as misfit:
                    misfits.append(misfit)
            # Only one of them accepts this kind of value: the error is inside it.
            if len(inner := [misfit for misfit in misfits if misfit.path]) == 1:
                raise inner[0]
            raise expected(" or ".join(name for _, name in converters), value)

        return convert


def _array(converters: list[Convert], fewest: int, make: Callable[[list[Any]], Any]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list) or not fewest <= len(value) <= len(converters):
            raise expected(f"an array of {_numbers(fewest, len(converters))}", value)
        return make(_items(value, converters))

    return convert


def _items(values: list[Any], converters: list[Convert]) -> list[Any]:
    converted: list[Any] = []
    for index, (value, convert) in enumerate(zip(values, converters, strict=False)):
        try:
            converted.append(convert(value))
        except Misfit as misfit:
            raise misfit.below(index) from None
    return converted


def _object(converters: dict[str, Convert], required: list[str], make: Callable[[Any], Any], name: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise expected(f"an object ({name})", value)
        for field in required:
            if field not in value:
                raise missing(field, list(value))
        given = {}
        for field, one in converters.items():
            if field in value:
                try:
                    given[field] = one(value[field])
                except Misfit as misfit:
                    raise misfit.below(field) from None
        try:
            return make(given)
        except Exception as error:
            # Its `__post_init__`.
            raise Misfit(f"is refused by {name}: {error}") from error

    return convert


def _none(value: Any) -> None:
    if value is not None:
        raise expected("null", value)


def _of_type(kind: type, what: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise expected(what, value)
        return value

    return convert


class _Written(float):
    """A number that a decimal can have with its own digits."""

    text: str


def _as_it_is(value: Any) -> Any:
    """A value of any type, with numbers as Python reads them."""
    if isinstance(value, _Written):
        return float(value)
    if isinstance(value, list):
        return [_as_it_is(one) for one in value]
    return {name: _as_it_is(one) for name, one in value.items()} if isinstance(value, dict) else value


def _rewritten(value: Any) -> str:
    """The text of a value of JSON, with the digits that numbers had."""
    if isinstance(value, _Written):
        return value.text
    if isinstance(value, list):
        return f"[{','.join(map(_rewritten, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_rewritten(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


def _float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if type(value) is not int:
        raise expected("a number (float)", value)
    try:
        return float(value)
    except OverflowError:
        raise expected("a number within the range of a float", value) from None


def _parsed(what: str, parse: Callable[[str], Any], form: re.Pattern[str] | None = None) -> Convert:
    """`form`: that of the texts, where `parse` takes others as well."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str) or (form is not None and form.fullmatch(value) is None):
            raise expected(what, value)
        try:
            return parse(value)
        except (ValueError, ArithmeticError):
            raise expected(what, value) from None

    return convert


def _decimal(value: Any) -> Decimal:
    # The value's own digits; a float would have those of the nearest binary number.
    if isinstance(value, _Written):
        return Decimal(value.text)
    if type(value) in (int, float):
        return Decimal(repr(value))
    try:
        if isinstance(value, str) and (number := Decimal(value)).is_finite():
            return number
    except InvalidOperation:
        pass
    raise expected("a decimal number, as a string or a number", value)


def _date(text: str) -> date:
    if len(text) != 10:
        raise ValueError(text)
    return date.fromisoformat(text)


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    given = {} if found is None else {name: part for name, part in found.groupdict().items() if part}
    sign = -1 if given.pop("sign", "") == "-" else 1
    if not given:
        raise ValueError(text)
    return sign * timedelta(**{name: float(part) for name, part in given.items()})


_SIMPLE: dict[Any, Convert] = {
    str: _of_type(str, "a string"),
    int: _of_type(int, "a whole number (int)"),
    bool: _of_type(bool, "true or false"),
    float: _float,
    bytes: _parsed("a string of base64", lambda text: base64.b64decode(text, validate=True)),
    bytearray: _parsed("a string of base64", lambda text: bytearray(base64.b64decode(text, validate=True))),
    datetime: _parsed(
        'a time such as "2024-06-01T12:00:00Z"', lambda text: datetime.fromisoformat(text.upper()), _RFC3339
    ),
    date: _parsed('a date such as "2024-06-01"', _date),
    time: _parsed('a time of day such as "12:00:00"', lambda text: time.fromisoformat(text.upper()), _TIME),
    timedelta: _parsed('a duration such as "PT1.5S"', _duration),
    Decimal: _decimal,
    UUID: _parsed("a UUID", UUID),
}


def _enum(kind: type[enum.Enum]) -> Convert:
    values = [member.value for member in kind]
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        raise UnsupportedType(f"{name_of(kind)} has values that are neither texts nor whole numbers")
    what = f"one of {_listed(values)} ({name_of(kind)})"

    def convert(value: Any) -> Any:
        if type(value) in (str, int):
            try:
                return kind(value)
            except ValueError:
                pass
        raise expected(what, value)

    return convert


def _literal(values: tuple[Any, ...]) -> Convert:
    what = f"one of {_listed(list(values))}"

    def convert(value: Any) -> Any:
        if any(type(value) is type(known) and value == known for known in values):
            return value
        raise expected(what, value)

    return convert


def _key_converter(kind: Any, convert: Convert) -> Convert:
    """The converter of an object's names, which are strings even if they represent numbers. Raises `UnsupportedType` if
    names cannot be such keys."""
    if not _may_be_key(kind):
        raise UnsupportedType(f"{name_of(kind)} cannot be the name of a field")

    def from_text(name: str) -> Any:
        try:
            return convert(name)
        except Misfit:
            number = _number(name)
            if number is None:
                raise
        return convert(number)

    return from_text


def _may_be_key(kind: Any) -> bool:
    kind = _bare(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Union or origin is types.UnionType:
        return any(map(_may_be_key, typing.get_args(kind)))
    if kind in (Any, object) or origin is typing.Literal:
        return True
    return isinstance(kind, type) and kind is not bool and (kind in _SIMPLE or issubclass(kind, enum.Enum))


def _number(text: str) -> int | float | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if type(value) in (int, float) else None


def _hashable(kind: Any) -> Any:
    """The kind, if a set may contain it. Raises `UnsupportedType`."""
    found = typing.get_origin(_bare(kind)) or _bare(kind)
    if isinstance(found, type) and found.__hash__ is None:
        raise UnsupportedType(f"a set cannot contain {name_of(kind)}, which has no hash")
    return kind


def validated(kind: Any, text: str | bytes) -> Any:
    """The object of a pydantic model, from JSON. Raises `Misfit`."""
    try:
        return kind.__pydantic_validator__.validate_json(text)
    except ValueError as error:
        raise pydantic_misfit(error) from None


def pydantic_misfit(error: ValueError) -> Misfit:
    """The first error that a pydantic model reports."""
    faults: list[Any] = error.errors(include_url=False) if hasattr(error, "errors") else []
    if not faults:
        return Misfit(f"is refused: {error}")
    first = faults[0]
    if first["type"] == "missing":
        misfit = missing(str(first["loc"][-1]), list(first["input"]) if isinstance(first["input"], dict) else [])
        return Misfit(misfit.what, (*first["loc"][:-1], *misfit.path))
    return Misfit(refused(first["msg"], first["input"]).what, tuple(first["loc"]))


def _msgspec(kind: Any) -> Convert:
    try:
        import msgspec.json
    except ImportError:
        raise UnsupportedType(
            f"{name_of(kind)} needs msgspec, which is not installed: pip install 'millstream-udf[typed]'"
        ) from None

    def convert(value: Any) -> Any:
        try:
            return msgspec.json.decode(_rewritten(value).encode(), type=kind)
        except msgspec.ValidationError as error:
            raise msgspec_misfit(str(error), value) from None

    return convert


_MSGSPEC_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`(?P<key>key)` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_LACKS = re.compile(r"Object missing required field `(?P<name>.*)`")


def msgspec_misfit(text: str, value: Any) -> Misfit:
    """msgspec's message, with the value at its place."""
    found = _MSGSPEC_PATH.match(text)
    assert found is not None
    path: list[str | int] = []
    for name, index in _STEP.findall(found["path"] or ""):
        step = name if name else index if index == "..." else int(index)
        path.append(step)
        try:
            value = next(iter(value.values())) if step == "..." and len(value) == 1 else value[step]
        except (LookupError, TypeError, AttributeError):
            break
    if (lacks := _LACKS.fullmatch(found["what"])) is not None:
        misfit = missing(lacks["name"], list(value) if isinstance(value, dict) else [])
    else:
        misfit = refused(found["what"], value)
    return Misfit(misfit.what, (*path, *misfit.path))


def _bare(kind: Any) -> Any:
    """An annotation without parts that do not matter for JSON."""
    while True:
        origin = typing.get_origin(kind)
        if origin is typing.Annotated or getattr(origin, "_name", None) in _WRAPPERS:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif isinstance(kind, typing.TypeVar):
            kind = kind.__bound__ or Any
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def _hints(found: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Types of the fields of a class, with the arguments of a generic class."""
    try:
        hints = typing.get_type_hints(found, include_extras=True)
    except NameError as error:
        raise UnsupportedType(
            f"the annotations of {name_of(found)} cannot be resolved ({error}): define their names at the top level "
            f"of module {found.__module__}"
        ) from None
    given = dict(zip(getattr(found, "__parameters__", ()), arguments, strict=False))
    return {name: _substituted(hint, given) for name, hint in hints.items()} if given else hints


def _substituted(hint: Any, given: dict[Any, Any]) -> Any:
    if hint in given:
        return given[hint]
    open_ = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(one, one) for one in open_)] if open_ and not isinstance(hint, type) else hint


def _numbers(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


def _listed(values: list[Any]) -> str:
    texts = [json.dumps(value) for value in values[:12]]
    return ", ".join(texts) + (", ..." if len(values) > 12 else "")


def loaded(data: bytes) -> Any:
    """A JSON value. Raises `Misfit` with the place of the error."""
    try:
        return json.loads(data.decode(), parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode(errors="replace"))
        what = "the value is empty" if not data.strip() else f"{error.msg} at byte {at}: {shown_bytes(data, at)}"
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8: {shown_bytes(data, error.start)}"
    except RecursionError:
        what = f"the value is nested too deeply: {shown_bytes(data)}"
    except ValueError as error:
        # A constant that is not JSON, or a number with more digits than Python reads.
        what = f"{error}: {shown_bytes(data)}"
    raise Misfit(f"is not JSON: {what}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = _Written(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a float")
    number.text = text
    return number
