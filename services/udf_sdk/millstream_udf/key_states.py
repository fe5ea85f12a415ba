"""The states of the keys of one call: what a record reads, what it writes, and what of that counts.

Above it: `states`, through which users' code reads and writes, and `keyed_execution`, which runs the records. Below it:
`state_specs`, `state_entries`.

    entries of the call ──► stored bytes of the key ──► objects, while a record runs ──► stored bytes ──► changes
                                                         (a `Turn`)      settle: if the record has succeeded

Between two records of a key there are only bytes. So a record that fails leaves nothing, whatever it has done to the
objects that it read; and one that succeeds has changed what has other bytes now, also if it changed an object in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from millstream_udf.failures import FAILURES, failure
from millstream_udf.inputs import FrameInputs
from millstream_udf.misfits import Misfit
from millstream_udf.state_codecs import SCALARS, never_changes
from millstream_udf.state_entries import NO_ITEM, Change, Entry, pack_changes, unpack_entries
from millstream_udf.state_specs import LIST, MAP, VALUE, StateError, StateSpec
from millstream_udf.values import DeadLetter, Drop

GONE: Any = object()
"""In place of an object: it was deleted."""
_UNSET: Any = object()


class Column:
    """The entries of one state, for all keys of a call."""

    __slots__ = ("exact", "has_items", "index", "read", "spec", "stored", "write")

    def __init__(self, index: int, spec: StateSpec) -> None:
        self.index = index
        self.spec = spec
        self.has_items = spec.kind in (MAP, LIST)
        self.stored: dict[int, Any] = {}
        """By index of the key, the bytes of the value; if it has items, a dictionary of them by item."""
        codec = spec.codec
        self.read: Callable[[bytes], Any] | None = None if codec is None else codec.read
        self.write: Callable[[Any], bytes] | None = None if codec is None else codec.write
        self.exact = None if codec is None else codec.exact

    def written(self, value: Any, before: bytes | None) -> bytes:
        """The bytes of a value. Raises `BadOutput` if it has none, or if it could not be read again."""
        assert self.write is not None
        try:
            data = self.write(value)
        except FAILURES as error:
            failure(error)
            return self.spec.write(value)
        if type(value) is self.exact or data == before:
            return data
        return self.spec.write(value)


class View(Protocol):
    """An object that stands for the entries of a map, a list or a counter."""

    def _collect(self, writes: list[Write]) -> None:
        """Add what has changed. Raises `BadOutput`."""


Write = tuple[Column, bytes, bytes | None]
"""A state, an item, and the new bytes. None: deleted."""


class Turn:
    """The states of one key, while one of its records runs; in a batch, while the function runs.

    Users' code holds it through what they read; afterwards it is closed.
    """

    __slots__ = ("assigned", "call", "is_open", "key", "read", "time_us")

    def __init__(self, call: CallStates, key: int, time_us: int) -> None:
        self.call = call
        self.key = key
        self.time_us = time_us
        """Event time of the record."""
        self.is_open = True
        self.read: dict[str, Any] = {}
        """The objects that were read, by name of the state, and the views."""
        self.assigned: dict[str, Any] = {}
        """The objects that were assigned, or GONE."""

    def value(self, name: str) -> Any:
        """The value of a state."""
        if not self.is_open:
            raise outside(name, self)
        value = self.assigned.get(name, _UNSET)
        if value is not _UNSET and value is not GONE:
            return value
        read = self.read
        if name not in read:
            read[name] = self.call.load(self, name) if value is _UNSET else self.call.columns[name].spec.fresh_default()
        return read[name]

    def assign(self, name: str, value: Any) -> None:
        """Set the value of a state."""
        if not self.is_open:
            raise outside(name, self)
        self.assigned[name] = value

    def remove(self, name: str) -> None:
        """Delete the value of a state."""
        if not self.is_open:
            raise outside(name, self)
        self.assigned[name] = GONE
        self.read.pop(name, None)

    def view(self, name: str, make: Callable[[Turn, Column], Any]) -> Any:
        """The view of a map, a list or a counter, one for each turn."""
        if not self.is_open:
            raise outside(name, self)
        read = self.read
        if name not in read:
            read[name] = make(self, self.call.columns[name])
        return read[name]


class CallStates:
    """The states of one call. Raises `ValueError` for entries that do not fit."""

    def __init__(self, specs: Sequence[StateSpec], data: bytes, inputs: FrameInputs, now_us: Callable[[], int]) -> None:
        """`data`: encoded `StateEntries`. `now_us`: the present time, for what expires by it."""
        entries = unpack_entries(data, inputs.count, len(specs))
        self.record_keys = entries.record_keys
        self.held: set[int] = set()
        """Keys of which a record has failed or is to be retried: later records of it are not processed."""
        self._ordered = [Column(index, spec) for index, spec in enumerate(specs)]
        self.columns: Mapping[str, Column] = {column.spec.name: column for column in self._ordered}
        self._versions: dict[Entry, int] = {}
        """The versions of stored values that are of another one than the function's."""
        self._changed: dict[Entry, tuple[bytes | None, bytes | None]] = {}
        """The bytes of what was written: in the call, and now."""
        self._expires: dict[Entry, int] = {}
        self._renewed: set[Entry] = set()
        """What is a change even if its bytes are the same: it has another version now."""
        by_event_time = any(spec.lifetime.ttl_us and spec.lifetime.clock == "event" for spec in specs)
        self._times: Sequence[int] | None = inputs.event_times_us if by_event_time else None
        self._now_us = now_us
        for at, (key, state, value) in enumerate(zip(entries.keys, entries.states, entries.values, strict=True)):
            column = self._ordered[state]
            item = NO_ITEM
            if not column.has_items:
                column.stored[key] = value
            else:
                if entries.items is None:
                    raise ValueError(f"the entries of state {column.spec.name} have no items")
                item = entries.items[at]
                column.stored.setdefault(key, {})[item] = value
            version = 1 if entries.versions is None else entries.versions[at]
            if version != column.spec.version:
                self._versions[Entry(key, state, item)] = version

    def begin(self, record: int) -> Turn | None:
        """The states for a record; None if it is held up."""
        key = self.record_keys[record]
        if key in self.held:
            return None
        return Turn(self, key, 0 if self._times is None else self._times[record])

    def begin_all(self) -> list[Turn]:
        """The states for a batch of all records: one for each key. What they write is of the key's latest record."""
        latest: dict[int, int] = {}
        times = self._times or [0] * len(self.record_keys)
        for key, time_us in zip(self.record_keys, times, strict=True):
            latest[key] = max(latest.get(key, time_us), time_us)
        return [Turn(self, key, latest[key]) for key in range(len(latest))]

    def failed(self, turn: Turn, error: BaseException) -> BaseException:
        """The record has failed with `error`: nothing that it has done to states counts."""
        turn.is_open = False
        if not isinstance(error, SETTLED):
            self.held.add(turn.key)
        return error

    def settle(self, turn: Turn) -> None:
        """The record has succeeded: what it has changed counts. Raises `BadOutput`, and changes nothing, if something
        cannot be stored."""
        turn.is_open = False
        writes: list[Write] = []
        for name, value in turn.assigned.items():
            column = self.columns[name]
            before = column.stored.get(turn.key)
            writes.append((column, NO_ITEM, None if value is GONE else column.written(value, before)))
        for name, value in turn.read.items():
            if type(value) in SCALARS:
                continue
            column = self.columns[name]
            if column.spec.kind != VALUE:
                value._collect(writes)
            elif (assigned := turn.assigned.get(name, _UNSET)) is _UNSET or assigned is GONE:
                before = column.stored.get(turn.key) if assigned is _UNSET else None
                self.compare(column, turn.key, NO_ITEM, value, before, writes)
        if self._versions:
            for column, item, _ in writes:
                column.spec.check_version(self._versions.get(Entry(turn.key, column.index, item), 1))
        for column, item, data in writes:
            self._apply(turn, column, item, data)

    def compare(
        self, column: Column, key: int, item: bytes, value: Any, before: bytes | None, writes: list[Write]
    ) -> None:
        """Add a value that was read from `before` (None: the default), if it has changed in place."""
        if never_changes(value):
            return
        data = column.written(value, before)
        if data == before:
            return
        # The same value may have been stored as other bytes, by another version or another program.
        unchanged = column.spec.fresh_default() if before is None else self.object(column, key, item, before)
        if column.written(unchanged, data) != data:
            writes.append((column, item, data))

    def load(self, turn: Turn, name: str) -> Any:
        """The stored value of a state, or its default. Raises `StateError`."""
        column = self.columns[name]
        data = column.stored.get(turn.key)
        return column.spec.fresh_default() if data is None else self.object(column, turn.key, NO_ITEM, data)

    def object(self, column: Column, key: int, item: bytes, data: bytes) -> Any:
        """A stored value. Raises `StateError`."""
        assert column.read is not None
        if not self._versions:
            try:
                return column.read(data)
            except FAILURES as error:
                failure(error)
        return column.spec.read(data, self._versions.get(Entry(key, column.index, item), column.spec.version))

    def _apply(self, turn: Turn, column: Column, item: bytes, data: bytes | None) -> None:
        key, spec = turn.key, column.spec
        items = column.stored.setdefault(key, {}) if column.has_items else column.stored
        place: Any = item if column.has_items else key
        before = items.get(place)
        if before is None and data is None:
            return
        entry = Entry(key, column.index, item)
        if entry in self._versions:
            del self._versions[entry]
            self._renewed.add(entry)
        elif data == before and not spec.lifetime.ttl_us:
            return
        self._changed[entry] = (self._changed[entry][0] if entry in self._changed else before, data)
        if data is None:
            del items[place]
            self._expires.pop(entry, None)
            return
        items[place] = data
        if spec.lifetime.ttl_us:
            self._expires[entry] = self._expiry(turn, spec, self._expires.get(entry))

    def _expiry(self, turn: Turn, spec: StateSpec, before: int | None) -> int:
        by_event_time = spec.lifetime.clock == "event"
        expiry = (turn.time_us if by_event_time else self._now_us()) + spec.lifetime.ttl_us
        if by_event_time and before is not None:
            # A late record does not make an entry older.
            expiry = max(expiry, before)
        # 0 would be never.
        return expiry or 1

    def changes(self) -> bytes:
        """Encoded `StateChanges`: each entry that has other bytes, another expiry or another version than in the
        call."""
        found = []
        expires, renewed = self._expires, self._renewed
        for entry, (before, now) in self._changed.items():
            if before != now or entry in expires or entry in renewed:
                found.append(Change(entry, now, expires.get(entry, 0)))
        return pack_changes(found, have_items=any(column.has_items for column in self._ordered))


SETTLED = (DeadLetter, Drop, Misfit)
"""Outcomes with which a record is done: later records of its key are processed."""


def _closed() -> Turn:
    nothing: Any = None
    turn = Turn(nothing, 0, 0)
    turn.is_open = False
    return turn


NONE = _closed()
"""No record is processed."""
BATCH = _closed()
"""A batch is processed."""
CURRENT_TURN: ContextVar[Turn] = ContextVar("millstream_udf_turn", default=NONE)
"""The turn of the record that the running function works on, in this task or thread."""


def outside(name: str, turn: Turn) -> StateError:
    """The error of using a state where no record is processed."""
    if turn is BATCH:
        return StateError(f"state {name} belongs to a key: in a batch function use states[i].{name}, for record i")
    return StateError(
        f"state {name} can only be used while a record is processed: not in setup or close, not in a thread of your "
        "own, not after the function has returned for its record. (In tests, millstream_udf.testing.run processes "
        "records.)"
    )


def now_us() -> int:
    """The present time, microseconds since the epoch."""
    return time.time_ns() // 1000
