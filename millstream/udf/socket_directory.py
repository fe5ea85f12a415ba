"""A private, short directory for a unix socket.

Above it: code that needs a unix socket. Below it: the file system. The path of a unix socket has at most 107 bytes, so
the socket cannot be in the user's data directory.

    millstream-udf-XXXXXXXX/       only this user may enter it
        owner                      the lock of the process that created it
        s/                         the sockets

The sockets are one level below, so that a function in a sandbox, which has a directory of its own in place of `s`
(`millstream.confine`), cannot open them to other users. The kernel releases the lock when its process dies, however it
dies, and the next process that creates a directory removes abandoned ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.files import PRIVATE_DIRECTORY, PRIVATE_FILE, opened_directory

SOCKET_PATH_BYTES_MAX = 107
"""The kernel's limit on Linux."""
_PREFIX = "millstream-udf-"
_LOCK = "owner"
_SOCKETS = "s"
_NAME_BYTES = len(f"/{_PREFIX}XXXXXXXX/{_SOCKETS}/udf.sock.calls")
"""Length of the longest path of a socket, without the temporary directory."""
_NO_PLACE = (
    "there is no directory for the socket of a function: set TMPDIR to a writable directory, or mount a tmpfs at "
    "/tmp (a container with a read-only root needs one)"
)
_YOUNG_S = 30.0
"""The longest time between the creation of a directory and its locking."""


@contextmanager
def open_socket_directory() -> Iterator[Path]:
    """Creates a directory that only this user can read, and removes it at the end of the block. The caller may replace
    the directory; its parent belongs to this module."""
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise InfrastructureError(codes.TEMPORARY_DIRECTORY, f"{_NO_PLACE}: {error.strerror}") from error
    if len(os.fsencode(base)) + _NAME_BYTES > SOCKET_PATH_BYTES_MAX:
        raise InfrastructureError(
            codes.TEMPORARY_DIRECTORY,
            f"the path of the temporary directory {base} is too long for unix sockets: set TMPDIR to a shorter one",
        )
    remove_abandoned(base)
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    except OSError as error:
        raise InfrastructureError(codes.TEMPORARY_DIRECTORY, f"{_NO_PLACE}: {base}: {error.strerror}") from error
    try:
        with _locked(directory):
            sockets = directory / _SOCKETS
            sockets.mkdir(mode=PRIVATE_DIRECTORY)
            yield sockets
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(base: Path) -> None:
    """Removes the directories in `base` whose owners are dead. It does not touch anything of other users."""
    for directory in base.glob(f"{_PREFIX}*"):
        try:
            status = directory.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_S:
                continue
            with _locked(directory):
                shutil.rmtree(directory, ignore_errors=True)
        except OSError:
            # The directory belongs to another process that is alive, or is being removed.
            continue


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds the lock of a directory. Raises `OSError` if it is held, or if the directory or the lock is a link."""
    with opened_directory(directory) as place:
        # Others may replace the directory of that name; the descriptor still refers to the one that was opened.
        if os.fstat(place).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(directory))
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE, dir_fd=place)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)
