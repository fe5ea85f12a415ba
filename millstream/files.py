"""Files and directories that are Millstream's own: made for their owner alone, never through a link.

Above it: everything that keeps something on disk, other than the file sink, whose files are the user's and follow the
umask. Below it: the operating system. Modes are given at the making, so no umask widens them. A link that another user
has put where a file of ours belongs is refused, and so is a directory of another user: what it refers to is not ours to
write to. `tools/style.py` finds calls elsewhere that create or truncate files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600

_OURS = os.O_CLOEXEC | os.O_NOFOLLOW


def create_private(path: Path) -> int:
    """A new file, open for writing: its descriptor. Raises `FileExistsError` where anything has that name."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OURS, PRIVATE_FILE)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """A file of ours that may be there already, for reading and writing: its descriptor.

    Nothing is truncated; the mode of one that is there is put right. Raises `OSError` (ELOOP) for a link, and
    `PermissionError` for a file of another user or what is not a plain file.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NONBLOCK | _OURS, PRIVATE_FILE)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "this is not a file of this user", str(path))
        if stat.S_IMODE(status.st_mode) != PRIVATE_FILE:
            os.fchmod(descriptor, PRIVATE_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def append_private(path: Path) -> IO[bytes]:
    """A file of ours to append to, unbuffered: a write is in the file when it returns. Raises as `open_private`."""
    return open(open_private(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)


def write_private(path: Path, text: str) -> None:
    """Write a file again, in place of one that has the name. Not durable, and not atomic."""
    path.unlink(missing_ok=True)
    with open(create_private(path), "w", encoding="utf-8") as file:
        file.write(text)


def make_private_directories(path: Path) -> list[Path]:
    """Make a directory, and those above it that are missing. Returns those that were made, the outermost first."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    return missing[::-1]


def own_directory(path: Path) -> None:
    """Close a directory to others. One that this user has put elsewhere, by a link of their own, may stay there.

    Raises `PermissionError` where the directory, or the link, belongs to another user.
    """
    with opened_directory(path, follow=True) as descriptor:
        status = os.fstat(descriptor)
        for found in (os.lstat(path), status):
            if found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"it belongs to another user (id {found.st_uid})", str(path))
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, PRIVATE_DIRECTORY)


@contextmanager
def opened_directory(path: Path, *, follow: bool = False) -> Iterator[int]:
    """The descriptor of a directory, which is not a link unless `follow` says so."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
