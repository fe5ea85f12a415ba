"""Watches the source files of a function for changes since its process was started. No event loop.

Above it: the sidecar. Below it: the file system. The program keeps a list of its files (`millstream_udf.imported`). The
files that its command names belong to them as well, so that a rebuilt program is noticed. The module polls the files
instead of subscribing to changes: that works on every file system, and editors save in many ways (by another file with
the same name, in several steps).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

LIST_VARIABLE = "MILLSTREAM_IMPORTED"
"""Environment variable that names the file in which a program lists its files, one path per line."""
_LIST_BYTES_MAX = 1024 * 1024
_CONTENTS_BYTES_MAX = 4 * 1024 * 1024
_FILES_MAX = 2000
"""Files that are watched; a function with more is not the user's own code."""


class OnChange(Enum):
    """What happens when a file of a function has changed."""

    IGNORE = "ignore"
    REPORT = "report"
    """The change is reported once, together with what to do."""
    RESTART = "restart"
    """The function is restarted."""


@dataclass(frozen=True, slots=True)
class _Look:
    """The state of a file at one check."""

    signature: tuple[int, int, int]
    """Time of the last change, size, and inode number."""
    digest: bytes


class SourceFiles:
    """The files of one function. Call `begin` before each start, then `changed` from time to time."""

    def __init__(self, listed: Path, command: Sequence[str], cwd: Path) -> None:
        """`listed`: the file in which the program writes its list. `cwd`: the working directory of its command."""
        self.listed = listed
        self._cwd = cwd
        self._named = tuple(_named(command, cwd))
        self._looks: dict[Path, _Look | None] = {}
        self._names: frozenset[Path] = frozenset()
        self._begun_ns = 0

    def begin(self) -> None:
        """Remembers the files as they are now, because a process that uses them is about to start."""
        self._begun_ns = time.time_ns()
        for path in {*self._looks, *self._files()}:
            self._looks[path] = _look(path, self._looks.get(path))
        self._names = self._modules()

    def changed(self) -> list[Path]:
        """The files whose contents have changed, in order of their names. A file that was written again with the same
        contents has not changed."""
        changed = self._learn()
        for path, before in self._looks.items():
            look = _look(path, before)
            if (look and look.digest) != (before and before.digest):
                changed.add(path)
            else:
                self._looks[path] = look
        return sorted(changed)

    def written(self) -> list[Path]:
        """The files that were written since, even with the same contents, and modules next to them that were added or
        removed. If a function could not be started, the cause may be elsewhere, and saving a file requests another
        try."""
        written = self._learn()
        written |= {path for path, before in self._looks.items() if _signature(path) != (before and before.signature)}
        return sorted(written | (self._modules() ^ self._names))

    def _learn(self) -> set[Path]:
        """Adds the files that the program has listed since. Returns those that were written after the start: the
        process may have read them before or after that."""
        late = set()
        for path in self._files():
            if path not in self._looks:
                self._looks[path] = look = _look(path, None)
                if look is not None and look.signature[0] > self._begun_ns:
                    late.add(path)
        return late

    def state(self) -> object:
        """A value that changes while files do."""
        return [(path, _signature(path)) for path in self._looks], self._modules()

    def is_missing_one(self) -> bool:
        """Whether a file is missing that existed before: it is being replaced, or was removed."""
        return any(before is not None and _signature(path) is None for path, before in self._looks.items())

    def name(self, paths: Collection[Path]) -> str:
        """The names of files, for messages."""
        names = [os.path.relpath(path, self._cwd) for path in paths]
        more = len(names) - 3
        return f"{', '.join(names[:3])} and {more} more" if more > 0 else ", ".join(names)

    def _files(self) -> list[Path]:
        lines = os.fsdecode(_read(self.listed, _LIST_BYTES_MAX) or b"").splitlines()
        return [*self._named, *(Path(line) for line in lines[:_FILES_MAX] if "\0" not in line)]

    def _modules(self) -> frozenset[Path]:
        """Python files next to the watched files, and in the working directory of the command."""
        directories = {self._cwd, *(path.parent for path in self._looks)}
        return frozenset(path for directory in directories for path in directory.glob("*.py"))


def programs_below(directories: Collection[Path]) -> Mapping[str, tuple[int, int]]:
    """Time and size of the Python files and programs in these directories and below: what an author edits while no
    process of the function lists its files. Hidden directories, environments and files above a limit are left out."""
    found: dict[str, tuple[int, int]] = {}
    for directory in directories:
        for place, below, names in os.walk(directory):
            inner = (name for name in below if not name.startswith((".", "__")))
            below[:] = [name for name in inner if not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))]
            for name in names:
                path = os.path.join(place, name)
                with suppress(OSError):
                    status = os.stat(path)
                    if (name.endswith(".py") or status.st_mode & stat.S_IXUSR) and len(found) < _FILES_MAX:
                        found[path] = status.st_mtime_ns, status.st_size
    return found


def _named(command: Sequence[str], cwd: Path) -> list[Path]:
    """Files below `cwd` that a command line names: a program, a script, `path/file.py:function`."""
    found = []
    for word in command:
        path = cwd / word.rpartition(":")[0] if ".py:" in word else cwd / word
        # A word of a command line may be anything, even a whole program: then it is not a path, which is not an error.
        if os.path.isfile(path) and path.resolve().is_relative_to(cwd.resolve()) and not _is_interpreter(path):
            found.append(path.absolute())
    return found


def _is_interpreter(path: Path) -> bool:
    """Whether the file is a Python interpreter: a virtual environment may be next to the function."""
    return path.name.startswith("python") and os.access(path, os.X_OK)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _read(path: Path, bytes_max: int) -> bytes | None:
    """The beginning of a regular file; None for anything else. The function, which may be hostile, decides which files
    are read: a pipe would never end, and some devices would not either."""
    if _signature(path) is None:
        return None
    try:
        # The path may have become a pipe in the meantime, and opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            return file.read(bytes_max) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None


def _look(path: Path, before: _Look | None) -> _Look | None:
    """The state of a file; None if it does not exist. Its contents are read only if they may have changed."""
    signature = _signature(path)
    if signature is None:
        return None
    if before is not None and before.signature == signature:
        return before
    contents = _read(path, _CONTENTS_BYTES_MAX)
    if contents is None:
        return None
    # For a larger file, such as a compiled program, every write counts as a change.
    whole = b"" if signature[1] <= _CONTENTS_BYTES_MAX else repr(signature).encode()
    return _Look(signature, hashlib.blake2b(contents + whole, digest_size=16).digest())
