"""Interprets the annotations of a function: the type of its first parameter, and whether its results can be sent.

Above it: `definition` and `defining`. Below it: `typed_values`. This happens once, when a function is loaded.
An annotation without information (`Any`, or none) is accepted; an impossible one is an error.
"""

from __future__ import annotations

import collections.abc as abc
import enum
import inspect
import re
import types
import typing
from typing import Any, NamedTuple

from millstream_udf.json_types import UnsupportedType, converter, name_of
from millstream_udf.typed_values import is_object
from millstream_udf.values import Message, Record

UNKNOWN = object()
"""The type without an annotation, or with one that has no information."""
_VALUES = (bytes, bytearray, memoryview, getattr(abc, "Buffer", bytes))
_COLLECTIONS = (
    list, tuple, set, frozenset, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable, abc.Iterator,
    abc.Generator, abc.AsyncIterable, abc.AsyncIterator, abc.AsyncGenerator,
)  # fmt: skip
_UNRESOLVED_RECORD = re.compile(r"(^|[\[\s|.])Record\b")
_UNRESOLVED_VALUE = re.compile(r"(^|[\[\s|.])bytes\b")


class RecordsAnnotation(NamedTuple):
    """The annotation of the parameter for the records."""

    whole: bool | None = None
    """Whether it is a record, or records; False for values; None if the annotation does not say."""
    kind: Any = UNKNOWN
    """The type of the values: bytes, or one to decode them to."""


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function; those that cannot be resolved stay text."""
    unwrapped = inspect.unwrap(function)
    if hasattr(unwrapped, "func"):
        unwrapped = unwrapped.func  # a functools.partial
    if not inspect.isroutine(unwrapped) and not inspect.isclass(unwrapped):
        unwrapped = type(unwrapped).__call__
    try:
        return typing.get_type_hints(unwrapped, include_extras=True)
    except Exception:  # noqa: BLE001  # evaluating a user's annotation may raise anything
        scope = getattr(unwrapped, "__globals__", {})
        return {name: _resolved(hint, scope) for name, hint in getattr(unwrapped, "__annotations__", {}).items()}


def _resolved(hint: Any, scope: dict[str, Any]) -> Any:
    if not isinstance(hint, str):
        return hint
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": hint}), scope, include_extras=True)[
            "it"
        ]
    except Exception:  # noqa: BLE001  # as above
        return hint


def taken(hint: Any, *, many: bool) -> RecordsAnnotation:
    """What a parameter annotated with `hint` takes; `many`: it takes several records at a time. Raises
    `UnsupportedType` if the annotation does not determine it."""
    if isinstance(hint, str):
        # It may contain names that exist only for type checkers; ours are recognized by their names.
        if _UNRESOLVED_RECORD.search(hint) and hint.count("[") <= many:
            return RecordsAnnotation(whole=True)
        if _UNRESOLVED_VALUE.search(hint):
            return RecordsAnnotation(whole=False, kind=bytes)
        raise UnsupportedType(
            f"the annotation `{hint}` cannot be resolved: define or import its names at the top level of the module "
            "(not below TYPE_CHECKING), or name the type in the decorator: decode=..."
        )
    if hint is inspect.Parameter.empty or hint in (Any, object) or isinstance(hint, typing.TypeVar):
        return RecordsAnnotation()
    if many:
        return _taken_of_many(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _taken_of_union(hint)
    if hint is Record:
        return RecordsAnnotation(whole=True)
    if typing.get_origin(hint) is Record:
        return RecordsAnnotation(whole=True, kind=typing.get_args(hint)[0])
    return RecordsAnnotation(whole=False, kind=bytes if hint in _VALUES else hint)


def _taken_of_many(hint: Any) -> RecordsAnnotation:
    if (typing.get_origin(hint) or hint) not in _COLLECTIONS:
        raise UnsupportedType(f"for many records, the annotation is list[...] or Iterable[...], not {name_of(hint)}")
    arguments = typing.get_args(hint)
    return taken(arguments[0], many=False) if arguments else RecordsAnnotation()


def _taken_of_union(hint: Any) -> RecordsAnnotation:
    parts = [taken(part, many=False) for part in typing.get_args(hint) if part is not type(None)]
    if any(part.whole for part in parts):
        return next(part for part in parts if part.whole)
    # A value is always bytes, so a union with bytes means bytes.
    return RecordsAnnotation(whole=False, kind=bytes if any(part.kind is bytes for part in parts) else hint)


class Gives(NamedTuple):
    """What a function may return, by its kind."""

    nothing: bool = False
    """Nothing, for a sink."""
    many: bool = False
    """A list with the output of each record."""
    table: bool = False
    """Whether it may be, or has to be, a table of Arrow or pandas."""
    anything: bool = False
    """Whether it has its own encoding."""


def given(hint: Any, gives: Gives, name: str) -> Any:
    """The type of the objects that a function with this annotation returns, UNKNOWN if there is no single one. Raises
    `TypeError` if a value of the annotated type cannot be sent."""
    if hint is inspect.Parameter.empty or isinstance(hint, str) or hint in (Any, object) or gives.table:
        return UNKNOWN
    if gives.nothing:
        _check_nothing(hint, gives, name)
        return UNKNOWN
    if gives.many:
        hint = _item_of_batch(hint, name)
    objects: list[Any] = []
    _collect(hint, objects, gives, name, deep=True)
    return objects[0] if len(objects) == 1 else UNKNOWN


def _item_of_batch(hint: Any, name: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return UNKNOWN
    if (typing.get_origin(hint) or hint) not in (list, tuple, abc.Sequence, abc.MutableSequence):
        raise TypeError(
            f"{name} takes whole batches, so it must return a list with one result per record, but it is annotated "
            f"to return {name_of(hint)}"
        )
    arguments = typing.get_args(hint)
    return arguments[0] if arguments else UNKNOWN


def _check_nothing(hint: Any, gives: Gives, name: str) -> None:
    allowed = all(
        leaf in (None, type(None), typing.NoReturn, typing.Never, Any)
        or (isinstance(leaf, type) and issubclass(leaf, BaseException))
        or (gives.many and (typing.get_origin(leaf) or leaf) in _COLLECTIONS)
        for leaf in _leaves(hint)
    )
    if not allowed:
        raise TypeError(
            f"{name} is a sink, which returns nothing, but it is annotated to return {name_of(hint)}: annotate it "
            "-> None, and raise an exception if a record cannot be written"
        )


def _leaves(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _collect(hint: Any, objects: list[Any], gives: Gives, name: str, *, deep: bool) -> None:
    for leaf in _leaves(hint):
        kind = typing.get_origin(leaf) or leaf
        if leaf in (None, type(None), Any, object, UNKNOWN, typing.NoReturn, typing.Never) or _is_ours(kind):
            continue
        if isinstance(leaf, str | typing.TypeVar | typing.ForwardRef):
            continue
        if deep and kind in _COLLECTIONS:
            # Several outputs, returned together or one by one.
            for item in typing.get_args(leaf)[: 1 if kind is not tuple else None]:
                if item is not ...:
                    _collect(item, objects, gives, name, deep=False)
        elif not gives.anything:
            objects.append(leaf)
            _check_object(leaf, kind, name)


def _is_ours(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, (str, bytes, bytearray, memoryview, Message, Record, BaseException))
        and not issubclass(kind, enum.Enum)
    )


def _check_object(leaf: Any, kind: Any, name: str) -> None:
    if not (isinstance(kind, type) and is_object(kind)) and not typing.is_typeddict(kind):
        raise TypeError(
            f"{name} is annotated to return {name_of(leaf)}, which is not an output: return bytes, str, None, a "
            "Message, a dict, a dataclass or a model (they become JSON), or a list of these; or set encode=... in "
            "the decorator"
        )
    try:
        converter(leaf)
    except UnsupportedType as error:
        raise TypeError(
            f"{name} is annotated to return {name_of(leaf)}, which cannot be written as JSON: {error}; set "
            "encode=... in the decorator, or return bytes"
        ) from None
