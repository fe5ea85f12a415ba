"""Files by patterns, and the thread that touches them.

Above it: `file` and `follow`. It owns which names a source's patterns stand for and how an error of the operating
system is shown to people.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from millstream import codes
from millstream.errors import InfrastructureError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FilePatterns:
    """The `paths` of a source."""

    patterns: tuple[str, ...]
    base_dir: Path
    """Where relative patterns begin."""

    def find(self) -> list[str]:
        """Blocks. Names of the files there are, sorted, each once; relative where the pattern is."""
        found: set[str] = set()
        for pattern in self.patterns:
            for name in glob.iglob(pattern, root_dir=self.base_dir, recursive=True):
                if os.path.isfile(self.path(name)):
                    found.add(os.path.normpath(name))
        return sorted(found)

    def path(self, name: str) -> str:
        """Where the file of that name is."""
        return os.path.join(self.base_dir, name)

    def plain(self) -> list[str]:
        """Patterns that name one file."""
        return [os.path.normpath(pattern) for pattern in self.patterns if not glob.has_magic(pattern)]

    def __str__(self) -> str:
        return ", ".join(self.patterns)


class Worker:
    """One thread for what blocks, so that a slow disk does not hold up the loop. Made by `open_worker`."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, from the thread. Errors: `InfrastructureError` for those of the operating system."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))
        except OSError as error:
            raise disk_fault(error) from error

    def finish(self) -> None:
        """Wait for a call that was given up on: after this, none is running, and files can be closed."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@asynccontextmanager
async def open_worker(name: str) -> AsyncIterator[Worker]:
    """A worker, finished when it is left."""
    worker = Worker(ThreadPoolExecutor(max_workers=1, thread_name_prefix=name))
    try:
        yield worker
    finally:
        worker.finish()


def disk_fault(error: OSError) -> InfrastructureError:
    """What a person can do something with."""
    what = error.strerror or str(error)
    if isinstance(error, PermissionError):
        advice = "Give this user permission to read it"
    elif isinstance(error, FileNotFoundError):
        advice = "Put it back"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "Raise the limit on open files (ulimit -n), or use narrower `paths`"
    else:
        advice = "Check the disk or mount that it is on"
    return InfrastructureError(
        codes.CANNOT_READ, f"{error.filename or 'a file of the source'} cannot be read: {what}. {advice}"
    )
