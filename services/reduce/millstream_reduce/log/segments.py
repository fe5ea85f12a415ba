"""Segments as files: lists them, maps them, reads their headers, and decides which process may write.

Above it: recovery, the writer and `millstream wal`. Below it: files, read only, except for the names of owners.

    <log>/0000000000000001.wal      a segment
    <log>/.…new                     a segment that has no name yet
    <log>/owners/<epoch>            who writes, or wrote

There is no lock file. A lock held by a paused process would block the lane, and one on a network volume may not be
honoured. Instead an owner first creates a file with its epoch in `owners/`, then reads the log, then seals what it read
by beginning a segment, whose number no other process can take. The previous owner checks `owners/` after each fsync,
before it reports anything as durable: either its entries were in the file before the new owner read it, or it sees the
new owner and reports none of them as durable.
"""

from __future__ import annotations

import mmap
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millstream import codes
from millstream.durable import step
from millstream.errors import DamageError, FencedError, UserError
from millstream.files import append_private, make_private_directories, open_private
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.entries import (
    FORMAT,
    FORMATS,
    EntryError,
    StoredEntry,
    read_entry,
    segment_name,
    segment_number,
)

OWNERS = "owners"
UNNAMED_SUFFIX = ".new"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Identifies a log, and the epoch under which it is opened."""

    pipeline: str
    vertex: str
    partition: int
    epoch: int
    """Epoch of the lane's mark. It is taken over before the log is opened, so that no other process can commit any
    more."""
    ledger_id: str
    """Id of the ledger that contains the mark."""

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.vertex}/window.{self.partition}"


@dataclass(frozen=True, slots=True)
class Header:
    """The first entry of a segment."""

    segment: wal_pb2.Segment
    sequence: int
    length: int
    """Bytes of the entry; the other entries of the segment follow."""


def segment_numbers(directory: Path) -> list[int]:
    """Numbers of the segments that exist, rising."""
    numbers = (segment_number(name) for name in os.listdir(directory))
    return sorted(number for number in numbers if number is not None)


def segment_path(directory: Path, number: int) -> Path:
    return directory / segment_name(number)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The current bytes of a file, without copying them. All views of it must be gone at the end.

    Raises `DamageError` if it is not a file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DamageError(codes.SEGMENT_MISPLACED, f"{path} is not a file, but has the name of a segment")
        length = status.st_size
        if length == 0:
            yield memoryview(b"")
            return
        pages = mmap.mmap(descriptor, length, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    # Not closed explicitly: Arrow may still refer to a part of it, and the pages are released with the last view.
    yield memoryview(pages)


def read_header(path: Path, data: memoryview) -> Header:
    """The header of the segment at `path`. Raises `DamageError` if there is no complete one."""
    try:
        header = header_of(read_entry(data, 0))
    except EntryError as fault:
        raise DamageError(
            codes.SEGMENT_DAMAGED, f"{path}: the header of the segment is damaged ({fault.reason})"
        ) from fault
    if header.segment.format not in FORMATS:
        raise UserError(
            codes.OTHER_VERSION,
            f"{path} was written in format {header.segment.format}, this version reads up to {FORMAT}: use the version "
            f"that wrote it",
        )
    if segment_name(header.segment.number) != path.name:
        raise DamageError(
            codes.SEGMENT_MISPLACED,
            f"{path}: its header says that it is segment {header.segment.number}: it was renamed or copied",
        )
    return header


def header_of(entry: StoredEntry) -> Header:
    """Raises `EntryError` if the entry is not a header."""
    message = entry.message()
    if message.WhichOneof("kind") != "segment":
        raise EntryError(entry.offset, "the entry is not the header of a segment")
    return Header(message.segment, entry.sequence, entry.length)


def check_same_log(path: Path, segment: wal_pb2.Segment, log_id: bytes, other: Path) -> None:
    """Raises `DamageError` if a segment belongs to another log than `other`."""
    if segment.log_id != log_id:
        raise DamageError(
            codes.SEGMENT_MISPLACED,
            f"{path} is a segment of another log ({segment.pipeline}/{segment.vertex}/window.{segment.partition}, id "
            f"{segment.log_id.hex()}; {other.name} has the id {log_id.hex()}): restore the right file, or remove the "
            "wrong one",
        )


def check_owner(path: Path, segment: wal_pb2.Segment, identity: LogIdentity) -> None:
    """Raises `UserError` for a log of another pipeline or lane, `FencedError` for one that has a newer owner."""
    found = f"{segment.pipeline}/{segment.vertex}/window.{segment.partition}"
    if found != str(identity):
        raise UserError(
            codes.LOG_OF_ANOTHER,
            f"{path.parent} contains the log of {found}, not that of {identity}: give each its own directory",
        )
    if segment.ledger_id != identity.ledger_id:
        raise UserError(
            codes.LOG_OF_ANOTHER,
            f"{path.parent} contains the log of another run of {identity}, whose ledger is missing; positions have a "
            "different meaning now. Remove the directory to start over, or restore the ledger",
        )
    if segment.epoch > identity.epoch:
        raise FencedError(
            codes.LOG_TAKEN_OVER,
            f"{identity}: {path.parent} has a newer owner (epoch {segment.epoch}, ours is {identity.epoch})",
        )


def claim(directory: Path, identity: LogIdentity) -> None:
    """Store this owner's name, so that earlier owners can make nothing durable any more. Raises `FencedError`."""
    owners = directory / OWNERS
    own = owners / str(identity.epoch)
    with step("log.claim", identity.vertex):
        make_private_directories(owners)
        os.close(open_private(own))
    with suppress(OSError), step("log.claim.describe", identity.vertex), append_private(own) as file:
        # The contents are for people; only the name counts, and it has space on a full disk.
        file.write(f"{os.getpid()}@{socket.gethostname()}\n".encode())
    check_claim(directory, identity)
    for epoch in owner_epochs(directory):
        if epoch < identity.epoch:
            with step("log.claim.replace", identity.vertex):
                (owners / str(epoch)).unlink(missing_ok=True)


def check_claim(directory: Path, identity: LogIdentity) -> None:
    """Raises `FencedError` if a newer owner has stored its name."""
    newest = max(owner_epochs(directory), default=identity.epoch)
    if newest > identity.epoch:
        raise FencedError(
            codes.LOG_TAKEN_OVER,
            f"{identity}: {directory} has a newer owner (epoch {newest}, ours is {identity.epoch})",
        )


def owner_epochs(directory: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory / OWNERS) if name.isdecimal()]
    except FileNotFoundError:
        return []
