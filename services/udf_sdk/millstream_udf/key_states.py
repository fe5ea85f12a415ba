"""The states of the keys of one call: what a record reads, what it writes, and what of that counts.

Above it: `states`, through which users' code reads and writes, and `keyed_execution`, which runs the records. Below it:
`state_specs`, `state_entries`.

    entries of the call ──► stored bytes of the key ──► objects, while a record runs ──► stored bytes ──► changes
                                                         (a `Turn`)      settle: if the record has succeeded

Of a lazy state, the stored bytes are those that were read or written so far. Between two records of a key there are
only bytes. So a record that fails leaves nothing, whatever it has done to the objects that it read; and one that
succeeds has changed what has other bytes now, also if it changed an object in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from itertools import repeat
from typing import Any, Protocol

from millstream_udf.failures import FAILURES, failure
from millstream_udf.inputs import FrameInputs
from millstream_udf.misfits import Misfit
from millstream_udf.state_codecs import SCALARS, never_changes
from millstream_udf.state_entries import NO_ITEM, Changes, StateEntries, pack_changes, unpack_entries
from millstream_udf.state_found import Found
from millstream_udf.state_reads import Ask
from millstream_udf.state_specs import LIST, MAP, TIMER, VALUE, StateError, StateSpec
from millstream_udf.values import DeadLetter, Drop
from millstream_udf.wire.udf.v1 import udf_pb2

GONE: Any = object()
"""In place of an object: it was deleted."""
MISSING: Any = object()
"""In place of an object: there is none."""


class Column:
    """The entries of one state, for all keys of a call."""

    __slots__ = (
        "before",
        "default",
        "exact",
        "has_items",
        "has_type",
        "index",
        "is_raw",
        "is_simple",
        "read",
        "renewed",
        "spec",
        "stored",
        "write",
        "write_item",
    )

    def __init__(self, index: int, spec: StateSpec) -> None:
        self.index = index
        self.spec = spec
        self.has_items = spec.kind in (MAP, LIST)
        self.is_simple = not self.has_items and not spec.lifetime.ttl_us
        self.stored: dict[int, Any] = {}
        """By index of the key, the bytes of the value; if it has items, a dictionary of them by item. Of a lazy state,
        what is known of them; None: there is no such item."""
        self.before: dict[Any, bytes | None] = {}
        """Of what was written: the bytes in the call, by index of the key, and item if it has some; MISSING if they are
        not known."""
        self.renewed: dict[Any, int] = {}
        """What counts as changed even if its bytes are the same, and when it expires. (By the same places.)"""
        self.default = spec.default if type(spec.default) in SCALARS else MISSING
        codec = spec.codec
        self.read: Callable[[bytes], Any] | None = None if codec is None else codec.fast_read
        """None: the bytes are the value. Any exception: `spec.read` knows more."""
        self.is_raw = codec is not None and self.read is None
        """Whether the stored bytes are the value."""
        self.write: Callable[[Any], bytes] | None = None if codec is None else codec.fast_write
        self.exact = None if codec is None else codec.exact
        self.has_type = codec is not None and codec.kind is not Any
        self.write_item: Callable[[Any], bytes] | None = None
        """Any exception: `spec.write_item` knows more."""
        if spec.item_codec is not None:
            self.write_item = spec.item_codec.fast_write if spec.item_codec.exact is not None else spec.write_item

    def written(self, value: Any, before: bytes | None) -> bytes:
        """The bytes of a value. Raises `BadOutput` if it has none, or if it could not be read again."""
        assert self.write is not None
        try:
            data = self.write(value)
        except FAILURES as error:
            failure(error)
            return self.spec.write(value)
        if self.has_type and type(value) is not self.exact and data != before:
            return self.spec.write(value)
        return data

    def change(self, key: int, data: bytes | None) -> None:
        """Write an entry of a simple state; None: it is deleted."""
        before = self.stored.get(key)
        if before == data:
            return
        if key not in self.before:
            self.before[key] = before
        if data is None:
            del self.stored[key]
        else:
            self.stored[key] = data

    def item(self, item: Any) -> bytes:
        """The bytes of an item of a map. Raises `TypeError` if it cannot be one."""
        assert self.write_item is not None
        try:
            return self.write_item(item)
        except FAILURES as error:
            failure(error)
            return self.spec.write_item(item)


class _Columns(dict[str, Column]):
    """The columns by name."""

    def __missing__(self, name: str) -> Column:
        raise StateError(
            f"state {name} is not one of the function that runs, which has those that its class and its bases declare"
        )


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

    __slots__ = ("assigned", "call", "is_open", "key", "read", "record", "timers")

    def __init__(self, call: CallStates, key: int, record: int) -> None:
        self.call = call
        self.key = key
        self.record = record
        """Index of the record; in a batch, of the key's latest one."""
        self.is_open = True
        self.read: dict[str, Any] = {}
        """The objects that were read, by name of the state, and the views."""
        self.assigned: dict[str, Any] = {}
        """The objects that were assigned, or GONE."""
        self.timers: dict[str, bytes | None] | None = None
        """The timers that were set, by name; None for one that was cancelled."""

    @property
    def event_time_us(self) -> int:
        """The event time of the record."""
        return self.call.event_time_us(self.record)

    def set_timer(self, name: str, value: bytes | None) -> None:
        """Set a timer, or cancel it (None)."""
        if self.timers is None:
            self.timers = {}
        self.timers[name] = value

    def value(self, name: str) -> Any:
        """The value of a state. Raises `StateError`."""
        if not self.is_open:
            raise outside(name, self)
        value = self.assigned.get(name, MISSING)
        if value is not MISSING and value is not GONE:
            return value
        read = self.read
        if name in read:
            return read[name]
        column = self.call.columns[name]
        data = column.stored.get(self.key) if value is MISSING else None
        if data is not None:
            found = self.call.object(column, self.key, NO_ITEM, data)
        elif column.default is not MISSING:
            # It cannot be changed in place.
            return column.default
        else:
            found = column.spec.fresh_default()
        read[name] = found
        return found

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

    def has(self, name: str) -> bool:
        """Whether a map may have items."""
        return name in self.read or self.key in self.call.columns[name].stored

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

    def __init__(
        self,
        specs: Sequence[StateSpec],
        data: bytes,
        inputs: FrameInputs,
        now_us: Callable[[], int],
        *,
        call_id: int = 0,
        ask: Ask | None = None,
    ) -> None:
        """`data`: encoded `StateEntries`. `now_us`: the present time, for what expires by it. `ask`: for lazy states,
        how to read for this call."""
        self.has_timers = specs[-1].kind == TIMER
        """Whether there are timers: they are the last one of the states, and do not come with calls."""
        kept = specs[:-1] if self.has_timers else specs
        entries = unpack_entries(data, inputs.count, len(kept))
        self.record_keys = entries.record_keys
        self.held: set[int] = set()
        """Keys of which a record has failed or is to be retried: later records of it are not processed."""
        self._ordered = [Column(index, spec) for index, spec in enumerate(kept)]
        self._timers: dict[tuple[int, str], bytes | None] = {}
        """The timers that were set, by index of the key and name; None for one that was cancelled."""
        self.columns: Mapping[str, Column] = _Columns({column.spec.name: column for column in self._ordered})
        self.versions: dict[tuple[Column, int, bytes], int] = {}
        """The versions of stored values that are of another one than the function's."""
        self._inputs = inputs
        self.now_us = now_us
        self._call_id = call_id
        self._ask = ask
        if kept:
            self._fill(entries)

    def ask(self, turn: Turn, column: Column) -> Callable[[udf_pb2.StateRead], Future[Found]]:
        """Reads of a lazy state for a key."""
        ask = self._ask
        assert ask is not None, "there are lazy states"

        def asked(read: udf_pb2.StateRead) -> Future[Found]:
            read.call_id, read.key, read.state = self._call_id, turn.key, column.index
            return ask(read)

        return asked

    def note_version(self, column: Column, key: int, item: bytes, version: int) -> None:
        """A value that was read is of this version."""
        if version != column.spec.version:
            self.versions[column, key, item] = version

    def event_time_us(self, record: int) -> int:
        """The event time of a record of the call."""
        return self._inputs.event_times_us[record]

    def _fill(self, entries: StateEntries) -> None:
        first = self._ordered[0]
        versions = entries.versions
        version = 1 if not versions else versions[0]
        is_uniform = not versions or versions.count(version) == len(versions)
        if not is_uniform or any(column.spec.version != version for column in self._ordered):
            self._fill_versions(entries)
        if len(self._ordered) == 1 and not first.has_items:
            first.stored = dict(zip(entries.keys, entries.values, strict=True))
            return
        ordered = self._ordered
        for key, state, item, value in zip(
            entries.keys, entries.states, entries.items or repeat(NO_ITEM), entries.values, strict=False
        ):
            column = ordered[state]
            if not column.has_items:
                column.stored[key] = value
            elif key in column.stored:
                column.stored[key][item] = value
            elif entries.items is None and column.spec.kind == LIST:
                raise ValueError(f"the entries of state {column.spec.name} have no items")
            else:
                column.stored[key] = {item: value}

    def _fill_versions(self, entries: StateEntries) -> None:
        for at, (key, state) in enumerate(zip(entries.keys, entries.states, strict=True)):
            column = self._ordered[state]
            version = 1 if entries.versions is None else entries.versions[at]
            if version != column.spec.version:
                item = entries.items[at] if column.has_items and entries.items is not None else NO_ITEM
                self.versions[column, key, item] = version

    def begin(self, record: int) -> Turn | None:
        """The states for a record; None if it is held up."""
        key = self.record_keys[record]
        return None if key in self.held else Turn(self, key, record)

    def begin_all(self) -> list[Turn]:
        """The states for a batch of all records: one for each key. What they write is of the key's latest record."""
        latest: dict[int, int] = {}
        times = self._inputs.event_times_us
        for record, key in enumerate(self.record_keys):
            if key not in latest or times[record] > times[latest[key]]:
                latest[key] = record
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
        key, assigned, columns = turn.key, turn.assigned, self.columns
        if len(assigned) == 1 and not turn.read and turn.timers is None and not self.versions:
            # As below, without what such a turn does not need.
            name, value = next(iter(assigned.items()))
            column = columns[name]
            if column.is_raw and column.is_simple and type(value) is bytes:
                column.change(key, value)
                return
        writes: list[Write] = []
        for name, value in assigned.items():
            column = columns[name]
            if value is GONE:
                writes.append((column, NO_ITEM, None))
            elif column.read is None and type(value) is bytes:
                writes.append((column, NO_ITEM, value))
            else:
                writes.append((column, NO_ITEM, column.written(value, column.stored.get(key))))
        for name, value in turn.read.items():
            if type(value) in SCALARS:
                continue
            column = columns[name]
            if column.spec.kind != VALUE:
                value._collect(writes)
            elif name not in assigned:
                self.compare(column, key, NO_ITEM, value, column.stored.get(key), writes)
            elif assigned[name] is GONE:
                self.compare(column, key, NO_ITEM, value, None, writes)
        if self.versions:
            for column, item, _ in writes:
                column.spec.check_version(self.versions.get((column, key, item), column.spec.version))
        for column, item, data in writes:
            if not column.is_simple or self.versions:
                self._apply(turn, column, item, data)
            else:
                column.change(key, data)
        if turn.timers is not None:
            self._timers.update({(key, name): value for name, value in turn.timers.items()})

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

    def object(self, column: Column, key: int, item: bytes, data: bytes) -> Any:
        """A stored value. Raises `StateError`."""
        version = column.spec.version
        if self.versions:
            version = self.versions.get((column, key, item), version)
        if version == column.spec.version:
            if column.read is None:
                return data
            try:
                return column.read(data)
            except FAILURES as error:
                failure(error)
        return column.spec.read(data, version)

    def _apply(self, turn: Turn, column: Column, item: bytes, data: bytes | None) -> None:
        key = turn.key
        # The place of the entry in what the column has for the call, and in what it has stored.
        whole: Any = key
        place: Any = key
        stored: dict[Any, bytes | None] = column.stored
        if column.has_items:
            whole, place, stored = (key, item), item, column.stored.setdefault(key, {})
        before = stored.get(place, MISSING if column.spec.lazy else None)
        lives_longer = data is not None and column.spec.lifetime.ttl_us
        if data == before and not lives_longer and (column, key, item) not in self.versions:
            return
        if whole not in column.before:
            column.before[whole] = before
        if self.versions and self.versions.pop((column, key, item), 0):
            column.renewed[whole] = 0
        if data is None:
            if column.spec.lazy:
                stored[place] = None
            else:
                del stored[place]
            if column.renewed.get(whole):
                # Its expiry. That it was of another version stays so, also if the same bytes are written again.
                del column.renewed[whole]
            return
        stored[place] = data
        if column.spec.lifetime.ttl_us:
            column.renewed[whole] = self._expiry(turn, column.spec, column.renewed.get(whole))

    def _expiry(self, turn: Turn, spec: StateSpec, before: int | None) -> int:
        by_event_time = spec.lifetime.clock == "event"
        time_us = self._inputs.event_times_us[turn.record] if by_event_time else self.now_us()
        expiry = time_us + spec.lifetime.ttl_us
        if by_event_time and before:
            # A late record does not make an entry older.
            expiry = max(expiry, before)
        # 0 would be never.
        return expiry or 1

    def changes(self) -> bytes:
        """Encoded `StateChanges`: each entry that has other bytes, another expiry or another version than in the
        call."""
        found = Changes()
        for column in self._ordered:
            stored, renewed, index = column.stored, column.renewed, column.index
            if column.has_items:
                for (key, item), before in column.before.items():
                    now = stored[key].get(item)
                    if now != before or (key, item) in renewed:
                        found.add(key, index, item, now, renewed.get((key, item), 0))
            elif renewed:
                for key, before in column.before.items():
                    now = stored.get(key)
                    if now != before or key in renewed:
                        found.add(key, index, NO_ITEM, now, renewed.get(key, 0))
            else:
                keys = [key for key, before in column.before.items() if stored.get(key) != before]
                found.add_all(keys, index, [*map(stored.get, keys)])
        state = len(self._ordered)
        for (key, name), value in self._timers.items():
            found.add(key, state, name.encode(), value, 0)
        have_items = bool(self._timers) or any(column.has_items for column in self._ordered)
        return pack_changes(found, have_items=have_items)


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
        f"state {name} can only be used while a record is processed: not in __init__, setup or close, not in a thread "
        "of your own, not after the function has returned for its record. (In tests, millstream_udf.testing.run "
        "processes records.)"
    )


def now_us() -> int:
    """The present time, microseconds since the epoch."""
    return time.time_ns() // 1000
