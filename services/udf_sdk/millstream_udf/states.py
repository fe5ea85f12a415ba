"""What a function remembers for each key of its records, as users declare it.

    @udf.map
    class Sessions:
        total = udf.value(int, default=0)
        seen = udf.map_state(str, int, ttl=timedelta(days=7))

        def process(self, record: udf.Record[Order]) -> dict:
            self.total += record.value.amount

Above it: users' classes, and `defining`, which finds the declarations. Below it: `key_states`, which has the values. An
attribute stands for the state of the key of the record that the reading task or thread works on, so one instance serves
many records at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

from millstream_udf.key_states import CURRENT_TURN, Column, Turn
from millstream_udf.lazy_maps import LazyMap
from millstream_udf.misfits import BadOutput
from millstream_udf.state_codecs import codec_of, item_codec_of
from millstream_udf.state_specs import (
    COUNTER,
    LIST,
    MAP,
    VALUE,
    Clock,
    Migrations,
    StateSpec,
    check_names,
    lifetime_of,
    migrations_of,
)
from millstream_udf.state_views import (
    BYTES_NAME,
    COUNTERS_NAME,
    JSON_NAME,
    Counter,
    KeyTimers,
    State,
    StateList,
    StateMap,
)
from millstream_udf.wire.udf.v1 import udf_pb2

__all__ = ["Counter", "LazyMap", "State", "StateList", "StateMap", "counter", "list_state", "map_state", "value"]

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


class Declaration:
    """A state as an attribute of a class."""

    def __init__(self, make: Callable[[str], StateSpec]) -> None:
        """`make`: makes its specification, of its name."""
        self._make = make
        self.name = ""
        self._others: list[str] = []
        """Other attributes with the same state, which cannot be."""

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name:
            self._others.append(name)
        else:
            self.name = name

    def spec(self) -> StateSpec:
        """Raises `TypeError` if it has several names."""
        if self._others:
            raise TypeError(f"{' and '.join((self.name, *self._others))} are one state: declare each by itself")
        return self._make(self.name)

    def read(self, turn: Turn) -> Any:
        """What users get."""
        raise NotImplementedError

    def assign(self, turn: Turn, value: Any) -> None:
        """What `self.name = value` does."""
        raise NotImplementedError

    def remove(self, turn: Turn) -> None:
        """What `del self.name` does."""
        raise NotImplementedError


class Value(Declaration, Generic[_T]):
    """See `value`."""

    def __init__(self, make: Callable[[str], StateSpec], *, has_default: bool) -> None:
        super().__init__(make)
        self._has_default = has_default

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> _T: ...
    def __get__(self, instance: object, owner: Any = None) -> Any:
        if instance is None:
            return self
        turn = CURRENT_TURN.get()
        if turn.is_open and self.name not in turn.assigned:
            # As `value` does, without the call, and without keeping what cannot be changed in place.
            column, call = turn.call.columns[self.name], turn.call
            if column.is_raw and not call.versions and (data := column.stored.get(turn.key)) is not None:
                return data
        return turn.value(self.name)

    def __set__(self, instance: object, value: _T) -> None:
        turn = CURRENT_TURN.get()
        if value is None or not turn.is_open:
            self.assign(turn, value)
        else:
            # As `assign` does, without the calls.
            turn.assigned[self.name] = value

    def __delete__(self, instance: object) -> None:
        CURRENT_TURN.get().remove(self.name)

    def read(self, turn: Turn) -> Any:
        return turn.value(self.name)

    def assign(self, turn: Turn, value: Any) -> None:
        if value is None and not self._has_default:
            # It reads as None then.
            turn.remove(self.name)
        else:
            turn.assign(self.name, value)

    def remove(self, turn: Turn) -> None:
        turn.remove(self.name)


class Viewed(Declaration, Generic[_T]):
    """A state that is changed through a view."""

    def __init__(self, make: Callable[[str], StateSpec], view: Callable[[Turn, Column], _T]) -> None:
        super().__init__(make)
        self._view = view

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> _T: ...
    def __get__(self, instance: object, owner: Any = None) -> Any:
        return self if instance is None else CURRENT_TURN.get().view(self.name, self._view)

    def __set__(self, instance: object, value: _T) -> None:
        self.assign(CURRENT_TURN.get(), value)

    def __delete__(self, instance: object) -> None:
        self.remove(CURRENT_TURN.get())

    def read(self, turn: Turn) -> Any:
        return turn.view(self.name, self._view)

    def assign(self, turn: Turn, value: Any) -> None:
        # `self.clicks += 1` assigns what it has changed.
        if value is not self.read(turn):
            raise TypeError(f"state {self.name} cannot be assigned: change it with its methods, or delete it")

    def remove(self, turn: Turn) -> None:
        self.read(turn).clear()


class StateOptions(TypedDict, total=False):
    """How the values of a state are stored, and for how long."""

    codec: str | None
    version: int
    migrate: Migrations | None
    ttl: timedelta | None
    clock: Clock


@overload
def value(kind: type[_T], **options: Unpack[StateOptions]) -> Value[_T | None]: ...
@overload
def value(kind: type[_T], *, default: _T | Callable[[], _T], **options: Unpack[StateOptions]) -> Value[_T]: ...
@overload
def value(kind: Any, *, default: Any = None, **options: Unpack[StateOptions]) -> Value[Any]: ...
def value(kind: Any, *, default: Any = None, **options: Unpack[StateOptions]) -> Value[Any]:
    """One value per key: an attribute that a record reads, assigns and deletes.

    `kind`: the type: a dataclass, a model of pydantic or msgspec, a TypedDict, `dict`, `int`, `bytes`, a class of
    protobuf messages, ... `default`: what a key has that has no value, a copy for each; a class or a function makes it.
    Without it, None, and assigning None deletes the value.

    `codec`: "json", "bytes", "msgpack" or "protobuf". Default: bytes for `bytes`, protobuf for messages, otherwise
    JSON. `version`: of the values that the function writes (default 1). `migrate`: by version, a function that makes
    the next version's value of one (JSON and MessagePack: as plain objects; protobuf: as bytes). A function is not
    started where values are stored from whose version no such steps lead to its own.

    `ttl`: how long after the record that wrote last the value is kept; with the clock "event" (the default) after its
    event time, by the watermark; with "processing" after the time at which it was processed, by the vertex's clock.

    Raises `TypeError` with what to change.
    """
    make = _maker(VALUE, kind, options, default=default)
    if default is not None:
        spec = make("")
        made, codec = spec.fresh_default(), spec.codec
        assert codec is not None, "only a counter has none"
        try:
            found = codec.read(codec.checked(made))
        except BadOutput as error:
            raise TypeError(f"the default {default!r} cannot be a value: {error}") from None
        if type(found) is not type(made) and found != made:
            raise TypeError(f"the default {default!r} is not of the type of the state: it would be read as {found!r}")
    return Value(make, has_default=default is not None)


@overload
def map_state(
    item: type[_K], kind: type[_V], *, lazy: Literal[True], **options: Unpack[StateOptions]
) -> Viewed[LazyMap[_K, _V]]: ...
@overload
def map_state(
    item: type[_K], kind: type[_V], *, lazy: Literal[False] = False, **options: Unpack[StateOptions]
) -> Viewed[StateMap[_K, _V]]: ...
@overload
def map_state(
    item: Any, kind: Any, *, lazy: Literal[True], **options: Unpack[StateOptions]
) -> Viewed[LazyMap[Any, Any]]: ...
@overload
def map_state(
    item: Any, kind: Any, *, lazy: Literal[False] = False, **options: Unpack[StateOptions]
) -> Viewed[StateMap[Any, Any]]: ...
def map_state(item: Any, kind: Any, *, lazy: bool = False, **options: Unpack[StateOptions]) -> Viewed[Any]:
    """A mapping per key, from items of type `item` (`str`, `int`, `bytes`, or what JSON can have) to values of type
    `kind`. Its items are stored apart: only those that change are sent, and each expires by itself. Other arguments: as
    for `value`; versions are those of the values.

    `lazy`: for maps with very many items. They do not come with each call of the function, which asks for those that it
    reads: see `LazyMap`. What is stored is the same, so it may be changed at any time.
    """
    make = _maker(MAP, kind, options, item_codec=item_codec_of(item), lazy=lazy)
    return Viewed(make, LazyMap if lazy else StateMap)


@overload
def list_state(
    kind: type[_T], *, max_items: int | None = None, **options: Unpack[StateOptions]
) -> Viewed[StateList[_T]]: ...
@overload
def list_state(
    kind: Any, *, max_items: int | None = None, **options: Unpack[StateOptions]
) -> Viewed[StateList[Any]]: ...
def list_state(kind: Any, *, max_items: int | None = None, **options: Unpack[StateOptions]) -> Viewed[StateList[Any]]:
    """A list per key of values of type `kind`: append, extend, iteration, len, indexing, pop, clear. `max_items`: the
    newest that stay. Its values are stored apart, as the items of `map_state`. Other arguments: as for `value`.
    """
    if max_items is not None and (type(max_items) is not int or max_items < 1):
        raise TypeError(f"max_items must be a whole number of at least 1, not {max_items!r}")
    return Viewed(_maker(LIST, kind, options, items_max=max_items or 0), StateList)


def _maker(
    kind: udf_pb2.State.Kind.ValueType, of: Any, options: StateOptions, **more: Any
) -> Callable[[str], StateSpec]:
    """Makes the specification of a state with values of the type `of`. Raises `TypeError` with what to change."""
    unknown = options.keys() - StateOptions.__annotations__.keys()
    if "lazy" in unknown:
        raise TypeError("lazy is for map_state, whose items are read one by one: use a map for what grows large")
    if unknown:
        raise TypeError(f"a state has no option {', '.join(sorted(unknown))}")
    version = options.get("version", 1)
    steps = migrations_of(version, options.get("migrate"))
    lifetime = lifetime_of(options.get("ttl"), options.get("clock", "event"))
    codec = codec_of(of, options.get("codec"))
    return partial(StateSpec, kind=kind, codec=codec, version=version, migrate=steps, lifetime=lifetime, **more)


def counter(*, ttl: timedelta | None = None, clock: Clock = "event") -> Viewed[Counter]:
    """A whole number of 64 bits per key: `.value`, `.add(n)`, which returns the new value, and `+=`. `del` sets it
    back to 0."""
    return Viewed(partial(StateSpec, kind=COUNTER, lifetime=lifetime_of(ttl, clock)), Counter)


def declarations_of(target: Any, owner: str) -> Mapping[str, Declaration]:
    """The states that a class declares, by name, those of its bases first. Raises `TypeError` for names that cannot be
    used."""
    kind: type = target if inspect.isclass(target) else type(target)
    found: dict[str, Declaration] = {}
    for base in reversed(kind.__mro__):
        for name, attribute in vars(base).items():
            found.pop(name, None)
            if isinstance(attribute, Declaration):
                found[name] = attribute
    check_names(list(found), owner, "state")
    return found


class KeyStates(KeyTimers):
    """The states of one key, in a batch function: those that the class declares, as attributes."""

    __slots__ = ("_declarations", "_turn")

    def __init__(self, declarations: Mapping[str, Declaration], turn: Turn) -> None:
        object.__setattr__(self, "_declarations", declarations)
        object.__setattr__(self, "_turn", turn)

    def __getattr__(self, name: str) -> Any:
        return self._declared(name).read(self._turn)

    def __setattr__(self, name: str, value: Any) -> None:
        self._declared(name).assign(self._turn, value)

    def __delattr__(self, name: str) -> None:
        self._declared(name).remove(self._turn)

    def _declared(self, name: str) -> Declaration:
        try:
            declaration: Declaration = self._declarations[name]
        except KeyError:
            raise AttributeError(f"the function declares no state {name}") from None
        return declaration


def plain_specs() -> tuple[StateSpec, ...]:
    """The states of a plain function with a parameter `state`."""
    text = item_codec_of(str)
    return (
        StateSpec(JSON_NAME, MAP, codec_of(Any, "json"), text),
        StateSpec(BYTES_NAME, MAP, codec_of(bytes), text),
        StateSpec(COUNTERS_NAME, MAP, codec_of(int), text),
    )
