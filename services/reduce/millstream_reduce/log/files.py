"""The file operations of the log, with each durable step separate: the seam between the log and the operating system.

Above it: the log's writer. Below it: the kernel. Tests derive from `Files`, to stop before or after any step, to fail
one, or to lose what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from millstream.files import create_private, open_private, opened_directory

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that free space resolves. EFBIG: the limit on a file's size (`ulimit -f`)."""

BUFFERS_AT_ONCE_MAX = 512
"""Buffers of one writev; systems take at least 1,024 (IOV_MAX)."""


class Files:
    """Blocking. Every method may raise `OSError`, and then may have done part of its work."""

    def create(self, path: Path) -> int:
        """Create a new file for writing; returns its descriptor. Fails if the file exists."""
        return create_private(path)

    def write(self, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> int:
        """Write the buffers, one after another, at `offset`. Returns the bytes written, which may be fewer."""
        return os.pwritev(descriptor, buffers[:BUFFERS_AT_ONCE_MAX], offset)

    def sync(self, descriptor: int) -> None:
        """Return when everything written to the file, including its length, is durable."""
        os.fdatasync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def reserve(self, path: Path, length: int) -> None:
        """Create a file that takes this many bytes of the disk. Fails without leaving a file if there is no space."""
        descriptor = open_private(path)
        try:
            os.posix_fallocate(descriptor, 0, length)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def publish(self, temporary: Path, path: Path) -> None:
        """Give a file its name. Fails if the name exists, whichever process created it."""
        os.link(temporary, path)
        with contextlib.suppress(OSError):
            # It has its name. The temporary one is left over, and removed at the next opening.
            os.unlink(temporary)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are durable."""
        with opened_directory(path, follow=True) as descriptor:
            os.fsync(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file; a missing file is not an error."""
        path.unlink(missing_ok=True)


def write_all(files: Files, descriptor: int, buffers: Sequence[memoryview | bytes], offset: int) -> None:
    """Write all buffers at `offset`. Raises `OSError`, after which a part of them may be written."""
    left = deque(buffers)
    while left:
        written = files.write(descriptor, list(left), offset)
        if written == 0:
            raise OSError(errno.ENOSPC, "nothing was written")
        offset += written
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if written:
            left[0] = memoryview(left[0])[written:]
