"""Every entry of a lane's state, in memory. Pure.

Entries are spread over slots by their key. A slot can be written anew as a whole, which is how a changelog becomes
shorter. Above it: the state of a lane. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

from millstream_vertex.keyed.steps import ENTRY_BYTES, Entries, Step

SLOTS = 1024
"""Number of slots. It is stored, because the slots of a changelog have to be those of its reader."""
_LAST_SLOT = SLOTS - 1
assert SLOTS & _LAST_SLOT == 0


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


def parts_of(stored: Stored) -> Versioned:
    """The value with its expiry and its version."""
    return stored if isinstance(stored, Versioned) else Versioned(stored, 0, 1)


class StateImage:
    """The entries of a lane. A state is known by its number."""

    def __init__(self) -> None:
        self._tables: list[list[dict[bytes, Any]]] = []
        """For each state and slot, the entries by key: a value, or the values by item."""
        self._has_items: list[bool] = []
        self.sizes = [0] * SLOTS
        """Bytes of the entries of each slot."""
        self.size = 0
        """Bytes of all of them."""

    def add_state(self, *, has_items: bool) -> None:
        """Add the next state, without entries. `has_items`: it is a map or a list."""
        self._tables.append([{} for _ in range(SLOTS)])
        self._has_items.append(has_items)

    @property
    def states(self) -> int:
        """How many states there are."""
        return len(self._tables)

    def of_key(self, key: bytes) -> Iterator[tuple[int, bytes, Stored]]:
        """State, item and value of each entry of a key, ordered by state and item."""
        slot = crc32(key) & _LAST_SLOT
        for state, table in enumerate(self._tables):
            found = table[slot].get(key)
            if found is None:
                continue
            if self._has_items[state]:
                for item in sorted(found):
                    yield state, item, found[item]
            else:
                yield state, b"", found

    def size_of_key(self, key: bytes) -> int:
        """Bytes of the entries of a key."""
        return sum(_size(key, item, stored) for _, item, stored in self.of_key(key))

    def get(self, state: int, key: bytes, item: bytes) -> Stored | None:
        """One entry."""
        found = self._tables[state][crc32(key) & _LAST_SLOT].get(key)
        if found is None or not self._has_items[state]:
            return found
        value: Stored | None = found.get(item)
        return value

    def put(self, state: int, key: bytes, item: bytes, stored: Stored | None) -> Stored | None:
        """Store an entry, or remove it (None). Returns what it was before."""
        slot = crc32(key) & _LAST_SLOT
        entries = self._tables[state][slot]
        if self._has_items[state]:
            items = entries.get(key)
            if items is None:
                items = {}
            before: Stored | None = _put(items, item, stored)
            _put(entries, key, items or None)
        else:
            before = _put(entries, key, stored)
        grown = _size(key, item, stored) - _size(key, item, before)
        self.sizes[slot] += grown
        self.size += grown
        return before

    def load(self, step: Step) -> None:
        """Do what a step says. Sizes are right after `loaded`."""
        entries, tables = step.entries, self._tables
        for slot in range(step.first_slot, step.first_slot + step.slots):
            for table in tables:
                table[slot].clear()
        is_plain = not (entries.items or entries.deleted or entries.expires_us or entries.versions)
        if is_plain and not any(self._has_items[state] for state in set(entries.states)):
            for key, state, value in zip(entries.keys, entries.states, entries.values, strict=True):
                tables[state][crc32(key) & _LAST_SLOT][key] = value
            return
        count = len(entries)
        items, deleted = entries.items or [b""] * count, entries.deleted or bytes(count)
        expires_us, versions = entries.expires_us or [0] * count, entries.versions or [1] * count
        rows = zip(entries.keys, entries.states, items, entries.values, deleted, expires_us, versions, strict=True)
        for key, state, item, value, gone, expiry_us, version in rows:
            self.put(state, key, item, None if gone else stored_of(value, expiry_us, version))

    def loaded(self) -> None:
        """Everything is loaded: count the sizes."""
        self.sizes = [
            sum(_size(key, item, value) for key, _, item, value in self.of_slot(slot)) for slot in range(SLOTS)
        ]
        self.size = sum(self.sizes)

    def of_slot(self, slot: int) -> Iterator[tuple[bytes, int, bytes, Stored]]:
        """Key, state, item and value of each entry of a slot."""
        for state, table in enumerate(self._tables):
            if self._has_items[state]:
                for key, items in table[slot].items():
                    for item, stored in items.items():
                        yield key, state, item, stored
            else:
                for key, stored in table[slot].items():
                    yield key, state, b"", stored

    def of_state(self, state: int) -> Iterator[tuple[bytes, bytes, Stored]]:
        """Key, item and value of each entry of a state with items."""
        for entries in self._tables[state]:
            for key, items in entries.items():
                for item, stored in items.items():
                    yield key, item, stored

    def entries_of(self, first_slot: int, slots: int) -> Entries:
        """Everything that is in a range of slots."""
        entries = Entries()
        for slot in range(first_slot, first_slot + slots):
            if not self.sizes[slot]:
                continue
            for key, state, item, stored in self.of_slot(slot):
                value, expires_us, version = parts_of(stored)
                entries.add(key, state, item, value, expires_us, version)
        return entries


def _put(into: dict[bytes, Any], name: bytes, found: Any) -> Any:
    """Store under a name, or remove it (None). Returns what it was before."""
    before = into.get(name)
    if found is not None:
        into[name] = found
    elif before is not None:
        del into[name]
    return before


def _size(key: bytes, item: bytes, stored: Stored | None) -> int:
    if stored is None:
        return 0
    value = stored.value if isinstance(stored, Versioned) else stored
    return len(key) + len(item) + len(value) + ENTRY_BYTES
