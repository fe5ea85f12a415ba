"""Every entry of a lane's state: what all images of it have in common, and the one in memory. Pure.

    load ─► entries as committed ─► put (a result) ─► took ─┬─► committed
                                                             └─► put what was before ─► undo

Entries are spread over slots by their key. A slot can be written anew as a whole, which is how a changelog becomes
shorter. Above it: the state of a lane. Below it: when entries are due.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, compress, repeat
from typing import Any, ClassVar, NamedTuple, cast
from zlib import crc32

from millstream.ledger.protocol import Witness
from millstream.limits import KIB
from millstream_vertex.keyed.agenda import Agenda, Due, HeapAgenda
from millstream_vertex.keyed.steps import ENTRY_BYTES, Entries, Step

SLOTS = 1024
"""Number of slots. It is stored, because the slots of a changelog have to be those of its reader."""
LAST_SLOT = SLOTS - 1
assert SLOTS & LAST_SLOT == 0
LARGE_KEY_BYTES = 64 * KIB
"""From so many bytes on, those of a key are counted with each change, and not anew."""


class Versioned(NamedTuple):
    """A value that expires, or is not of version 1."""

    value: bytes
    expires_us: int
    """0: never."""
    version: int


Stored = bytes | Versioned
"""A value. Most never expire and are of version 1, and need no object of their own."""


def stored_of(value: bytes, expires_us: int, version: int) -> Stored:
    """The value in its shortest form."""
    return Versioned(value, expires_us, version) if expires_us or version != 1 else value


def parts_of(stored: Stored) -> tuple[bytes, int, int]:
    """The value, when it expires, and its version."""
    # A plain tuple costs a third of an object.
    return (stored, 0, 1) if isinstance(stored, bytes) else stored


def stored_in(entries: Entries) -> Sequence[Stored | None]:
    """The value of each entry; None: it is gone."""
    if entries.is_plain:
        return entries.values
    entries.fill()
    columns = zip(entries.values, entries.deleted, entries.expires_us, entries.versions, strict=True)
    return [None if gone else stored_of(value, time_us, version) for value, gone, time_us, version in columns]


def rows_of(entries: Entries) -> Iterator[tuple[bytes, int, bytes, Stored | None]]:
    """Key, state, item and value of each entry; None: it is gone."""
    items: Iterable[bytes] = repeat(b"", len(entries))
    if entries.items:
        entries.fill()
        items = entries.items
    return zip(entries.keys, entries.states, items, stored_in(entries), strict=True)


def add_row(entries: Entries, key: bytes, state: int, item: bytes, stored: Stored | None) -> None:
    """Add an entry; None: it is gone."""
    if stored is None:
        entries.add(key, state, item, None, 0, 1)
    else:
        entries.add(key, state, item, *parts_of(stored))


def expires_us_of(stored: Stored | None) -> int:
    """When it expires; 0: never."""
    return stored.expires_us if type(stored) is Versioned else 0


class WrittenSlots(NamedTuple):
    """Slots that were written anew."""

    before: int
    """Sequence of the last frame before them: up to there, nothing of these slots is needed."""
    slots: int


class Position(NamedTuple):
    """How much of a changelog is in an image."""

    frame: Witness
    """The last frame."""
    written: Sequence[WrittenSlots]
    """The newest slots that were written, until they are all of them; the oldest first."""


class SlotCycle(NamedTuple):
    """How far slots have been written anew."""

    next_slot: int
    unwritten: int
    """Bytes of changes for which none have been written; negative: of those that are written ahead."""


class KeyedEntries(NamedTuple):
    """Entries of some keys, by columns."""

    keys: Sequence[int]
    """The index of the key of each."""
    states: bytes
    items: Sequence[bytes]
    """Empty: no state has items."""
    stored: Sequence[Stored]


class Image(ABC):
    """The entries of a lane. A state is known by its number."""

    cycle_results_max: ClassVar[int]
    """After so many results with changes, every slot has been written anew, however few bytes they had: the changelog
    then has a bounded number of messages. Each result then writes this part of the state at least."""
    size: int
    """Bytes of all entries."""
    sizes: list[int]
    """Bytes of the entries of each slot."""
    grown: set[bytes]
    """Keys of which an entry has become larger, until they are cleared."""
    large_keys: dict[bytes, int]
    """Bytes of large keys that were counted."""

    @abstractmethod
    def add_state(self, *, has_items: bool) -> None:
        """Add the next state, without entries. `has_items`: it is a map or a list."""

    @abstractmethod
    def agenda(self, state: int) -> Agenda:
        """When the entries of a state are due: all that have a time."""

    @abstractmethod
    def of_key(self, key: bytes) -> Iterator[tuple[int, bytes, Stored]]:
        """State, item and value of each entry of a key, ordered by state and item."""

    def of_keys(self, keys: Sequence[bytes], left_out: Collection[int] = ()) -> KeyedEntries:
        """The entries of these keys, ordered by key, state and item, without those of some states."""
        found = [(number, *entry) for number, key in enumerate(keys) for entry in self.of_key_without(key, left_out)]
        if not found:
            return KeyedEntries((), b"", (), ())
        numbers, states, items, column = zip(*found, strict=True)
        return KeyedEntries(numbers, bytes(states), list(items), list(column))

    def of_key_without(self, key: bytes, states: Collection[int]) -> Iterator[tuple[int, bytes, Stored]]:
        """As `of_key`, without the entries of these states."""
        return (entry for entry in self.of_key(key) if entry[0] not in states)

    @abstractmethod
    def items_from(self, state: int, key: bytes, first: bytes, end: bytes) -> Iterable[bytes]:
        """The items that a key has of a state with items, in order, from `first` to before `end` (empty: to the last
        one). A list stays as it is; anything else is read as it is used, and before anything changes."""

    def read_by_item(self, states: Collection[int]) -> None:
        """The entries of these states will be read one by one, and a key may have very many."""
        return

    @abstractmethod
    def of_slot(self, slot: int) -> Iterator[tuple[bytes, int, bytes, Stored]]:
        """Key, state, item and value of each entry of a slot."""

    def of_state(self, state: int) -> Iterator[tuple[bytes, bytes, Stored]]:
        """Key, item and value of each entry of a state."""
        for slot in range(SLOTS):
            for key, number, item, stored in self.of_slot(slot):
                if number == state:
                    yield key, item, stored

    @abstractmethod
    def get(self, state: int, key: bytes, item: bytes) -> Stored | None:
        """One entry."""

    @abstractmethod
    def put(self, state: int, key: bytes, item: bytes, stored: Stored | None) -> Stored | None:
        """Store an entry, or remove it (None). Returns what it was before."""

    def put_all(self, entries: Entries) -> Sequence[Stored | None]:
        """`put` for each of the entries, in order."""
        return [self.put(state, key, item, stored) for key, state, item, stored in rows_of(entries)]

    def largest_grown(self, at_least: int) -> int:
        """Bytes of the entries of that key of `grown` that has the most; 0 if none has more than `at_least`."""
        sizes = self.sizes
        # All keys of a slot together are rarely as large as a single one may be.
        crowded = (key for key in self.grown if sizes[crc32(key) & LAST_SLOT] > at_least)
        largest = max(map(self.size_of_key, crowded), default=0)
        return largest if largest > at_least else 0

    def size_of_key(self, key: bytes) -> int:
        """Bytes of the entries of a key."""
        size = self.large_keys.get(key)
        if size is None:
            size = sum(size_of(key, item, stored) for _, item, stored in self.of_key(key))
            if size >= LARGE_KEY_BYTES:
                self.large_keys[key] = size
        return size

    def _large_key_has_grown(self, key: bytes, grown: int) -> None:
        """An entry of a key in `large_keys` has become larger, or smaller."""
        self.large_keys[key] += grown
        if self.large_keys[key] < LARGE_KEY_BYTES:
            del self.large_keys[key]

    def entries_of(self, first_slot: int, slots: int) -> Entries:
        """Everything that is in a range of slots."""
        found = [
            entry for slot in range(first_slot, first_slot + slots) if self.sizes[slot] for entry in self.of_slot(slot)
        ]
        if not found:
            return Entries()
        keys, states, items, column = zip(*found, strict=True)
        values, expires_us, versions = zip(*map(parts_of, column), strict=True)
        return Entries(
            list(keys), bytearray(states), list(values), list(items), bytearray(), list(expires_us), list(versions)
        )

    # Reading the changelog.

    @abstractmethod
    def load(self, step: Step) -> None:
        """Do what a step of the changelog says. Sizes are right after `loaded`."""

    @abstractmethod
    def loaded(self) -> None:
        """Everything is loaded."""

    @property
    def kept(self) -> tuple[Position, SlotCycle] | None:
        """What was loaded or committed before this process, if the image is of that; None if it is empty."""
        return None

    @abstractmethod
    def start_over(self) -> None:
        """Forget what was kept or loaded: the changelog is read from its beginning."""

    def reached(self, position: Callable[[], Position], cycle: SlotCycle) -> None:
        """The changelog was loaded up to here."""
        return

    # What becomes of changes.

    def begin(self) -> None:
        """Results up to now stay."""
        return

    def took(self, changes: Entries, cycle: SlotCycle) -> None:
        """The changes since the last call are one result, which is about to be committed."""
        return

    def undo(self) -> None:
        """Results since `begin` are not committed; what they changed is put as it was."""
        return

    def committed(self, results: int, position: Callable[[], Position]) -> None:
        """The next results are committed. `position`: then, and until the next call."""
        return

    @property
    def is_behind(self) -> bool:
        """Whether nothing may be added before `store`."""
        return False

    def store(self) -> None:
        """Keep what is committed. Raises `StorageFullError`, after which nothing is lost."""
        return


class StateImage(Image):
    """The image in memory. It ends with its process."""

    # Its next owner reads all of these messages.
    cycle_results_max = 16_384

    def __init__(self) -> None:
        self._tables: list[dict[bytes, Any]] = []
        """For each state, the entries by key: a value, or the values by item."""
        self._slots: list[list[dict[bytes, None]]] = []
        """For each state and slot, the keys that have entries."""
        self._has_items: list[bool] = []
        self._agendas: list[HeapAgenda] = []
        self.sizes = [0] * SLOTS
        self.size = 0
        self.grown = set()
        self.large_keys = {}

    def add_state(self, *, has_items: bool) -> None:
        self._tables.append({})
        self._slots.append([{} for _ in range(SLOTS)])
        self._has_items.append(has_items)
        self._agendas.append(HeapAgenda(partial(self._is_due, len(self._agendas))))

    def agenda(self, state: int) -> HeapAgenda:
        return self._agendas[state]

    def _is_due(self, state: int, due: Due) -> bool:
        return expires_us_of(self.get(state, due.key, due.item)) == due.time_us

    def of_key(self, key: bytes) -> Iterator[tuple[int, bytes, Stored]]:
        return self.of_key_without(key, ())

    def of_key_without(self, key: bytes, states: Collection[int]) -> Iterator[tuple[int, bytes, Stored]]:
        for state, table in enumerate(self._tables):
            found = table.get(key)
            if found is None or state in states:
                continue
            if self._has_items[state]:
                for item in sorted(found):
                    yield state, item, found[item]
            else:
                yield state, b"", found

    def of_keys(self, keys: Sequence[bytes], left_out: Collection[int] = ()) -> KeyedEntries:
        states = [state for state in range(len(self._tables)) if state not in left_out]
        if any(self._has_items[state] for state in states) or not states:
            return super().of_keys(keys, left_out)
        # Most functions have one state. To look at an entry costs as much as all of the work on it otherwise.
        columns = [[*map(self._tables[state].get, keys)] for state in states]
        if len(columns) == 1:
            if None not in columns[0]:
                return KeyedEntries(range(len(keys)), bytes(states) * len(keys), (), cast("list[Stored]", columns[0]))
            numbers = [number for number, stored in enumerate(columns[0]) if stored is not None]
            column = [stored for stored in columns[0] if stored is not None]
            return KeyedEntries(numbers, bytes(states) * len(numbers), (), column)
        found = [
            (number, state, stored)
            for number, of_key in enumerate(zip(*columns, strict=True))
            for state, stored in zip(states, of_key, strict=True)
            if stored is not None
        ]
        return KeyedEntries([row[0] for row in found], bytes(row[1] for row in found), (), [row[2] for row in found])

    def items_from(self, state: int, key: bytes, first: bytes, end: bytes) -> list[bytes]:
        items: Collection[bytes] = self._tables[state].get(key, ())
        return sorted(item for item in items if first <= item and (not end or item < end))

    def get(self, state: int, key: bytes, item: bytes) -> Stored | None:
        found = self._tables[state].get(key)
        if found is None or not self._has_items[state]:
            return found
        value: Stored | None = found.get(item)
        return value

    def put(self, state: int, key: bytes, item: bytes, stored: Stored | None) -> Stored | None:
        table = self._tables[state]
        if self._has_items[state]:
            items = table.get(key)
            if items is None:
                items = {}
            before: Stored | None = _put(items, item, stored)
            _put(table, key, items or None)
        else:
            before = _put(table, key, stored)
        self._changed(state, key, item, before, stored)
        if type(stored) is Versioned and stored.expires_us:
            self._agendas[state].add(stored.expires_us, key, item)
        return before

    def _changed(self, state: int, key: bytes, item: bytes, before: Stored | None, stored: Stored | None) -> None:
        """Count what an entry has grown by, and note in its slot whether its key has entries."""
        slot = crc32(key) & LAST_SLOT
        if (before is None) is not (stored is None):
            if key in self._tables[state]:
                self._slots[state][slot][key] = None
            else:
                del self._slots[state][slot][key]
        if grown := size_of(key, item, stored) - size_of(key, item, before):
            self.sizes[slot] += grown
            self.size += grown
            if grown > 0:
                self.grown.add(key)
            if key in self.large_keys:
                self._large_key_has_grown(key, grown)

    def put_all(self, entries: Entries) -> Sequence[Stored | None]:
        states = set(entries.states)
        if not entries.is_plain or any(self._has_items[state] for state in states):
            return super().put_all(entries)
        if len(states) == 1:
            return self._put_values(states.pop(), entries.keys, entries.values)
        befores: list[Stored | None] = [None] * len(entries)
        for state in states:
            places = [place for place, one in enumerate(entries.states) if one == state]
            keys, values = [*map(entries.keys.__getitem__, places)], [*map(entries.values.__getitem__, places)]
            for place, before in zip(places, self._put_values(state, keys, values), strict=True):
                befores[place] = before
        return befores

    def _put_values(self, state: int, keys: Sequence[bytes], values: Sequence[bytes]) -> Sequence[Stored | None]:
        """`put` for values of a state without items, which never expire and are of version 1."""
        table, newest = self._tables[state], dict(zip(keys, values, strict=True))
        if len(newest) < len(keys):
            return [self.put(state, key, b"", value) for key, value in zip(keys, values, strict=True)]
        befores: list[Any] = [*map(table.get, keys)]
        table.update(newest)
        if set(map(type, befores)) != {bytes} or [*map(len, befores)] != [*map(len, values)]:
            for key, before, value in zip(keys, befores, values, strict=True):
                self._changed(state, key, b"", before, value)
        return befores

    def entries_of(self, first_slot: int, slots: int) -> Entries:
        found = Entries()
        for state, table in enumerate(self._tables):
            keys = [*chain.from_iterable(self._slots[state][first_slot : first_slot + slots])]
            column = [*map(table.__getitem__, keys)]
            if self._has_items[state] or not set(map(type, column)) <= {bytes}:
                return super().entries_of(first_slot, slots)
            found.extend(Entries(keys, bytearray([state]) * len(column), column))
        return found

    def start_over(self) -> None:
        self.large_keys.clear()
        for table in self._tables:
            table.clear()
        for keys in chain.from_iterable(self._slots):
            keys.clear()
        for agenda in self._agendas:
            agenda.keep(lambda due: False)

    def load(self, step: Step) -> None:
        entries = step.entries
        for table, slots in zip(self._tables, self._slots, strict=True):
            for keys in slots[step.first_slot : step.first_slot + step.slots]:
                for key in keys:
                    del table[key]
                keys.clear()
        states = set(entries.states)
        is_plain = not (entries.items or entries.deleted or entries.expires_us or entries.versions)
        if is_plain and not any(self._has_items[state] for state in states):
            for state in states:
                chosen = [one == state for one in entries.states]
                added, of_state = [*compress(entries.keys, chosen)], self._slots[state]
                self._tables[state].update(zip(added, compress(entries.values, chosen), strict=True))
                for key in added:
                    of_state[crc32(key) & LAST_SLOT][key] = None
            return
        for key, state, item, stored in rows_of(entries):
            self.put(state, key, item, stored)

    def loaded(self) -> None:
        # In the order of the entries, which is that of their memory.
        self.sizes = [0] * SLOTS
        for table, has_items in zip(self._tables, self._has_items, strict=True):
            for key, content in table.items():
                if has_items:
                    size = sum(size_of(key, item, one) for item, one in content.items())
                elif type(content) is bytes:
                    size = len(key) + len(content) + ENTRY_BYTES
                else:
                    size = size_of(key, b"", content)
                self.sizes[crc32(key) & LAST_SLOT] += size
        self.size = sum(self.sizes)
        self.large_keys.clear()

    def of_slot(self, slot: int) -> Iterator[tuple[bytes, int, bytes, Stored]]:
        for state, table in enumerate(self._tables):
            for key in self._slots[state][slot]:
                if self._has_items[state]:
                    for item, stored in table[key].items():
                        yield key, state, item, stored
                else:
                    yield key, state, b"", table[key]

    def of_state(self, state: int) -> Iterator[tuple[bytes, bytes, Stored]]:
        has_items = self._has_items[state]
        for key, found in self._tables[state].items():
            for item, stored in found.items() if has_items else ((b"", found),):
                yield key, item, stored


def _put(into: dict[bytes, Any], name: bytes, found: Any) -> Any:
    """Store under a name, or remove it (None). Returns what it was before."""
    before = into.get(name)
    if found is not None:
        into[name] = found
    elif before is not None:
        del into[name]
    return before


def size_of(key: bytes, item: bytes, stored: Stored | None) -> int:
    """Bytes of an entry; 0 for none."""
    if stored is None:
        return 0
    return len(key) + len(item) + len(stored if isinstance(stored, bytes) else stored.value) + ENTRY_BYTES
