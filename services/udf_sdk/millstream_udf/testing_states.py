"""What a function remembers, in tests: set before, kept between calls, looked at afterwards. A part of the test kit.

Above it: `testing`. Below it: `state_entries`, with which it is what a vertex is for the function.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple

from millstream_udf.defining import define
from millstream_udf.definition import Definition
from millstream_udf.inputs import FrameInputs
from millstream_udf.state_entries import NO_ITEM, StateEntries, pack_entries, unpack_changes
from millstream_udf.state_found import Found
from millstream_udf.state_reads import Ask
from millstream_udf.state_specs import COUNTER, LIST, MAP, TIMER, TIMERS_NAME, Clock, StateSpec
from millstream_udf.state_views import bytes_of, number_of
from millstream_udf.timer_entries import CLOCKS, EVENT, PROCESSING, TimerTime, pack_timer, unpack_timer
from millstream_udf.timers import Timer
from millstream_udf.values import to_us
from millstream_udf.wire.udf.v1 import udf_pb2

_PAGE_ITEMS = 100
"""Items in an answer to a read of a lazy state."""
Keys = str | tuple[str, ...]
"""A key of records: its parts, or the only one."""


class _Stored(NamedTuple):
    value: bytes
    version: int = 1
    expires_us: int = 0


_Entries = dict[tuple[str, bytes], _Stored]
"""The entries of a key, by the name of the state and the item."""


class KeptStates(MutableMapping[Keys, "KeyOfStates"]):
    """What a function remembers, by key of the records, and by name: `states["ada"]["total"]`.

    It begins empty, or with `contents`: `KeptStates(Sessions, {"ada": {"total": 5}})`. A plain function has the maps
    "state" (JSON), "bytes" and "counters"; timers are "timers": `states["ada"]["timers"] = {"idle": when}`. Iterated,
    it has the keys of which something is remembered.
    """

    def __init__(self, function: Any, contents: Mapping[Any, Mapping[str, Any]] | None = None) -> None:
        self._specs = {spec.name: spec for spec in _definition_of(function).states}
        self._entries: dict[tuple[str, ...], _Entries] = {}
        self._promised_us = -(2**63)
        """The watermark that outputs are not behind."""
        for key, values in (contents or {}).items():
            self[key] = values

    def carried(self, function: Any) -> KeptStates:
        """A copy for another version of the function. Raises `TypeError` if a state that it has in store is missing
        there, or is stored in another way."""
        other = KeptStates(function)
        for key, entries in self._entries.items():
            for name, _ in entries:
                here, there = self._specs[name], other._specs.get(name)
                if there is None or _form(here) != _form(there):
                    raise TypeError(f"state {name} is not {_form(here)} there")
            other._entries[key] = dict(entries)
        other._promised_us = self._promised_us
        return other

    def check(self, function: Any) -> None:
        """Raises `TypeError` if they are those of another function."""
        here = [(name, spec.version, *_form(spec)) for name, spec in self._specs.items()]
        definition = _definition_of(function)
        if here != [(spec.name, spec.version, *_form(spec)) for spec in definition.states]:
            raise TypeError(f"the states are not those of {definition.name}: use states.carried({definition.name})")

    @property
    def timers(self) -> list[Timer]:
        """The timers that are set, in the order in which they fire."""
        found = [
            _timer(key, name, stored.value)
            for key, entries in self._entries.items()
            for (state, name), stored in entries.items()
            if self._specs[state].kind == TIMER
        ]
        return sorted(found, key=lambda timer: (timer.at_us, "\x1f".join(timer.keys).encode(), timer.name.encode()))

    def take_timers(self, timers: Sequence[Timer], watermark_us: int) -> list[Timer]:
        """Forget timers that fire together at this watermark. Returns them as their function gets them."""
        self._promise(watermark_us)
        taken = []
        for timer in timers:
            del self._entries[timer.keys][TIMERS_NAME, timer.name.encode()]
            event_us = max(timer.event_time_us, self._promised_us)
            taken.append(Timer(timer.name, timer.at_us, timer.keys, clock=timer.clock, event_time=event_us))
        return taken

    def _promise(self, watermark_us: int) -> None:
        """The vertex may have promised this watermark to those who follow, unless a timer holds it."""
        times = [
            unpack_timer(stored.value)
            for entries in self._entries.values()
            for (state, _), stored in entries.items()
            if state == TIMERS_NAME
        ]
        held = [time.event_us if time.holds else time.at_us for time in times if time.holds or time.clock == EVENT]
        self._promised_us = max(self._promised_us, min([watermark_us, *held]))

    def put_timer(self, timer: Timer) -> None:
        """Set a timer that was taken."""
        self._entries[timer.keys][TIMERS_NAME, timer.name.encode()] = _Stored(_time_of(timer))

    def __getitem__(self, key: Keys) -> KeyOfStates:
        """What is remembered for a key, perhaps nothing."""
        return KeyOfStates(self._specs, self._entries, _parts(key))

    def __setitem__(self, key: Keys, values: Mapping[str, Any]) -> None:
        found = self[key]
        found.clear()
        found.update(values)

    def __delitem__(self, key: Keys) -> None:
        self[key].clear()

    def __iter__(self) -> Iterator[Keys]:
        return iter([key[0] if len(key) == 1 else key for key, entries in self._entries.items() if entries])

    def __len__(self) -> int:
        return sum(map(bool, self._entries.values()))

    def __contains__(self, key: object) -> bool:
        return bool(self._entries.get(_parts(key)))  # type: ignore[arg-type]  # anything else is not there

    def __repr__(self) -> str:
        return f"KeptStates({ {key: dict(self[key]) for key in self} })"

    def sent(self, inputs: FrameInputs, *, watermark_us: int, now_us: int, timers: Sequence[Timer] = ()) -> bytes:
        """Encoded `StateEntries` for these records, without what has expired, which is forgotten. `timers`: they are
        these, which see what expires with them."""
        if not timers:
            self._promise(watermark_us)
        numbers: dict[tuple[str, ...], int] = {}
        record_keys = array("I", [numbers.setdefault(key, len(numbers)) for key in inputs.keys])
        places = {name: place for place, name in enumerate(self._specs)}
        rows: list[tuple[int, int, bytes, _Stored]] = []
        for key, number in numbers.items():
            entries, until_us = self._entries.get(key, {}), {"event": watermark_us, "processing": now_us}
            if timers:
                until_us[timers[number].clock] = timers[number].at_us - 1
            for (name, item), stored in list(entries.items()):
                if self._specs[name].kind == TIMER:
                    continue
                if stored.expires_us and stored.expires_us <= until_us[self._specs[name].lifetime.clock]:
                    del entries[name, item]
                elif not self._specs[name].lazy:
                    rows.append((number, places[name], item, stored))
        rows.sort(key=lambda row: row[:3])
        return pack_entries(
            StateEntries(
                record_keys,
                array("I", [row[0] for row in rows]),
                bytes(row[1] for row in rows),
                [row[2] for row in rows],
                [row[3].value for row in rows],
                array("I", [row[3].version for row in rows]),
            )
        )

    def ask(self, inputs: FrameInputs) -> Ask:
        """Reads of a call with these records, after `sent`. A page is short, so that what reads several is tested."""
        keys, names = list(dict.fromkeys(inputs.keys)), list(self._specs)

        def asked(read: udf_pb2.StateRead) -> Future[Found]:
            entries, name = self._entries.get(keys[read.key], {}), names[read.state]
            items: Sequence[bytes] = read.items
            if not items:
                found = sorted(item for state, item in entries if state == name and item >= read.first)
                items = [item for item in found if not read.end or item < read.end]
            most = min(read.entries_max or _PAGE_ITEMS, _PAGE_ITEMS)
            stored = [(item, entries[name, item]) for item in items[:most] if (name, item) in entries]
            answer: Future[Found] = Future()
            answer.set_result(
                Found(
                    [item for item, _ in stored],
                    [] if read.items_only else [one.value for _, one in stored],
                    [] if read.items_only else [one.version for _, one in stored],
                    covered=min(most, len(read.items)),
                    has_more=len(items) > most and not read.items,
                )
            )
            return answer

        return asked

    def commit(self, inputs: FrameInputs, changes: bytes) -> None:
        """Keep what a call has changed."""
        keys, specs = list(dict.fromkeys(inputs.keys)), list(self._specs.values())
        for key, state, item, value, expires_us in unpack_changes(changes):
            spec, entries = specs[state], self._entries.setdefault(keys[key], {})
            before = entries.pop((spec.name, item), None)
            if value is None:
                continue
            # A record of an earlier event time does not make it older.
            known_us = before.expires_us if before is not None and spec.lifetime.clock == "event" else 0
            lives_until_us = max(expires_us, known_us) if expires_us and known_us else expires_us
            entries[spec.name, item] = _Stored(value, spec.version, lives_until_us)


class KeyOfStates(MutableMapping[str, Any]):
    """What is remembered for one key, by name of the state: a value (where nothing is stored, its default), a
    dictionary, a list, or the number of a counter. Each is a copy: assign it to change what is remembered. Iterated, it
    has the names of which something is stored."""

    def __init__(
        self, specs: Mapping[str, StateSpec], entries: dict[tuple[str, ...], _Entries], key: tuple[str, ...]
    ) -> None:
        self._specs = specs
        self._all = entries
        self._key = key

    def __getitem__(self, name: str) -> Any:
        spec = self._spec(name)
        found = sorted((item, one) for (state, item), one in self._entries().items() if state == name)
        if spec.kind == MAP:
            return {spec.read_item(item): spec.read(one.value, one.version) for item, one in found}
        if spec.kind == TIMER:
            return {item.decode(): _timer(self._key, item, one.value) for item, one in found}
        if spec.kind == LIST:
            return [spec.read(one.value, one.version) for _, one in found]
        if spec.kind == COUNTER:
            return number_of(found[0][1].value) if found else 0
        return spec.read(found[0][1].value, found[0][1].version) if found else spec.fresh_default()

    def __setitem__(self, name: str, value: Any) -> None:
        spec = self._spec(name)
        if spec.kind == TIMER:
            written = {item.encode(): _time_of(one) for item, one in value.items()}
        elif spec.kind == MAP:
            written = {spec.write_item(item): spec.write(one) for item, one in value.items()}
        elif spec.kind == LIST:
            written = {number.to_bytes(8, "big"): spec.write(one) for number, one in enumerate(value)}
        else:
            written = {NO_ITEM: bytes_of(value) if spec.kind == COUNTER else spec.write(value)}
        self._forget(name)
        entries = self._all.setdefault(self._key, {})
        entries.update({(name, item): _Stored(data, spec.version) for item, data in written.items()})

    def __delitem__(self, name: str) -> None:
        self._spec(name)
        self._forget(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._entries()))

    def __len__(self) -> int:
        return len({name for name, _ in self._entries()})

    def __contains__(self, name: object) -> bool:
        return any(name == state for state, _ in self._entries())

    def __repr__(self) -> str:
        return repr(dict(self))

    def expires_us(self, name: str, item: Any = None) -> int:
        """When an entry expires, in microseconds since the epoch; 0: never. `item`: of a map, its item; of a list, its
        number. Raises `KeyError` if it is not stored."""
        spec = self._spec(name)
        place = spec.write_item(item) if spec.kind == MAP else NO_ITEM
        if spec.kind == LIST:
            place = sorted(one for state, one in self._entries() if state == name)[item]
        return self._entries()[name, place].expires_us

    def _entries(self) -> _Entries:
        return self._all.get(self._key, {})

    def _forget(self, name: str) -> None:
        entries = self._entries()
        for place in [place for place in entries if place[0] == name]:
            del entries[place]

    def _spec(self, name: str) -> StateSpec:
        try:
            return self._specs[name]
        except KeyError:
            raise KeyError(f"there is no state {name}; there are {', '.join(self._specs)}") from None


def _timer(keys: tuple[str, ...], name: bytes, stored: bytes) -> Timer:
    time = unpack_timer(stored)
    event_us = time.event_us if time.clock == PROCESSING or time.holds else time.at_us
    clock: Clock = "processing" if time.clock == PROCESSING else "event"
    return Timer(name.decode(), time.at_us, keys, clock=clock, event_time=event_us)


def _time_of(timer: Timer | datetime | int) -> bytes:
    """What is stored of a timer; of a time, of one by event time."""
    if not isinstance(timer, Timer):
        return pack_timer(TimerTime(EVENT, to_us(timer)))
    if timer.clock == "event" and timer.event_time_us < timer.at_us:
        return pack_timer(TimerTime(EVENT, timer.at_us, timer.event_time_us, holds=True))
    event_us = timer.event_time_us if timer.clock == "processing" else 0
    return pack_timer(TimerTime(CLOCKS[timer.clock], timer.at_us, event_us))


def kept_states(
    definition: Definition, given: KeptStates | Mapping[Any, Mapping[str, Any]] | None
) -> KeptStates | None:
    """The states for a run of a function; None if it has none. Raises `TypeError` if it has none and some are given."""
    if not definition.states and given is None:
        return None
    if not isinstance(given, KeptStates):
        return KeptStates(definition, given)
    given.check(definition)
    return given


def _definition_of(function: Any) -> Definition:
    """The definition of a function with states. Raises `TypeError` if it has none."""
    definition = function
    if not isinstance(definition, Definition):
        definition = define(function, getattr(function, "__name__", type(function).__name__))
    if not definition.states:
        raise TypeError(f"{definition.name} has no states")
    return definition


def _form(spec: StateSpec) -> tuple[Any, ...]:
    message = spec.message()
    return (message.kind, message.codec, message.item_codec)


def _parts(key: Keys | Iterable[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
