"""Reads a log back: which segments belong to it, where it ends, and every entry in order. Blocking, read only.

Above it: the opening of a log, and `millstream wal`. Below it: segments. `Contents` knows what the entries mean.

The newest segment's header says which segments must exist, how long each is, and with which one reading begins. So:

1. a segment that the header does not name is left over from a deletion that a crash interrupted;
2. a named segment that is missing, too short, of another log, or unreadable anywhere, is damage;
3. the newest segment ends with its last complete entry. What follows was torn by a crash and never reported durable,
   unless a complete entry after it proves the contrary: then it is damage, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from millstream import codes
from millstream.errors import DamageError
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log import damage
from millstream_reduce.log.entries import FORMAT, EntryError, StoredEntry, read_entry, whole_entries
from millstream_reduce.log.segments import (
    Header,
    LogIdentity,
    check_owner,
    check_same_log,
    mapped,
    read_header,
    segment_numbers,
    segment_path,
)
from millstream_reduce.values import Location


class Reader(Protocol):
    """Receives the contents of a log, in order."""

    def begin(self, header: wal_pb2.Segment) -> None:
        """A segment begins. The first call comes before any entry; later ones repeat what the entries said."""

    def replay(self, entry: wal_pb2.Entry, location: Location, body: memoryview) -> None:
        """An entry. The body may be kept; it is a view of the mapped file."""


@dataclass(slots=True)
class LogEnd:
    """The end of a log that was read."""

    log_id: bytes
    newest: int
    """Number of the newest segment; 0 for a log without segments."""
    first: int
    """Number of the segment with which reading began."""
    sequence: int
    """Log sequence number of the last entry."""
    lengths: dict[int, int] = field(default_factory=dict)
    """Bytes of each segment that belongs to the log, rising by number; for the newest one, up to its last complete
    entry."""
    left_over: list[int] = field(default_factory=list)
    """Segments that exist but no longer belong to the log."""
    format: int = FORMAT
    """Of the newest segment; no other is of a later one."""


def read_log(directory: Path, identity: LogIdentity | None, reader: Reader) -> LogEnd:
    """Read the whole log. Raises `DamageError`, and what `check_owner` raises where an identity is given."""
    numbers = segment_numbers(directory)
    if not numbers:
        return LogEnd(log_id=b"", newest=0, first=1, sequence=0)
    newest_path = segment_path(directory, numbers[-1])
    with mapped(newest_path) as data:
        newest = read_header(newest_path, data).segment
    if identity is not None:
        check_owner(newest_path, newest, identity)
    lengths = {sealed.number: sealed.length for sealed in newest.sealed}
    end = LogEnd(
        log_id=newest.log_id,
        newest=newest.number,
        first=newest.first,
        sequence=0,
        lengths=lengths,
        left_over=[number for number in numbers if number not in lengths and number != newest.number],
        format=newest.format,
    )
    _check_present(directory, end)
    for number in (*lengths, newest.number):
        if number >= newest.first:
            _read_segment(directory, number, end, reader)
    return end


def _check_present(directory: Path, end: LogEnd) -> None:
    """Segments of which only rows are needed are read when their windows close; here, their lengths are checked."""
    newest_path = segment_path(directory, end.newest)
    for number, length in end.lengths.items():
        path = segment_path(directory, number)
        try:
            found = path.stat().st_size
        except FileNotFoundError:
            raise DamageError(
                codes.SEGMENT_MISSING, f"{path} is missing. {damage.affected(directory, number, 0, length)}"
            ) from None
        if found < length:
            raise DamageError(
                codes.SEGMENT_DAMAGED,
                f"{path} has {found} bytes, and {newest_path.name} says that it had {length}: it was truncated, or "
                f"replaced by an old copy. {damage.affected(directory, number, found, length)}",
            )
        if number < end.first:
            with mapped(path) as data:
                check_same_log(path, read_header(path, data).segment, end.log_id, newest_path)


def _read_segment(directory: Path, number: int, end: LogEnd, reader: Reader) -> None:
    path = segment_path(directory, number)
    sealed_length = end.lengths.get(number)
    with mapped(path) as whole:
        data = whole[:sealed_length]
        header = _checked_header(directory, path, data, end)
        end.sequence = header.sequence
        reader.begin(header.segment)
        try:
            for entry in entries_behind(data, header):
                reader.replay(_message(entry), Location(number, entry.offset, entry.length), entry.body)
                end.sequence = entry.sequence
        except EntryError as fault:
            proof = None if sealed_length is not None else proof_of_damage(data, fault.offset, end.sequence + 1)
            if sealed_length is not None or proof is not None:
                raise _damage(directory, path, number, fault, len(data), proof) from fault
            end.lengths[number] = fault.offset
        else:
            end.lengths[number] = len(data)


def _checked_header(directory: Path, path: Path, data: memoryview, end: LogEnd) -> Header:
    try:
        header = read_header(path, data)
    except DamageError as error:
        affected = damage.affected(directory, int(path.stem), 0, len(data))
        raise DamageError(error.code, f"{error}. {affected}") from error
    check_same_log(path, header.segment, end.log_id, segment_path(directory, end.newest))
    if end.sequence and header.sequence != end.sequence + 1:
        raise DamageError(
            codes.SEGMENT_MISPLACED,
            f"{path}: its first entry has the log sequence number {header.sequence}, and the previous segment ends "
            f"with {end.sequence}: one of the two was replaced by an old copy",
        )
    return header


def entries_behind(data: memoryview, header: Header) -> Iterator[StoredEntry]:
    """The entries after the header. Raises `EntryError` if there is no complete one, or not the next one."""
    offset, sequence = header.length, header.sequence
    while offset < len(data):
        entry = read_entry(data, offset)
        sequence += 1
        if entry.sequence != sequence:
            raise EntryError(offset, f"its log sequence number is {entry.sequence}, not {sequence}")
        yield entry
        offset = entry.end


def _message(entry: StoredEntry) -> wal_pb2.Entry:
    message = entry.message()
    if message.WhichOneof("kind") not in ("append", "hand_over"):
        raise EntryError(entry.offset, "an entry of a kind that does not belong here")
    return message


def proof_of_damage(data: memoryview, offset: int, sequence: int) -> int | None:
    """Sequence number of an entry after `offset` that shows that entry `sequence` had been durable."""
    for entry in whole_entries(data, offset):
        # Reused blocks may contain entries of an older file; their numbers are lower.
        if entry.sequence > sequence and entry.message().durable >= sequence:
            return entry.sequence
    return None


def _damage(directory: Path, path: Path, number: int, fault: EntryError, length: int, proof: int | None) -> DamageError:
    because = "the segment is sealed" if proof is None else f"entry {proof} after it shows that it had been durable"
    return DamageError(
        codes.SEGMENT_DAMAGED,
        f"{path}, offset {fault.offset}: {fault.reason}. It was not torn by a crash ({because}). "
        f"{damage.affected(directory, number, fault.offset, length)}. Nothing was skipped",
    )
