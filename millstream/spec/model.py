"""What users write, as typed fields that are read from plain values and never changed.

    class Pause(SpecModel):
        length_s: Duration = field(alias="length")
        \"\"\"How long. Duration.\"\"\"

A model can be read in two ways with the same result. `read` accepts valid input, by the types of the fields and their
rules, and does not explain anything else. `model_validate` passes input that `read` rejects to pydantic, which finds
every problem (`millstream.spec.validation`). So pydantic, whose import takes longer than everything else that a process
does with a pipeline, is imported only if something is wrong.

Above it: `SpecModel`, which adds pydantic's explanations. Below it: the rules of types.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    LiteralString,
    NamedTuple,
    Self,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from millstream import codes
from millstream.codes.code import Code
from millstream.spec.rules import Rule

if TYPE_CHECKING:
    from pydantic_core import InitErrorDetails, PydanticCustomError

SPEC_PROBLEM = "spec_problem"
"""The pydantic error type of problems that already carry `what` and `expected`."""

NONE_GIVEN = "none_given"
"""The same, for the problem that none of several fields is set."""

_REQUIRED: Any = object()


class ShapeProblem(NamedTuple):
    """A problem that a model itself finds: the place (relative to the model), the description, and the expected
    value."""

    code: Code
    loc: tuple[str | int, ...]
    what: str
    expected: str
    type: LiteralString = SPEC_PROBLEM


class Needed(NamedTuple):
    """A module that may be missing, and that a model needs."""

    module: str
    package: str
    """The argument of `pip install`."""
    loc: tuple[str | int, ...] = ()
    """The place of the reason, relative to the model."""

    @property
    def what(self) -> str:
        """What a message says of a user of the module if it is missing."""
        return f"needs the package {self.module}, which is not installed"

    @property
    def remedy(self) -> str:
        return f"`pip install '{self.package}'`"


def problem(code: Code, what: str, expected: str, type_: LiteralString = SPEC_PROBLEM) -> PydanticCustomError:
    """The error a field validator raises; both texts reach the user unchanged."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError(type_, "{what}", {"what": what, "expected": expected, "code": code.number})


def exactly_one(data: Mapping[str, Any], names: tuple[str, ...], noun: str) -> Iterator[ShapeProblem]:
    """A problem unless exactly one of the fields has a value."""
    given = [name for name in names if data.get(name) is not None]
    if len(given) == 1:
        return
    expected = f"exactly one of {listed(names)}"
    empty = [name for name in names if name in data and data[name] is None]
    if len(given) > 1:
        yield ShapeProblem(codes.FIELDS_CONFLICT, (), f"{noun} has {listed(tuple(given))} together", expected)
    elif empty:
        yield ShapeProblem(codes.FIELD_EMPTY, (empty[0],), f"`{empty[0]}` is empty", "a value (`{}` for the defaults)")
    else:
        yield ShapeProblem(codes.FIELD_MISSING, (), f"{noun} has none of {listed(names)}", expected, NONE_GIVEN)


def listed(names: tuple[str, ...]) -> str:
    """Names of fields, in a message."""
    return ", ".join(f"`{name}`" for name in names)


class NotReadError(ValueError):
    """The value is invalid, or may be. Contains no message for users: pydantic explains the error."""


@dataclass(frozen=True, slots=True)
class SpecField:
    """A field of a model."""

    alias: str = ""
    """Its name in files; empty for the attribute's name in camelCase."""
    default: Any = _REQUIRED
    """The default value."""
    factory: Callable[[], Any] | None = None
    """Creates the default value, if it is mutable."""

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED and self.factory is None

    def absent(self) -> Any:
        """The value of a field that is not written."""
        return self.default if self.factory is None else self.factory()


def field(
    *,
    default: Any = _REQUIRED,
    default_factory: Callable[[], Any] | None = None,
    alias: str = "",
    init: bool = True,
) -> Any:
    """A field whose name in files differs from its attribute in camelCase. `init`: false for a member that files do not
    have; its name begins with `_`."""
    return SpecField(alias, default, default_factory)


def to_camel(name: str) -> str:
    """The name in files: `maxDelay` for `max_delay`."""
    return re.sub(r"_+([a-z0-9])", lambda found: found[1].upper(), name)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class PlainModel:
    """A model without its explanations: frozen, strict about unknown fields, in camelCase as in YAML.

    A subclass reports problems that its fields cannot: `shape_problems` on the raw mapping (always run, so that they
    are reported together with faulty fields) and `relation_problems` on the valid model. The constructor does not
    validate: it is for values that a program has created.
    """

    __slots__ = ("__dict__", "__weakref__", "model_fields_set")

    noun: ClassVar[str] = "value"
    """The noun for this model in messages."""
    exactly_one_of: ClassVar[tuple[str, ...]] = ()
    """Names of fields, in files, of which exactly one has to be written."""
    model_fields: ClassVar[Mapping[str, SpecField]] = {}
    """Its fields, by attribute."""

    if TYPE_CHECKING:
        # A type checker treats an annotation as a field of subclasses.
        @property
        def model_fields_set(self) -> frozenset[str]:
            """The attributes that were written, or passed to the constructor."""

    def __init_subclass__(cls) -> None:
        own: dict[str, SpecField] = {}
        for name, annotation in inspect.get_annotations(cls).items():
            is_text = isinstance(annotation, str)
            if "ClassVar" in annotation if is_text else ClassVar in (annotation, get_origin(annotation)):
                continue
            written = cls.__dict__.get(name, _REQUIRED)
            if type(written).__module__.partition(".")[0] == "pydantic":
                raise TypeError(f"{cls.__name__}.{name}: create a field with `millstream.spec.values.field`")
            given = written if isinstance(written, SpecField) else SpecField(default=written)
            if name.startswith("_"):
                setattr(cls, name, given.default)
                continue
            own[name] = SpecField(given.alias or to_camel(name), given.default, given.factory)
            if isinstance(written, SpecField):
                delattr(cls, name)
        inherited: dict[str, SpecField] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited |= base.__dict__.get("model_fields", {})
        cls.model_fields = {**inherited, **own}

    def __init__(self, **given: Any) -> None:
        named = {field.alias: name for name, field in self.model_fields.items()}
        try:
            values = {named[alias]: value for alias, value in given.items()}
        except KeyError as error:
            raise TypeError(f"{type(self).__name__} has no field {error}") from None
        self._fill(values)

    def _fill(self, values: Mapping[str, Any]) -> Self:
        """Raises `TypeError` if a field is missing."""
        contents = self.__dict__
        for name, field in self.model_fields.items():
            if name in values:
                contents[name] = values[name]
            elif field.is_required:
                raise TypeError(f"{type(self).__name__} needs {field.alias}")
            else:
                contents[name] = field.absent()
        object.__setattr__(self, "model_fields_set", frozenset(values))
        return self

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> Self:
        """A model with these valid values, by attribute. Raises `TypeError` if a field is missing."""
        return cls.__new__(cls)._fill(values)

    @classmethod
    def shape_problems(cls, data: Mapping[str, Any]) -> Iterator[ShapeProblem]:
        """Problems of the mapping as written, such as two of several exclusive fields."""
        if cls.exactly_one_of:
            yield from exactly_one(data, cls.exactly_one_of, cls.noun)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Problems between the values of fields that are each valid."""
        yield from ()

    def needs(self) -> Iterator[Needed]:
        """The modules that may be missing and that these values need; without those of the models within."""
        yield from ()

    def notes(self, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Notes on these valid values, each with its place; without those of the models within. `path` is that of the
        model."""
        yield from ()

    @classmethod
    def completed(cls, data: Any) -> Any:
        """The written value with derived members, such as a default name."""
        return data

    @classmethod
    def read(cls, written: Any) -> Self:
        """The model from the written value. Raises `NotReadError` if the value is not certainly valid."""
        if isinstance(written, cls):
            return written
        if not isinstance(written, dict) or any(True for _ in cls.shape_problems(written)):
            raise NotReadError
        try:
            model = cls.taken(cls.completed(written))
        except (ValueError, TypeError) as error:
            raise NotReadError from error
        if any(True for _ in model.relation_problems()):
            raise NotReadError
        return model

    @classmethod
    def taken(cls, written: Mapping[str, Any]) -> Self:
        """The model with its fields, each of which is valid. Raises `ValueError` or `TypeError`."""
        types = _types_of(cls)
        named = {field.alias: name for name, field in cls.model_fields.items()}
        values = {}
        for alias, value in written.items():
            name = named.get(alias)
            if name is None:
                raise NotReadError
            values[name] = value_of(types[name], value)
        return cls.of_values(values)

    @classmethod
    def validated(
        cls, data: Any, handler: Callable[[Any], Self | None], details: list[InitErrorDetails]
    ) -> Self | None:
        """The model with valid fields, for pydantic. None if fields are invalid; `details` then have the reasons."""
        return handler(data)

    @classmethod
    def more_members(cls) -> Mapping[str, tuple[type[PlainModel], str]]:
        """Members that may be written beside its fields: names with their models and meanings."""
        return {}

    def members(self) -> Iterator[tuple[str, Any]]:
        """The members, by their names in the file."""
        for name, field in self.model_fields.items():
            yield field.alias, getattr(self, name)

    def as_written(self, *, given_only: bool = False) -> dict[str, Any]:
        """The model as plain values, in the form of files and JSON. `given_only`: without members that were not
        written."""
        return {
            field.alias: _plain(getattr(self, name), given_only=given_only)
            for name, field in self.model_fields.items()
            if not given_only or name in self.model_fields_set
        }

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """A copy with other values, by attribute, which are not validated."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update({**self.__dict__, **update})
        object.__setattr__(copy, "model_fields_set", self.model_fields_set | set(update))
        return copy

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), tuple(self.__dict__.values())))

    def __repr__(self) -> str:
        held = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.model_fields)
        return f"{type(self).__name__}({held})"


_TYPES: dict[type, Mapping[str, Any]] = {}


def _types_of(model: type[PlainModel]) -> Mapping[str, Any]:
    """The types of fields, by attribute. They are resolved when the first model is read, because they may refer to
    later definitions."""
    if model not in _TYPES:
        _TYPES[model] = get_type_hints(model, include_extras=True)
    return _TYPES[model]


def value_of(kind: Any, written: Any) -> Any:
    """The written value as a value of a type. Raises `ValueError` if it is not one, or not certainly."""
    origin = get_origin(kind)
    if origin is Annotated:
        rules = [rule for rule in kind.__metadata__ if isinstance(rule, Rule)]
        if len(rules) < len(kind.__metadata__):
            raise NotReadError
        for rule in reversed(rules):
            written = rule.before(written)
        value = value_of(kind.__origin__, written)
        for rule in rules:
            value = rule.after(value)
        return value
    if origin in (Union, UnionType):
        return _member_of(get_args(kind), written)
    if origin is tuple and isinstance(written, list | tuple) and get_args(kind)[1:] == (...,):
        return tuple(value_of(get_args(kind)[0], item) for item in written)
    if origin in (dict, Mapping) and isinstance(written, dict):
        of_keys, of_values = get_args(kind)
        return {value_of(of_keys, key): value_of(of_values, value) for key, value in written.items()}
    if origin is Literal and any(type(written) is type(one) and written == one for one in get_args(kind)):
        return written
    return _scalar_of(kind, written)


def _member_of(kinds: tuple[Any, ...], written: Any) -> Any:
    """A value of one of several types."""
    if written is None and NoneType in kinds:
        return None
    found = []
    for kind in kinds:
        try:
            found.append(value_of(kind, written))
        except (ValueError, TypeError):
            continue
    if len(found) != 1:
        raise NotReadError
    return found[0]


def _scalar_of(kind: Any, written: Any) -> Any:
    if kind is Any:
        return written
    if kind is str and type(written) is str:
        # An unpaired surrogate cannot be stored. The error is a `ValueError`.
        written.encode()
        return written
    if kind is float and type(written) in (int, float) and math.isfinite(written):
        return float(written)
    if kind in (int, bool) and type(written) is kind:
        return written
    if isinstance(kind, type) and issubclass(kind, PlainModel):
        return kind.read(written)
    raise NotReadError


def _plain(value: Any, *, given_only: bool) -> Any:
    if isinstance(value, PlainModel):
        return value.as_written(given_only=given_only)
    if isinstance(value, Mapping):
        return {key: _plain(entry, given_only=given_only) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry, given_only=given_only) for entry in value]
    return value
