"""An image of a lane's state that is larger than memory: a store, and in front of it the keys in use.

    of_key, get, put ─► the key, in memory ◄─ the store, the first time
                    └─► (states that are read by item) the changed items, in memory; others in the store
    took ─► results that are about to be committed ─► committed ─► written to the store, some together
                                                                   └─► keys that nothing changed since leave memory

The store has only what was committed, so a change that is taken back never was there. Above it: the state of a lane.
Below it: the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import merge
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import lmdb

from millstream import codes
from millstream.errors import InfrastructureError, StorageFullError
from millstream.limits import KIB, MIB
from millstream_vertex.keyed.agenda import Agenda, Due, HeapAgenda
from millstream_vertex.keyed.disk.directory import StoreDirectory, held_directory
from millstream_vertex.keyed.disk.store import Changes, KeyEntries, Store, StoreIdentity
from millstream_vertex.keyed.image import (
    LAST_SLOT,
    SLOTS,
    Image,
    Position,
    SlotCycle,
    Stored,
    Versioned,
    expires_us_of,
    rows_of,
    size_of,
)
from millstream_vertex.keyed.steps import Entries, Step

_log = logging.getLogger(__name__)

WRITTEN_FROM_BYTES = 256 * KIB
"""So many bytes of committed changes are written to the store at once. After a kill, these are read from the ledger. A
write of this size keeps the other lanes of the process waiting for some 15 ms."""
WRITTEN_FROM_RESULTS = 256
"""The same for results, if they are small: reading frames takes time, too."""
LOADED_FROM_BYTES = 1 * MIB
"""The same while a changelog is read."""
IN_USE_BYTES_MAX = 16 * MIB
"""Bytes of keys that were read from the store and stay in memory until more are read."""
_KEY_BYTES = 512
"""What a key takes in memory beside its entries."""
_ChangedItems = dict[tuple[int, bytes], tuple[Stored | None, int]]
"""By state and item: what it is, None if it is gone, and the last result that has changed it."""


class _Result(NamedTuple):
    """A result that is not committed."""

    number: int
    changes: Entries
    cycle: SlotCycle


class _Results:
    """The results that are not committed."""

    def __init__(self) -> None:
        self._made: deque[_Result] = deque()
        """The oldest first."""
        self._kept = 0
        """How many of them `undo` leaves."""
        self.number = 0
        """Of the result that is being made."""

    def begin(self) -> None:
        """Those up to now stay."""
        self._kept = len(self._made)

    def add(self, changes: Entries, cycle: SlotCycle) -> None:
        """One is made."""
        self._made.append(_Result(self.number, changes, cycle))
        self.number += 1

    def undo(self) -> None:
        """Those since `begin` are not committed."""
        while len(self._made) > self._kept:
            self._made.pop()

    def take(self) -> _Result:
        """The oldest one is committed."""
        self._kept = max(0, self._kept - 1)
        return self._made.popleft()


@dataclass(slots=True)
class _Loaded:
    """Steps of the changelog that are not in the store."""

    steps: list[Step] = field(default_factory=list)
    size: int = 0
    """Their bytes."""
    is_whole: bool = False
    """Whether they, with what the store had before, are everything up to a position."""


@dataclass(slots=True)
class _Committed:
    """What is committed, and not in the store."""

    changes: Changes = field(default_factory=dict)
    size: int = 0
    """Bytes of the results that it is from."""
    results: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether it is written to the store."""
        return self.size >= WRITTEN_FROM_BYTES or self.results >= WRITTEN_FROM_RESULTS


class DiskImage(Image):
    """The image over a store. Made by `open_disk_image`."""

    # A part of a state of many GiB is much, and few of these messages are read.
    cycle_results_max = 163_840

    def __init__(self, store: Store) -> None:
        self._store = store
        self.sizes = store.sizes.copy()
        self.size = sum(self.sizes)
        self.grown = set()
        self.large_keys = {}
        self._slots: list[dict[bytes, KeyEntries]] = [{} for _ in range(SLOTS)]
        """The keys in memory, with all of their entries, except for those of states that are read by item."""
        self._by_item: set[int] = set()
        """The states that are read by item."""
        self._changed_items: list[dict[bytes, _ChangedItems]] = [{} for _ in range(SLOTS)]
        """Their entries, by key, that the store does not have as they are."""
        self._agendas: list[_DiskAgenda] = []
        self._loaded = _Loaded(is_whole=store.kept is not None)
        self._is_read = False
        """Whether nothing more will be loaded."""
        self._is_loaded = False
        """Whether all of that is in the store."""
        self._results = _Results()
        self._changed: dict[bytes, int] = {}
        """Keys with changes that are not in the store: the last result that has changed each."""
        self._committed = _Committed()
        self._through = -1
        """The last result that is committed."""
        self._position: Callable[[], Position] | None = None
        """The position after it."""
        self._cycle = SlotCycle(0, 0)
        self._in_use_bytes = 0
        self._is_full = False
        """Whether the disk was full at the last attempt."""

    @property
    def kept(self) -> tuple[Position, SlotCycle] | None:
        return self._store.kept

    def add_state(self, *, has_items: bool) -> None:
        self._agendas.append(_DiskAgenda(self, self._store, len(self._agendas)))

    def agenda(self, state: int) -> Agenda:
        return self._agendas[state]

    def read_by_item(self, states: Collection[int]) -> None:
        for state in set(states) - self._by_item:
            self._by_item.add(state)
            for slot, keys in enumerate(self._slots):
                for key, entries in keys.items():
                    self._part_with_items(state, slot, key, entries)

    def _part_with_items(self, state: int, slot: int, key: bytes, entries: KeyEntries) -> None:
        """Let entries of a state leave a key that is in memory with all of them."""
        own = {name: entries.pop(name) for name in [name for name in entries if name[0] == state]}
        if (number := self._changed.get(key)) is not None:
            gone = {(state, item): None for item in self._store.items_from(key, state, b"", b"")}
            changed = self._changed_items[slot].setdefault(key, {})
            changed.update((name, (stored, number)) for name, stored in (gone | own).items())

    # Entries.

    def of_key(self, key: bytes) -> Iterator[tuple[int, bytes, Stored]]:
        entries = self._key(crc32(key) & LAST_SLOT, key)
        if not self._by_item:
            for name in sorted(entries) if len(entries) > 1 else entries:
                yield *name, entries[name]
            return
        by_item = [
            zip(repeat(state), self.items_from(state, key, b"", b""), strict=False) for state in sorted(self._by_item)
        ]
        for state, item in merge(sorted(entries), *by_item):
            stored = self.get(state, key, item)
            assert stored is not None, "it has it"
            yield state, item, stored

    def of_key_without(self, key: bytes, states: Collection[int]) -> Iterator[tuple[int, bytes, Stored]]:
        entries = self._key(crc32(key) & LAST_SLOT, key)
        # Before they are sorted: the others are few.
        for name in sorted([name for name in entries if name[0] not in states]):
            yield *name, entries[name]

    def items_from(self, state: int, key: bytes, first: bytes, end: bytes) -> Iterable[bytes]:
        slot = crc32(key) & LAST_SLOT
        if state not in self._by_item:
            items = (item for number, item in self._key(slot, key) if number == state)
            return sorted(item for item in items if first <= item and (not end or item < end))
        changed = self._changed_items[slot].get(key, {})
        own = {item: one for (number, item), (one, _) in changed.items() if number == state}
        added = sorted(item for item in own if own[item] is not None and first <= item and (not end or item < end))
        stored = (item for item in self._store.items_from(key, state, first, end) if item not in own)
        return merge(stored, added)

    def of_slot(self, slot: int) -> Iterator[tuple[bytes, int, bytes, Stored]]:
        in_memory, changed_items = self._slots[slot], self._changed_items[slot]
        for key, entries in in_memory.items():
            for (state, item), stored in entries.items():
                yield key, state, item, stored
        for key, items in changed_items.items():
            for (state, item), (one, _) in items.items():
                if one is not None:
                    yield key, state, item, one
        if self._store.sizes[slot]:
            for entry in self._store.of_slot(slot):
                key, state, item, _ = entry
                if (state, item) not in changed_items.get(key, ()) if state in self._by_item else key not in in_memory:
                    yield entry

    def get(self, state: int, key: bytes, item: bytes) -> Stored | None:
        slot = crc32(key) & LAST_SLOT
        if state not in self._by_item:
            return self._key(slot, key).get((state, item))
        changed = self._changed_items[slot].get(key)
        if changed is not None and (state, item) in changed:
            return changed[state, item][0]
        return self._store.get(key, state, item)

    def put(self, state: int, key: bytes, item: bytes, stored: Stored | None) -> Stored | None:
        slot, name = crc32(key) & LAST_SLOT, (state, item)
        if state in self._by_item:
            before = self.get(state, key, item)
            self._changed_items[slot].setdefault(key, {})[name] = stored, self._results.number
        else:
            entries = self._slots[slot].get(key)
            if entries is None:
                entries = self._key(slot, key)
            before = entries.get(name)
            if stored is not None:
                entries[name] = stored
            elif before is not None:
                del entries[name]
        self._changed[key] = self._results.number
        if grown := size_of(key, item, stored) - size_of(key, item, before):
            self.sizes[slot] += grown
            self.size += grown
            if grown > 0:
                self.grown.add(key)
            if key in self.large_keys:
                self._large_key_has_grown(key, grown)
        if type(stored) is Versioned and stored.expires_us:
            self._agendas[state].add(stored.expires_us, key, item)
        return before

    def _key(self, slot: int, key: bytes) -> KeyEntries:
        """The entries of a key, in memory from now on."""
        found = self._slots[slot].get(key)
        if found is None:
            found, size = self._store.of_key(key, self._by_item)
            self._slots[slot][key] = found
            self._in_use_bytes += size + _KEY_BYTES
        return found

    def _forget_keys(self) -> None:
        """Let keys leave memory that are in the store as they are."""
        before, self._slots, self._in_use_bytes = self._slots, [{} for _ in range(SLOTS)], 0
        for key in self._changed:
            slot = crc32(key) & LAST_SLOT
            if (entries := before[slot].get(key)) is None:
                # Only items of it were changed.
                continue
            self._slots[slot][key] = entries
            self._in_use_bytes += _KEY_BYTES + sum(size_of(key, item, stored) for (_, item), stored in entries.items())

    def _forget_items(self) -> None:
        """Let items leave memory that are in the store as they are: what is committed."""
        if not self._by_item:
            return
        for keys in self._changed_items:
            for key, items in list(keys.items()):
                kept = {name: one for name, one in items.items() if one[1] > self._through}
                if kept:
                    keys[key] = kept
                else:
                    del keys[key]

    # Reading the changelog.

    def start_over(self) -> None:
        self._store.start_over()
        self._loaded, self._position = _Loaded(), None
        self.sizes, self.size = self._store.sizes.copy(), 0

    def load(self, step: Step) -> None:
        self._loaded.steps.append(step)
        self._loaded.size += step.size

    def reached(self, position: Callable[[], Position], cycle: SlotCycle) -> None:
        self._position, self._cycle = position, cycle
        if self._loaded.size >= LOADED_FROM_BYTES:
            self._attempt()

    def loaded(self) -> None:
        self._loaded.is_whole = self._is_read = True
        if self._position is None:
            # There was nothing to load.
            self._is_loaded = True
        else:
            self._attempt()

    # Results.

    def begin(self) -> None:
        self._results.begin()
        if self._in_use_bytes > IN_USE_BYTES_MAX:
            self._forget_keys()

    def took(self, changes: Entries, cycle: SlotCycle) -> None:
        self._results.add(changes, cycle)

    def undo(self) -> None:
        self._results.undo()

    def committed(self, results: int, position: Callable[[], Position]) -> None:
        for _ in range(results):
            self._through, changes, self._cycle = self._results.take()
            self._committed.changes.update(
                ((key, state, item), stored) for key, state, item, stored in rows_of(changes)
            )
            self._committed.size += changes.size
        self._committed.results += results
        self._position = position
        if self._committed.is_enough and not self._is_full:
            self._attempt()

    @property
    def is_behind(self) -> bool:
        return self._is_full

    def _attempt(self) -> None:
        try:
            self.store()
        except StorageFullError:
            # Whoever adds something waits.
            self._is_full = True

    def store(self) -> None:
        if self._position is not None:
            kept = self._position(), self._cycle
            if not self._is_loaded:
                self._store.write_steps(self._loaded.steps, kept if self._loaded.is_whole else None)
                self._loaded, self._is_loaded = _Loaded(is_whole=self._loaded.is_whole), self._is_read
                self.sizes = self._store.sizes.copy()
                self.size = sum(self.sizes)
            if self._committed.changes:
                self._store.write(self._committed.changes, *kept)
                self._committed = _Committed()
            self._changed = {key: number for key, number in self._changed.items() if number > self._through}
            self._forget_keys()
            self._forget_items()
            for agenda in self._agendas:
                agenda.stored(self._changed)
        self._is_full = False


class _DiskAgenda:
    """The agenda of a state: the times in the store, and those of changes that are not there, in memory."""

    def __init__(self, image: DiskImage, store: Store, state: int) -> None:
        self._image = image
        self._store = store
        self._state = state
        self._changes = HeapAgenda(self._is_due)
        self._taken = b""
        """The last one of the store that was taken."""
        self._next: tuple[bytes, Due] | None = None
        """The one after it."""
        self._knows_next = False

    def _is_due(self, due: Due) -> bool:
        return expires_us_of(self._image.get(self._state, due.key, due.item)) == due.time_us

    @property
    def first_us(self) -> int | None:
        if not self._knows_next:
            self._next, self._knows_next = self._store.due(self._state, self._taken), True
        first_us = self._changes.first_us
        if self._next is None or (first_us is not None and first_us <= self._next[1].time_us):
            return first_us
        return self._next[1].time_us

    def add(self, time_us: int, key: bytes, item: bytes) -> None:
        self._changes.add(time_us, key, item)

    def take(self) -> Due:
        first_us = self.first_us
        if self._changes.first_us == first_us or self._next is None:
            return self._changes.take()
        self._taken, due = self._next
        self._knows_next = False
        return due

    def __len__(self) -> int:
        return len(self._changes)

    def stored(self, changed: dict[bytes, int]) -> None:
        """The store has everything but the changes of these keys."""
        self._changes.keep(lambda due: due.key in changed)
        self._taken, self._knows_next = b"", False


@asynccontextmanager
async def open_disk_image(parent: Path, identity: StoreIdentity, where: str) -> AsyncIterator[DiskImage]:
    """The image of a lane, with its store below `parent`. `where`: names the lane in messages. What is committed at the
    end is in the store then. Raises `InfrastructureError`."""
    try:
        with held_directory(parent) as directory:
            store = _opened(directory, identity, where)
            image = DiskImage(store)
            try:
                yield image
            finally:
                await _close(image, store, directory)
    except OSError as error:
        raise InfrastructureError(
            codes.CANNOT_WRITE, f"{where}: the store of its state in {parent} cannot be used: {error}"
        ) from error


def _opened(directory: StoreDirectory, identity: StoreIdentity, where: str) -> Store:
    why = directory.begin()
    for _ in range(2):
        try:
            store = Store(directory, identity, where)
        except lmdb.Error as error:
            why = f"it is damaged ({error})"
            directory.remove()
            continue
        try:
            store.read_progress()
        except ValueError as error:
            why = str(error)
            store.start_over()
        break
    else:
        raise InfrastructureError(codes.CANNOT_WRITE, f"{where}: a store in {directory.path} cannot be opened: {why}")
    if why:
        _log.info("%s: the store of its state is made anew: %s", where, why)
    return store


async def _close(image: DiskImage, store: Store, directory: StoreDirectory) -> None:
    """Close a store, which is behind if that fails."""
    if not store.is_open:
        # It was damaged.
        return
    try:
        image.store()
        # Its end waits for the thread, also if the task is cancelled: a store must not be closed meanwhile.
        with ThreadPoolExecutor(1, thread_name_prefix="store") as thread:
            await asyncio.get_running_loop().run_in_executor(thread, store.sync)
        store.close()
        directory.end()
    except (StorageFullError, InfrastructureError, OSError) as error:
        _log.info("a store is not closed: %s", error)
    finally:
        store.close()
