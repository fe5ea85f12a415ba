"""Millstream's own files and directories: created for their owner only, never through a link.

Above it: everything that keeps data on disk, except the file sink, whose files belong to the user and follow the
umask. Below it: the operating system. Modes are set at creation, so no umask widens them. A link that another user has
put in the place of one of our files is refused, and a directory of another user is refused, too: we must not write to
either. `tools/style.py` finds calls elsewhere that create or truncate files.
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
    """Creates a file, opens it for writing and returns its descriptor. Raises `FileExistsError` if the name exists."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OURS, PRIVATE_FILE)


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Opens one of our files, which may exist already, for reading and writing. Returns its descriptor.

    It truncates nothing, and corrects the mode of an existing file. Raises `OSError` (ELOOP) for a link, and
    `PermissionError` for a file of another user and for anything that is not a regular file.
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
    """One of our files to append to, unbuffered: a write is in the file when it returns. Raises like `open_private`."""
    return open(open_private(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)


def write_private(path: Path, text: str) -> None:
    """Writes a file, in place of one of the same name. This is neither durable nor atomic."""
    path.unlink(missing_ok=True)
    with open(create_private(path), "w", encoding="utf-8") as file:
        file.write(text)


def make_private_directories(path: Path) -> list[Path]:
    """Creates a directory and its missing parents. Returns the directories that it created, the outermost first."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    return missing[::-1]


def directories_to_sync(path: Path) -> list[Path]:
    """The directories to create, the outermost first, so that `path` survives a loss of power: each is created, and its
    parent synced, before the next.

    The first one may exist: the process that created it may have ended, or found the disk full, before it synced its
    parent. So making a directory durable can be repeated.
    """
    wanted = []
    while not path.is_dir():
        wanted.append(path)
        path = path.parent
    if os.access(path.parent, os.R_OK | os.W_OK):
        # In another directory, this user could not have created it.
        wanted.append(path)
    return wanted[::-1]


def own_directory(path: Path) -> None:
    """Closes a directory to other users. It may be a link that this user has made.

    Raises `PermissionError` if the directory, or the link, belongs to another user.
    """
    with opened_directory(path, follow=True) as descriptor:
        status = os.fstat(descriptor)
        for found in (os.lstat(path), status):
            if found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, f"it belongs to another user (id {found.st_uid})", str(path))
        if stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, PRIVATE_DIRECTORY)


def sync_path(path: Path) -> None:
    """fsync of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def opened_directory(path: Path | str, *, follow: bool = False, within: int | None = None) -> Iterator[int]:
    """The descriptor of a directory. It must not be a link unless `follow` is set. `within`: the descriptor of another
    directory that contains it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
