"""Files by patterns, and the thread that touches them.

Above it: lanes of files, objects and tables. It expands a source's patterns to names, and converts errors of the
operating system to messages.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from millstream import codes
from millstream.errors import InfrastructureError
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FilePatterns:
    """The `paths` of a source."""

    patterns: tuple[str, ...]
    base_dir: Path
    """The directory that relative patterns are relative to."""

    def find(self) -> list[str]:
        """Blocks. Names of the existing files, sorted, each once; relative if the pattern is."""
        found: set[str] = set()
        for pattern in self.patterns:
            for name in glob.iglob(pattern, root_dir=self.base_dir, recursive=True):
                if os.path.isfile(self.path(name)):
                    found.add(os.path.normpath(name))
        return sorted(found)

    def path(self, name: str) -> str:
        """The path of the file with that name."""
        return os.path.join(self.base_dir, name)

    def size(self, name: str) -> int:
        """Blocks. Bytes of the file with that name; 0 if it has disappeared."""
        try:
            return os.stat(self.path(name)).st_size
        except FileNotFoundError:
            return 0

    def plain(self) -> list[str]:
        """Patterns that name one file."""
        return [os.path.normpath(pattern) for pattern in self.patterns if not glob.has_magic(pattern)]

    def __str__(self) -> str:
        return ", ".join(self.patterns)


class Worker:
    """One thread for blocking calls, so that a slow disk does not block the event loop."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of a call in the thread. Errors: `InfrastructureError` for errors of the operating system."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        except OSError as error:
            raise disk_fault(error) from error

    def close(self) -> None:
        """Wait for an abandoned call: after this, none is running, and files can be closed."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class WorkerLane(SourceLane, Protocol):
    """A lane that calls what blocks in a worker."""

    async def open(self) -> None:
        """Go to the position of an earlier run, and report problems that show immediately. Raises `DamageError` for an
        invalid position."""

    def close(self) -> None:
        """Close what is open. Called when the worker has ended."""


@asynccontextmanager
async def open_lane(make: Callable[[SourceOwner, Worker], WorkerLane], owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane that `make` returns, which continues at `owner.position`."""
    with closing(Worker(f"source-{owner.lane.partition}")) as worker:
        lane = make(owner, worker)
        try:
            await lane.open()
            yield lane
        finally:
            worker.close()
            lane.close()


_NOT_ALLOWED = "Give this user permission to read it"
_TOO_MANY = "Raise the limit on open files (ulimit -n), or use narrower `paths`"
_ADVICE = {
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.ENOENT: "Put it back",
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
}


def disk_fault(error: OSError) -> InfrastructureError:
    """The error, with advice for the user."""
    advice = _ADVICE.get(error.errno or 0, "Check the disk or mount that it is on")
    return InfrastructureError(
        codes.CANNOT_READ,
        f"{error.filename or 'a file of the source'} cannot be read: {error.strerror or error}. {advice}",
    )
