"""A spool directory: files that are named by their numbers, from 1 and without a gap.

    name.tmp ── write, fsync ── rename ──► 7      so a name has a whole record, or does not exist

Above it: source and sink. Below it: the file system. Everything here blocks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream import codes
from millstream.errors import RetryLaterError

_LOCK = "lock"
_TEMPORARY = "tmp"


def read_file(directory: Path, number: int) -> tuple[bytes, int] | None:
    """The record with a number, and its time in microseconds since the epoch; None if it does not exist yet.

    Raises `RetryLaterError` if the directory is away.
    """
    with _answering(directory):
        try:
            with (directory / str(number)).open("rb") as file:
                return file.read(), os.fstat(file.fileno()).st_mtime_ns // 1000
        except FileNotFoundError:
            directory.stat()
            return None


def write_file(directory: Path, name: str, data: bytes) -> None:
    """Store a whole file, in place of one of that name. Its name is durable after `sync`."""
    temporary = directory / _TEMPORARY
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / name)


def sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """The directory, in which no other process writes meanwhile. Raises `RetryLaterError` if it is away."""
    with _answering(directory):
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


@contextmanager
def _answering(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"the spool directory {directory} cannot be used: {error.strerror}"
        raise RetryLaterError(codes.TARGET_AWAY, what) from error
