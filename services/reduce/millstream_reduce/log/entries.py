"""Entries of the log: encoding, reading, finding. Pure; the format is described in
`proto/millstream/reduce/v1/wal.proto`.

Above it: the log, and the engine's tasks, which map a segment and read the entries they were given. It deliberately
imports nothing that a task would not load anyway.

    pieces = entry_buffers(sequence, meta, body)        # what one writev writes, and nothing is copied
    entry = read_entry(memoryview(segment), offset)     # checked; meta and body are views
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from millstream.wire.reduce.v1 import wal_pb2

FORMAT = 4
FORMATS = frozenset({1, 2, 3, FORMAT})
"""Formats that can be read: `proto/millstream/reduce/v1/wal.proto` says how they differ."""
KEYS_FORMAT = 4
"""In earlier formats, several keys may have the same name: see `millstream_reduce.group_keys`."""
MAGIC = b"MSWE"
ALIGNMENT = 64
"""Lengths of entries and offsets of bodies are multiples of it, as Arrow requires of mapped buffers."""

_HEAD = struct.Struct("<4sIQQIIQ")
_CHECKED_HEAD = struct.Struct("<QQIIQ")
_CHECKED_FROM = 8
"""The CRC covers everything after itself."""
_ZEROS = bytes(ALIGNMENT)

assert _HEAD.size == _CHECKED_FROM + _CHECKED_HEAD.size


class StoredEntry(NamedTuple):
    """An entry as it is stored in a segment, checked."""

    sequence: int
    offset: int
    length: int
    """Bytes of the whole entry."""
    meta: memoryview
    body: memoryview
    """The encapsulated Arrow IPC message; empty if there is none."""

    @property
    def end(self) -> int:
        return self.offset + self.length

    def message(self) -> wal_pb2.Entry:
        """The decoded meta. Raises `EntryError` for bytes that are not one."""
        try:
            return wal_pb2.Entry.FromString(bytes(self.meta))
        except DecodeError as error:
            raise EntryError(self.offset, f"its meta cannot be decoded: {error}") from error


class EntryError(ValueError):
    """There is no complete entry here. The text says why."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


def segment_name(number: int) -> str:
    """File name of a segment, inside the log's directory."""
    return f"{number:016d}.wal"


def segment_number(name: str) -> int | None:
    """Inverse of `segment_name`; None for other files."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if (dot, suffix) == (".", "wal") and len(stem) == 16 and stem.isdecimal() else None


def aligned(length: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def entry_length(meta_length: int, body_length: int) -> int:
    """Bytes of the whole entry."""
    return aligned(_HEAD.size + meta_length) + aligned(body_length)


def entry_buffers(sequence: int, meta: bytes, body: memoryview | bytes) -> list[memoryview | bytes]:
    """The parts of an entry, in order; `body` is not copied."""
    before_body = aligned(_HEAD.size + len(meta))
    length = before_body + aligned(len(body))
    checked = _CHECKED_HEAD.pack(length, sequence, len(meta), before_body if body else 0, len(body))
    front = b"".join((checked, meta, _ZEROS[: before_body - _HEAD.size - len(meta)]))
    back = _ZEROS[: aligned(len(body)) - len(body)]
    crc = zlib.crc32(back, zlib.crc32(body, zlib.crc32(front)))
    return [part for part in (MAGIC + crc.to_bytes(4, "little") + front, body, back) if part]


def read_entry(segment: memoryview, offset: int, *, check: bool = True) -> StoredEntry:
    """The entry at `offset`. Raises `EntryError` if there is no complete one.

    Without `check` the CRC is not computed, for a reader that only looks for the places of entries.
    """
    room = len(segment) - offset
    if room < _HEAD.size:
        raise EntryError(offset, f"only {room} bytes are left; an entry has at least {ALIGNMENT}")
    magic, crc, length, sequence, meta_length, body_offset, body_length = _HEAD.unpack_from(segment, offset)
    if magic != MAGIC:
        raise EntryError(offset, f"an entry begins with {MAGIC!r}, not {bytes(magic)!r}")
    if length > room:
        raise EntryError(offset, f"the entry has {length} bytes, of which only {room} exist")
    expected_offset = aligned(_HEAD.size + meta_length) if body_length else 0
    if length != entry_length(meta_length, body_length) or body_offset != expected_offset:
        raise EntryError(offset, f"the lengths {length}, {meta_length} and {body_length} contradict each other")
    if check and zlib.crc32(segment[offset + _CHECKED_FROM : offset + length]) != crc:
        raise EntryError(offset, f"the checksum of its {length} bytes is wrong")
    meta_start = offset + _HEAD.size
    body_start = offset + body_offset
    return StoredEntry(
        sequence=sequence,
        offset=offset,
        length=length,
        meta=segment[meta_start : meta_start + meta_length],
        body=segment[body_start : body_start + body_length],
    )


def whole_entries(segment: memoryview, offset: int) -> Iterator[StoredEntry]:
    """Every complete entry from `offset` on, wherever one begins: what can be read after damage."""
    while (offset := _next_magic(segment, offset)) >= 0:
        try:
            entry = read_entry(segment, offset)
        except EntryError:
            offset += ALIGNMENT
        else:
            yield entry
            offset = entry.end


def _next_magic(segment: memoryview, offset: int) -> int:
    """The next multiple of `ALIGNMENT` at which an entry seems to begin; -1 without any."""
    for position in range(aligned(offset), len(segment) - _HEAD.size + 1, ALIGNMENT):
        if segment[position : position + len(MAGIC)] == MAGIC:
            return position
    return -1
