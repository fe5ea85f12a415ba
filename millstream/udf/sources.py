"""The files that a function is made of, and whether they have changed since its process was started. No event loop.

Above it: the sidecar. Below it: the file system. Which files those are, the program says in a list that it keeps
(`millstream_udf.imported`); and what its command names is one as well, so that a program that is rebuilt is noticed.
It looks at files instead of asking the system to tell it: that works on every file system, and editors save in many
ways (by another file with the same name, in several steps).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

LIST_VARIABLE = "MILLSTREAM_IMPORTED"
"""Tells a program where to write the list of its files, a path a line."""
_LIST_BYTES_MAX = 1024 * 1024
_CONTENTS_BYTES_MAX = 4 * 1024 * 1024
_FILES_MAX = 2000
"""Files that are looked at; a function of more is not one's own."""


class OnChange(Enum):
    """What happens when a file of a function has changed."""

    IGNORE = "ignore"
    REPORT = "report"
    """It is said once, and what to do."""
    RESTART = "restart"
    """The function is restarted."""


@dataclass(frozen=True, slots=True)
class _Look:
    """How a file was."""

    signature: tuple[int, int, int]
    """Time of its last change, size, number."""
    digest: bytes


class SourceFiles:
    """Of one function. `begin` before each start, then `changed` every now and then."""

    def __init__(self, listed: Path, command: Sequence[str], cwd: Path) -> None:
        """`listed`: where the program writes its list. `cwd`: where its command runs."""
        self.listed = listed
        self._cwd = cwd
        self._named = tuple(_named(command, cwd))
        self._looks: dict[Path, _Look | None] = {}
        self._names: frozenset[Path] = frozenset()
        self._begun_ns = 0

    def begin(self) -> None:
        """A process is about to be started: it will be made of the files as they are now."""
        self._begun_ns = time.time_ns()
        for path in {*self._looks, *self._files()}:
            self._looks[path] = _look(path, self._looks.get(path))
        self._names = self._modules()

    def changed(self) -> list[Path]:
        """The files whose contents are not what they were, in order of their names. One that was only written again is
        as it was."""
        changed = self._learn()
        for path, before in self._looks.items():
            look = _look(path, before)
            if (look and look.digest) != (before and before.digest):
                changed.add(path)
            else:
                self._looks[path] = look
        return sorted(changed)

    def written(self) -> list[Path]:
        """The files that were written since, with other contents or not, and modules that have come or gone beside
        them: where a function could not be started the cause may lie elsewhere, and saving asks for another try."""
        written = self._learn()
        written |= {path for path, before in self._looks.items() if _signature(path) != (before and before.signature)}
        return sorted(written | (self._modules() ^ self._names))

    def _learn(self) -> set[Path]:
        """Take in what the program has listed since. Returns what was written after the start: the process may have
        read it before or after that."""
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
        """A file that was there is not: it is being replaced, or was removed."""
        return any(before is not None and _signature(path) is None for path, before in self._looks.items())

    def name(self, paths: Collection[Path]) -> str:
        """Files for people."""
        names = [os.path.relpath(path, self._cwd) for path in paths]
        more = len(names) - 3
        return f"{', '.join(names[:3])} and {more} more" if more > 0 else ", ".join(names)

    def _files(self) -> list[Path]:
        lines = os.fsdecode(_read(self.listed, _LIST_BYTES_MAX) or b"").splitlines()
        return [*self._named, *(Path(line) for line in lines[:_FILES_MAX] if "\0" not in line)]

    def _modules(self) -> frozenset[Path]:
        """Python files beside those that are looked at, and where the command runs."""
        directories = {self._cwd, *(path.parent for path in self._looks)}
        return frozenset(path for directory in directories for path in directory.glob("*.py"))


def _named(command: Sequence[str], cwd: Path) -> list[Path]:
    """Files below `cwd` that a command line names: a program, a script, `path/file.py:function`."""
    found = []
    for word in command:
        path = cwd / word.rpartition(":")[0] if ".py:" in word else cwd / word
        # A word of a command line may be anything, a whole program too: then it is not a path, and no error.
        if os.path.isfile(path) and path.resolve().is_relative_to(cwd.resolve()) and not _is_interpreter(path):
            found.append(path.absolute())
    return found


def _is_interpreter(path: Path) -> bool:
    """That of a virtual environment, which may be next to the function."""
    return path.name.startswith("python") and os.access(path, os.X_OK)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _read(path: Path, bytes_max: int) -> bytes | None:
    """The beginning of a regular file; None of anything else. The function, which may be hostile, says which files to
    read: a pipe would never end, and neither would some devices."""
    if _signature(path) is None:
        return None
    try:
        # It may have become a pipe meanwhile, which would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            return file.read(bytes_max) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None


def _look(path: Path, before: _Look | None) -> _Look | None:
    """How a file is; None when it is not there. Its contents are read when they may have changed."""
    signature = _signature(path)
    if signature is None:
        return None
    if before is not None and before.signature == signature:
        return before
    contents = _read(path, _CONTENTS_BYTES_MAX)
    if contents is None:
        return None
    # Of a file that is larger, such as a compiled program, any new writing is a change.
    whole = b"" if signature[1] <= _CONTENTS_BYTES_MAX else repr(signature).encode()
    return _Look(signature, hashlib.blake2b(contents + whole, digest_size=16).digest())
