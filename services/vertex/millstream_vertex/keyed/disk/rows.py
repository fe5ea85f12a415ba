"""Entries as rows of a store: their names and their data. Pure.

    name of an entry     slot (2) | length of the key (1) | key | state (1) | kind (1) | item
    name of a time       state (1) | time (8) | name of the entry

The entries of a key follow each other, ordered by state and item, and so do the keys of a slot. Names have a limit, so
that of a long key or item has a digest in its place (length 255, kind 1), and the data then has both in full.

Above it: the store. Below it: nothing.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from zlib import crc32

from millstream_vertex.keyed.image import LAST_SLOT, SLOTS, Stored, Versioned, parts_of
from millstream_vertex.keyed.steps import ENTRY_BYTES

FORMAT = 1
"""Of rows and of the progress of a store. A store of another format is made anew."""
KEY_BYTES_MAX = 230
"""Longest key that is in a name."""
ITEM_BYTES_MAX = 240
"""Longest item that is in a name."""
NAME_BYTES_MAX = 511
"""Longest name that LMDB takes."""
_DIGEST_BYTES = 20
_TIME_BYTES = 8
assert 1 + _TIME_BYTES + 2 + 1 + KEY_BYTES_MAX + 2 + ITEM_BYTES_MAX <= NAME_BYTES_MAX
assert KEY_BYTES_MAX < 255

_SLOTS = [slot.to_bytes(2, "big") for slot in range(SLOTS)]
_LENGTHS = [bytes([length]) for length in range(256)]
_STATES = [bytes([state, 0]) for state in range(256)]
_LONG = 255
_TIMES, _NAMES = 1, 2
"""Bits of the first byte of data: it has an expiry and a version; it has key and item."""
_TIME = Struct("<qI")
_SIZES = Struct("<II")
_PLAIN = b"\0"
_TIME_OFFSET = 1 << 63
"""So that times are ordered as bytes."""


def slot_prefix(slot: int) -> bytes:
    """The beginning of the names of a slot."""
    return _SLOTS[slot]


def key_prefix(key: bytes) -> bytes:
    """The beginning of the names of a key."""
    if len(key) <= KEY_BYTES_MAX:
        return _SLOTS[crc32(key) & LAST_SLOT] + _LENGTHS[len(key)] + key
    return _SLOTS[crc32(key) & LAST_SLOT] + _LENGTHS[_LONG] + _digest(key)


def name_of(prefix: bytes, state: int, item: bytes) -> bytes:
    """The name of an entry. `prefix`: of its key."""
    if len(item) <= ITEM_BYTES_MAX:
        return prefix + _STATES[state] + item
    return long_items_prefix(prefix, state) + _digest(item)


def items_prefix(prefix: bytes, state: int) -> bytes:
    """The beginning of the names of a state that have an item in full, which are ordered by it. `prefix`: of its
    key."""
    return prefix + _STATES[state]


def long_items_prefix(prefix: bytes, state: int) -> bytes:
    """The beginning of the names of a state that have a digest in the place of the item; they follow the others."""
    return prefix + bytes([state, 1])


def after_state(prefix: bytes, state: int) -> bytes:
    """What is after the names of a state, and before those of the next one."""
    return prefix + bytes([state, 2])


def data_of(key: bytes, item: bytes, stored: Stored) -> bytes:
    """What is stored of an entry under its name."""
    is_long = len(key) > KEY_BYTES_MAX or len(item) > ITEM_BYTES_MAX
    if isinstance(stored, bytes) and not is_long:
        return _PLAIN + stored
    value, expires_us, version = parts_of(stored)
    names = _SIZES.pack(len(key), len(item)) + key + item if is_long else b""
    return bytes([_TIMES | (_NAMES if is_long else 0)]) + _TIME.pack(expires_us, version) + names + value


def stored_of(data: bytes) -> Stored:
    """The value of an entry."""
    kind = data[0]
    if not kind:
        return data[1:]
    start = 1 + _TIME.size
    if kind & _NAMES:
        start += _SIZES.size + sum(_SIZES.unpack_from(data, start))
    expires_us, version = _TIME.unpack_from(data, 1)
    return Versioned(data[start:], expires_us, version) if expires_us or version != 1 else data[start:]


def names_of(name: bytes, data: bytes) -> tuple[bytes, int, bytes]:
    """Key, state and item of an entry."""
    after = 3 + (_DIGEST_BYTES if name[2] == _LONG else name[2])
    if not data[0] & _NAMES:
        return name[3:after], name[after], name[after + 2 :]
    start = 1 + _TIME.size
    key_size, item_size = _SIZES.unpack_from(data, start)
    start += _SIZES.size
    return data[start : start + key_size], name[after], data[start + key_size : start + key_size + item_size]


def expires_us_in(data: bytes) -> int:
    """When an entry expires; 0: never."""
    expires_us: int = _TIME.unpack_from(data, 1)[0] if data[0] else 0
    return expires_us


def size_in(name: bytes, data: bytes) -> int:
    """Bytes of an entry, as the image counts them."""
    if not data[0]:
        after = 3 + name[2]
        # Without the slot, both lengths, the state and the first byte of the data.
        return after - 3 + len(name) - after - 2 + len(data) - 1 + ENTRY_BYTES
    key, _, item = names_of(name, data)
    return len(key) + len(item) + len(parts_of(stored_of(data))[0]) + ENTRY_BYTES


def time_name(state: int, time_us: int, name: bytes) -> bytes:
    """The name of the time of an entry."""
    return _LENGTHS[state] + (time_us + _TIME_OFFSET).to_bytes(_TIME_BYTES, "big") + name


def time_in(time_name: bytes) -> tuple[int, int, bytes]:
    """State, time and name of the entry."""
    time_us = int.from_bytes(time_name[1 : 1 + _TIME_BYTES], "big") - _TIME_OFFSET
    return time_name[0], time_us, time_name[1 + _TIME_BYTES :]


def times_prefix(state: int) -> bytes:
    """The beginning of the names of the times of a state."""
    return _LENGTHS[state]


def state_in(name: bytes) -> int:
    """The state of an entry."""
    return name[3 + (_DIGEST_BYTES if name[2] == _LONG else name[2])]


def _digest(part: bytes) -> bytes:
    return blake2b(part, digest_size=_DIGEST_BYTES).digest()
