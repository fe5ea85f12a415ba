"""What users' code has of maps, lists and counters: collections whose items are read when they are used, and of which
only what has changed is sent.

Above it: `states`, and users' functions. Below it: `key_states`. A view belongs to one record, and raises `StateError`
when it is used afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self, SupportsIndex, TypeVar, cast, overload

from millstream_udf.key_states import GONE, Column, Turn, Write, outside
from millstream_udf.state_codecs import SCALARS
from millstream_udf.state_entries import NO_ITEM
from millstream_udf.state_specs import Clock, StateError
from millstream_udf.timers import cancel, set_timer

_K = TypeVar("_K")
_V = TypeVar("_V")
_D = TypeVar("_D")
_T = TypeVar("_T")

_COUNTER_BYTES = 8
_COUNTER_END = 2**63
_NUMBER_BYTES = 8


class Items:
    """The items of a map or a list, by their bytes."""

    __slots__ = ("_column", "_objects", "_stored", "_turn", "_written")

    def __init__(self, turn: Turn, column: Column) -> None:
        self._turn = turn
        self._column = column
        self._stored: Mapping[bytes, bytes | None] = column.stored.get(turn.key, {})
        self._objects: dict[bytes, Any] = {}
        """What was read or written; GONE where it was deleted."""
        self._written: set[bytes] = set()

    def _check_open(self) -> None:
        if not self._turn.is_open:
            raise outside(self._column.spec.name, self._turn)

    def _object(self, item: bytes) -> Any:
        """The object of an item; GONE if there is none."""
        objects = self._objects
        if item in objects:
            return objects[item]
        data = self._stored.get(item)
        if data is None:
            return GONE
        objects[item] = value = self._turn.call.object(self._column, self._turn.key, item, data)
        return value

    def _has(self, item: bytes) -> bool:
        return self._objects[item] is not GONE if item in self._objects else item in self._stored

    def _set(self, item: bytes, value: Any) -> None:
        self._objects[item] = value
        self._written.add(item)

    def _present(self) -> list[bytes]:
        """The items, in order of their bytes, so that it does not depend on what a call has."""
        if not self._written:
            return sorted(self._stored)
        return sorted(item for item in self._stored.keys() | self._written if self._has(item))

    def _collect(self, writes: list[Write]) -> None:
        column, key = self._column, self._turn.key
        written, stored = self._written, self._stored
        for item, value in self._objects.items():
            if item in written:
                writes.append((column, item, None if value is GONE else column.written(value, stored.get(item))))
            elif type(value) not in SCALARS:
                self._turn.call.compare(column, key, item, value, stored[item], writes)


class StateMap(Items, MutableMapping[_K, _V]):
    """A map state of one key of the records. Its items are iterated in the order of their encoded form."""

    __slots__ = ()

    def __getitem__(self, item: _K) -> _V:
        self._check_open()
        value = self._object(self._column.item(item))
        if value is GONE:
            raise KeyError(item)
        return cast("_V", value)

    @overload
    def get(self, item: _K, default: None = None, /) -> _V | None: ...
    @overload
    def get(self, item: _K, default: _D, /) -> _V | _D: ...
    def get(self, item: _K, default: Any = None, /) -> Any:
        """The value of an item, or the default."""
        self._check_open()
        value = self._object(self._column.item(item))
        return default if value is GONE else value

    def __contains__(self, item: object) -> bool:
        self._check_open()
        return self._has(self._column.item(item))

    def __setitem__(self, item: _K, value: _V) -> None:
        self._check_open()
        self._set(self._column.item(item), value)

    def __delitem__(self, item: _K) -> None:
        self._check_open()
        place = self._column.item(item)
        if not self._has(place):
            raise KeyError(item)
        self._set(place, GONE)

    def __iter__(self) -> Iterator[_K]:
        self._check_open()
        return map(self._column.spec.read_item, self._present())

    def __len__(self) -> int:
        self._check_open()
        return len(self._present()) if self._written else len(self._stored)

    def clear(self) -> None:
        """Delete all items."""
        self._check_open()
        for item in self._present():
            self._set(item, GONE)

    def __ior__(self, other: Mapping[_K, _V]) -> Self:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})" if self._turn.is_open else f"<{type(self).__name__}, closed>"


class StateList(Items, Sequence[_T]):
    """A list state of one key of the records."""

    __slots__ = ("_places",)

    def __init__(self, turn: Turn, column: Column) -> None:
        super().__init__(turn, column)
        self._places = self._present()
        """The items, which are numbers, in order."""

    def append(self, value: _T) -> None:
        """Add a value at the end. If there are more than `max_items` then, the first one is deleted."""
        self._check_open()
        places, most = self._places, self._column.spec.items_max
        number = int.from_bytes(places[-1], "big") + 1 if places else 0
        place = number.to_bytes(_NUMBER_BYTES, "big")
        places.append(place)
        self._set(place, value)
        if most and len(places) > most:
            for gone in places[:-most]:
                self._set(gone, GONE)
            del places[:-most]

    def extend(self, values: Iterable[_T]) -> None:
        """Add values at the end."""
        for value in values:
            self.append(value)

    def pop(self, index: SupportsIndex = -1) -> _T:
        """Delete a value, and return it. `pop(0)` is the oldest one. Raises `IndexError`."""
        value = self[index]
        del self[index]
        return value

    def clear(self) -> None:
        """Delete all values."""
        self._check_open()
        for place in self._places:
            self._set(place, GONE)
        self._places.clear()

    @overload
    def __getitem__(self, index: SupportsIndex) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self._check_open()
        if isinstance(index, slice):
            return [self._object(place) for place in self._places[index]]
        return self._object(self._places[index])

    def __setitem__(self, index: SupportsIndex, value: _T) -> None:
        self._check_open()
        self._set(self._places[index], value)

    def __delitem__(self, index: SupportsIndex) -> None:
        self._check_open()
        self._set(self._places.pop(index), GONE)

    def __iter__(self) -> Iterator[_T]:
        self._check_open()
        return map(self._object, tuple(self._places))

    def __len__(self) -> int:
        self._check_open()
        return len(self._places)

    def __iadd__(self, values: Iterable[_T]) -> Self:
        self.extend(values)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})" if self._turn.is_open else f"<{type(self).__name__}, closed>"


class Counter:
    """A counter of one key of the records: a whole number of 64 bits."""

    __slots__ = ("_cleared", "_column", "_turn", "_value", "_written")

    def __init__(self, turn: Turn, column: Column) -> None:
        self._turn = turn
        self._column = column
        data = column.stored.get(turn.key)
        if data is not None and len(data) != _COUNTER_BYTES:
            raise StateError(f"a stored value of state {column.spec.name} has {len(data)} bytes, and is no counter")
        self._value = 0 if data is None else number_of(data)
        self._written = self._cleared = False

    @property
    def value(self) -> int:
        """The count; 0 at first."""
        if not self._turn.is_open:
            raise outside(self._column.spec.name, self._turn)
        return self._value

    def add(self, n: int = 1) -> int:
        """Add `n`, which may be negative. Returns the new count. Raises `OverflowError` beyond 64 bits."""
        self._value = value = _counted(self._column.spec.name, self.value, n)
        self._written = True
        return value

    def clear(self) -> None:
        """Back to 0, and forget it."""
        if not self._turn.is_open:
            raise outside(self._column.spec.name, self._turn)
        self._value = 0
        self._written, self._cleared = False, True

    def __iadd__(self, n: int) -> Self:
        self.add(n)
        return self

    def __isub__(self, n: int) -> Self:
        self.add(-n)
        return self

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Counter({self._value})"

    def _collect(self, writes: list[Write]) -> None:
        if self._written or self._cleared:
            writes.append((self._column, NO_ITEM, bytes_of(self._value) if self._written else None))


def _counted(name: str, before: int, n: int) -> int:
    """The new count of a counter. Raises `TypeError`, and `OverflowError` beyond 64 bits."""
    if type(n) is not int:
        raise TypeError(f"counter {name} counts whole numbers, not {type(n).__name__}")
    if not -_COUNTER_END <= before + n < _COUNTER_END:
        raise OverflowError(f"counter {name} would be {before + n}, which has more than 64 bits")
    return before + n


def bytes_of(number: int) -> bytes:
    """The stored form of a counter."""
    return number.to_bytes(_COUNTER_BYTES, "little", signed=True)


def number_of(data: bytes) -> int:
    """The inverse of `bytes_of`."""
    return int.from_bytes(data, "little", signed=True)


class KeyTimers:
    """The timers of one key, for what users' code has of its states."""

    __slots__ = ()
    _turn: Turn

    def timer(
        self,
        name: str,
        *,
        at: datetime | int | None = None,
        after: timedelta | None = None,
        clock: Clock = "event",
        output_at: datetime | int | None = None,
    ) -> None:
        """As `udf.timer`, for this key. `after` counts from the latest record of the key in the call."""
        set_timer(self._turn, name, at, after, clock, output_at)

    def cancel_timer(self, name: str) -> None:
        """As `udf.cancel_timer`, for this key."""
        cancel(self._turn, name)


class State(KeyTimers, MutableMapping[str, Any]):
    """What a plain function remembers for the key of its record: JSON values and bytes by name, and counters."""

    __slots__ = ("_json", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._json: StateMap[str, Any] = turn.view(JSON_NAME, StateMap)

    def get_state(self, name: str, default: Any = None) -> Any:
        """The value of a name, as it was put, or the default."""
        value = self._json.get(name, GONE)
        if value is not GONE:
            return value
        return self._bytes().get(name, default) if self._turn.has(BYTES_NAME) else default

    def put_state(self, name: str, value: Any) -> None:
        """Remember bytes, or anything that becomes JSON."""
        if isinstance(value, bytes | bytearray | memoryview):
            self._bytes()[name] = bytes(value)
            if name in self._json:
                del self._json[name]
        else:
            self._json[name] = value
            if self._turn.has(BYTES_NAME) and name in self._bytes():
                del self._bytes()[name]

    def delete_state(self, name: str) -> None:
        """Forget a name, if it is there."""
        for view in (self._json, self._bytes()):
            if name in view:
                del view[name]

    def incr_counter(self, name: str, n: int = 1) -> int:
        """Add `n` to the counter of this name. Returns the new count. Raises `OverflowError` beyond 64 bits."""
        counters = self._counters()
        counters[name] = count = _counted(name, counters.get(name, 0), n)
        return count

    def get_counter(self, name: str) -> int:
        """The count of this name; 0 at first."""
        return self._counters().get(name, 0)

    def get(self, name: str, default: Any = None, /) -> Any:
        """As `get_state`."""
        return self.get_state(name, default)

    def __getitem__(self, name: str) -> Any:
        value = self.get_state(name, GONE)
        if value is GONE:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.put_state(name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self.delete_state(name)

    def __contains__(self, name: object) -> bool:
        return name in self._json or name in self._bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._json, *self._bytes()]))

    def __len__(self) -> int:
        return len(self._json) + len(self._bytes())

    def __repr__(self) -> str:
        return f"State({dict(self)!r})" if self._turn.is_open else "<State, closed>"

    def _bytes(self) -> StateMap[str, bytes]:
        view: StateMap[str, bytes] = self._turn.view(BYTES_NAME, StateMap)
        return view

    def _counters(self) -> StateMap[str, int]:
        view: StateMap[str, int] = self._turn.view(COUNTERS_NAME, StateMap)
        return view


JSON_NAME, BYTES_NAME, COUNTERS_NAME = "state", "bytes", "counters"
"""The map states of a plain function."""
