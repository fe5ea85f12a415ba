"""Steps of a changelog: entries of a state, as they are stored. Pure.

A step says what has changed, or what a range of slots contains. Above it: the state of a lane. Below it: the codec of
columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from millstream.limits import FRAME_BYTES_MAX
from millstream.wire.state.v1 import state_pb2
from millstream_udf import columns

STEP_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Bytes of the entries of a step, unless a single one has more."""
ENTRY_BYTES = 16
"""What an entry takes beside its key, item and value."""

_Column = TypeVar("_Column", list[Any], bytearray)


@dataclass(slots=True)
class Entries:
    """Entries by columns. The last four may be shorter than the others: the rest of the entries have no item, are not
    gone, never expire, and are of version 1."""

    keys: list[bytes] = field(default_factory=list)
    states: bytearray = field(default_factory=bytearray)
    values: list[bytes] = field(default_factory=list)
    """Empty for an entry that is gone."""
    items: list[bytes] = field(default_factory=list)
    deleted: bytearray = field(default_factory=bytearray)
    expires_us: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, key: bytes, state: int, item: bytes, value: bytes | None, expires_us: int, version: int) -> None:
        """`value`: None for an entry that is gone."""
        count = len(self.keys)
        self.keys.append(key)
        self.states.append(state)
        self.values.append(b"" if value is None else value)
        if item:
            _filled(self.items, count, b"").append(item)
        if value is None:
            _filled(self.deleted, count, 0).append(1)
        if expires_us:
            _filled(self.expires_us, count, 0).append(expires_us)
        if version != 1:
            _filled(self.versions, count, 1).append(version)

    def extend(self, other: Entries) -> None:
        """Add entries."""
        count = len(self.keys)
        self.keys += other.keys
        self.states += other.states
        self.values += other.values
        if other.items:
            _filled(self.items, count, b"").extend(other.items)
        if other.deleted:
            _filled(self.deleted, count, 0).extend(other.deleted)
        if other.expires_us:
            _filled(self.expires_us, count, 0).extend(other.expires_us)
        if other.versions:
            _filled(self.versions, count, 1).extend(other.versions)

    def fill(self) -> None:
        """Make all columns as long as the first one."""
        count = len(self.keys)
        _filled(self.items, count, b"")
        _filled(self.deleted, count, 0)
        _filled(self.expires_us, count, 0)
        _filled(self.versions, count, 1)

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(sum(map(len, column)) for column in (self.keys, self.items, self.values)) + ENTRY_BYTES * len(self)

    @property
    def is_plain(self) -> bool:
        """Whether none is gone, or has a time or a version."""
        return not (any(self.deleted) or any(self.expires_us)) and self.versions.count(1) == len(self.versions)

    def cut(self, count: int) -> None:
        """Keep the first ones."""
        for column in (self.keys, self.states, self.values, self.items, self.deleted, self.expires_us, self.versions):
            del column[count:]

    def __len__(self) -> int:
        return len(self.keys)


def _filled(column: _Column, count: int, default: Any) -> _Column:
    """The column, with `default` for each of the `count` entries that it does not have."""
    if len(column) < count:
        column.extend([default] * (count - len(column)))
    return column


@dataclass(frozen=True, slots=True)
class Step:
    """One step."""

    entries: Entries
    first_slot: int = 0
    slots: int = 0
    """How many slots the entries are the beginning of; 0 for changes."""
    continues: bool = False
    """Whether the entries are the rest of the slots of the steps before."""
    size: int = 0
    """Its bytes in the changelog."""

    @property
    def is_of_slots(self) -> bool:
        """Whether the entries are all that slots have, or a part of it; otherwise they are changes."""
        return bool(self.slots) or self.continues


def encode_steps(entries: Entries, first_slot: int = 0, slots: int = 0) -> Iterator[bytes]:
    """The steps that have these entries. With `slots`, they are everything that is in so many slots."""
    if len(entries) and entries.size <= STEP_BYTES_MAX:
        # Looking at each entry takes as long as encoding all of them.
        yield _encoded(entries, 0, len(entries), first_slot, slots, continues=False)
        return
    entries.fill()
    start = size = 0
    begun = slots
    for index in range(len(entries)):
        added = len(entries.keys[index]) + len(entries.items[index]) + len(entries.values[index]) + ENTRY_BYTES
        if index > start and size + added > STEP_BYTES_MAX:
            yield _encoded(entries, start, index, first_slot, slots, continues=slots < begun)
            start, size, first_slot, slots = index, 0, 0, 0
        size += added
    if slots or start < len(entries):
        yield _encoded(entries, start, len(entries), first_slot, slots, continues=slots < begun)


def _encoded(entries: Entries, start: int, stop: int, first_slot: int, slots: int, *, continues: bool) -> bytes:
    count = stop - start
    items, deleted = entries.items[start:stop], entries.deleted[start:stop]
    expires_us, versions = entries.expires_us[start:stop], entries.versions[start:stop]
    return state_pb2.Step(
        first_slot=first_slot,
        slots=slots,
        continues=continues,
        keys=columns.pack_bytes(entries.keys[start:stop]),
        states=bytes(entries.states[start:stop]),
        items=columns.pack_bytes(_filled(items, count, b"")) if any(items) else b"",
        values=columns.pack_bytes(entries.values[start:stop]),
        deleted=bytes(_filled(deleted, count, 0)) if any(deleted) else b"",
        expires_us=columns.pack_times(_filled(expires_us, count, 0)) if any(expires_us) else b"",
        versions=columns.pack_offsets(_filled(versions, count, 1)) if versions.count(1) < len(versions) else b"",
    ).SerializeToString()


def decode_step(data: bytes) -> Step:
    """The inverse of `encode_steps`, for one step. Columns that are absent are empty. Raises `ValueError` for
    bytes that are not a step."""
    try:
        message = state_pb2.Step.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not a step: {error}") from error
    keys = columns.unpack_bytes(message.keys)
    entries = Entries(
        keys,
        bytearray(message.states),
        columns.unpack_bytes(message.values),
        columns.unpack_bytes(message.items),
        bytearray(message.deleted),
        list(columns.unpack_times(message.expires_us)),
        list(columns.unpack_offsets(message.versions)),
    )
    needed = (entries.states, entries.values)
    absent = (entries.items, entries.deleted, entries.expires_us, entries.versions)
    if any(len(one) != len(keys) for one in needed) or any(one and len(one) != len(keys) for one in absent):
        raise ValueError(f"a step with {len(keys)} keys has columns of other lengths")
    return Step(entries, message.first_slot, message.slots, message.continues, len(data))
