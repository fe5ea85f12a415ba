"""Entries of states on the wire: what is remembered for the keys of a call, and what has changed of it. Pure.

Above it: `key_states`, and the test kit, which packs entries as a vertex does. Below it: the column codecs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.fields import field
from millstream_udf.wire.udf.v1 import udf_pb2

NO_ITEM = b""
"""The item of a value and of a counter."""


class StateEntries(NamedTuple):
    """What is remembered for the keys of a call."""

    record_keys: Sequence[int]
    """For each record, the index of its key."""
    keys: Sequence[int]
    """For each entry, the index of its key."""
    states: bytes
    """And that of its state."""
    items: Sequence[bytes] | None
    """None: no state has items."""
    values: Sequence[bytes]
    versions: Sequence[int] | None
    """None: all are of version 1."""


Change = tuple[int, int, bytes, bytes | None, int]
"""One changed entry: the indexes of its key and of its state, its item, its value (None: it was deleted), and when it
expires, in microseconds (0: never)."""


def unpack_entries(data: bytes, records: int, states: int) -> StateEntries:
    """The entries of a call with so many records, for a function with so many states. Raises `ValueError`."""
    if not data:
        raise ValueError(
            "the call has nothing of the function's states: this Millstream does not know functions with states; "
            "install the release of the SDK"
        )
    try:
        sealed = udf_pb2.SealedStateEntries.FromString(data)
    except DecodeError as error:
        raise ValueError(f"{len(data)} bytes are not entries of states: {error}") from error
    record_keys, keys = columns.unpack_offsets(sealed.record_keys), columns.unpack_offsets(sealed.keys)
    items = columns.unpack_bytes(sealed.items) if sealed.items else None
    values = columns.unpack_bytes(sealed.values)
    versions = columns.unpack_offsets(sealed.versions) if sealed.versions else None
    if len(record_keys) != records:
        raise ValueError(f"the entries of states have keys for {len(record_keys)} records, the call has {records}")
    for what, found in (("states", sealed.states), ("values", values), ("items", items), ("versions", versions)):
        if found is not None and len(found) != len(keys):
            raise ValueError(f"{len(keys)} entries of states have {len(found)} {what}")
    if keys and (max(keys) > max(record_keys) or max(sealed.states) >= states):
        raise ValueError("an entry of a state has a key or a state that does not exist")
    return StateEntries(record_keys, keys, sealed.states, items, values, versions)


def pack_entries(entries: StateEntries) -> bytes:
    """The inverse of `unpack_entries`."""
    return udf_pb2.SealedStateEntries(
        record_keys=columns.pack_offsets(entries.record_keys),
        keys=columns.pack_offsets(entries.keys),
        states=entries.states,
        items=b"" if entries.items is None else columns.pack_bytes(entries.items),
        values=columns.pack_bytes(entries.values),
        versions=b"" if entries.versions is None else columns.pack_offsets(entries.versions),
    ).SerializeToString()


class Changes:
    """Changed entries, as they are collected, by columns."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.states = bytearray()
        self.items: list[bytes] = []
        self.values: list[bytes | None] = []
        self.expires_us: list[int] = []

    def add(self, key: int, state: int, item: bytes, value: bytes | None, expires_us: int) -> None:
        """Add one; see `Change`."""
        self.keys.append(key)
        self.states.append(state)
        self.items.append(item)
        self.values.append(value)
        self.expires_us.append(expires_us)

    def add_all(self, keys: Sequence[int], state: int, values: Sequence[bytes | None]) -> None:
        """Add entries of a state without items that never expire."""
        count = len(keys)
        self.keys += keys
        self.states += bytes([state]) * count
        self.items += [NO_ITEM] * count
        self.values += values
        self.expires_us += [0] * count


def pack_changes(changes: Changes, *, have_items: bool) -> bytes:
    """Encoded `StateChanges`; empty if there are none. `have_items`: the function has a map or a list."""
    if not changes.keys:
        return b""
    deleted, values = b"", changes.values
    if None in values:
        deleted = bytes([value is None for value in values])
        values = [b"" if value is None else value for value in values]
    return b"".join(
        [
            *field(1, columns.pack_offsets(changes.keys)),
            *field(2, bytes(changes.states)),
            *(field(3, columns.pack_bytes(changes.items)) if have_items else ()),
            *field(4, columns.pack_bytes(cast("list[bytes]", values))),
            *field(5, deleted),
            *(field(6, columns.pack_times(changes.expires_us)) if any(changes.expires_us) else ()),
        ]
    )


class ChangeColumns(NamedTuple):
    """Changed entries by columns. Those that are absent are empty."""

    keys: array[int]
    """For each entry, the index of its key."""
    states: bytes
    """And that of its state."""
    items: Sequence[bytes]
    """Absent: no state has items."""
    values: Sequence[bytes]
    deleted: bytes
    """1 for each entry that is gone. Absent: none is."""
    expires_us: array[int]
    """When each expires; 0: never. Absent: none does."""


def unpack_columns(data: bytes) -> ChangeColumns:
    """Encoded `StateChanges` by columns, which may have different lengths. Raises `ValueError`."""
    try:
        sealed = udf_pb2.SealedStateChanges.FromString(data)
    except DecodeError as error:
        raise ValueError(f"its changes do not decode: {error}") from error
    return ChangeColumns(
        columns.unpack_offsets(sealed.keys),
        sealed.states,
        columns.unpack_bytes(sealed.items),
        columns.unpack_bytes(sealed.values),
        sealed.deleted,
        columns.unpack_times(sealed.expires_us),
    )


def unpack_changes(data: bytes) -> list[Change]:
    """The inverse of `pack_changes`."""
    found = unpack_columns(data)
    count = len(found.keys)
    items, deleted = found.items or [NO_ITEM] * count, found.deleted or bytes(count)
    rows = zip(found.keys, found.states, items, found.values, deleted, found.expires_us or [0] * count, strict=True)
    return [(key, state, item, None if gone else value, expiry) for key, state, item, value, gone, expiry in rows]
