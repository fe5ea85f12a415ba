"""Which directory a store is in: one that no other process uses, and that a crash of the machine has not damaged.

    <states>/<vertex>/<partition>/3/lock        held (flock) by the one process that uses the store
                                   /unclean     boot of the machine in which the store was opened and not closed
                                   /data.mdb    the store

A process that still has the lane, paused or on its way out, keeps its directory: the next owner takes another number,
and nobody waits. What nobody holds is removed, except for the newest.

A store is written without fsync. It survives the death of its process, whose pages the system has, but perhaps not that
of the machine: a store that was not closed in an earlier boot is removed.

Above it: the store. Below it: files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millstream.durable import step
from millstream.files import create_private, make_private_directories, open_private, sync_path

DATA = "data.mdb"
LOCK = "lock"
UNCLEAN = "unclean"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Identifies this boot of the machine; empty if the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class StoreDirectory:
    """A directory that this process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / DATA
        self._unclean = path / UNCLEAN

    def begin(self) -> str:
        """The store is about to be used. Returns why it was removed, if it was. Raises `OSError`."""
        why, boot = "", boot_id()
        is_unclean = self._unclean.exists() and self.data.exists()
        if is_unclean and (not boot or self._unclean.read_text(encoding="ascii") != boot):
            why = "the machine ended while it was in use"
            self.remove()
        with step("store.begin"):
            self._unclean.unlink(missing_ok=True)
            with open(create_private(self._unclean), "w", encoding="ascii") as file:
                file.write(boot)
                file.flush()
                os.fsync(file.fileno())
            sync_path(self.path)
        return why

    def end(self) -> None:
        """The store is durable, and closed. Raises `OSError`."""
        with step("store.end"):
            self._unclean.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the store, which must not be open. Raises `OSError`."""
        with step("store.remove"):
            self.data.unlink(missing_ok=True)


@contextmanager
def held_directory(parent: Path) -> Iterator[StoreDirectory]:
    """A directory below `parent`, held until the end. Raises `OSError`."""
    with step("store.place"):
        make_private_directories(parent)
    held: int | None = None
    numbers = _numbers(parent)
    path = parent / str(max(numbers, default=0) + 1)
    try:
        for number in sorted(numbers, reverse=True):
            found = parent / str(number)
            lock = _locked(found)
            if lock is None:
                continue
            if held is None:
                held, path = lock, found
                continue
            with step("store.discard"):
                shutil.rmtree(found, ignore_errors=True)
            os.close(lock)
        while held is None:
            with step("store.make"):
                make_private_directories(path)
            held = _locked(path)
            path = path if held is not None else parent / str(int(path.name) + 1)
        yield StoreDirectory(path)
    finally:
        if held is not None:
            os.close(held)


def _numbers(parent: Path) -> list[int]:
    return [int(name) for name in os.listdir(parent) if name.isascii() and name.isdigit()]


def _locked(path: Path) -> int | None:
    """The descriptor that holds the lock of a directory; None if another process has it, or has just removed it."""
    try:
        descriptor = open_private(path / LOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.stat(path / LOCK).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
