"""Standard input, output and error as a process gets them: closed, full, without a reader, or not waiting for one.

Above it: every process of ours at its start, and everything that prints. Below it: the operating system.

    what is printed ─► written completely, or an error that the process remembers     standard output
                  └──► written, or lost                                               standard error

Standard output has what users asked for: records and results. Standard error has progress and messages: a terminal that
has gone away must not end a run.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import signal
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIPE_CLOSED = 128 + signal.SIGPIPE
"""Exit code of a process whose reader has ended, as shells report SIGPIPE."""
ESCAPED = "millstream.escaped"
r"""Error handler that writes a character that an encoding lacks as `\u00e9`, as JSON does: JSON stays the same JSON."""


def reopen_closed() -> None:
    """Open descriptors 0 to 2 where the parent has closed them, so that no other file gets their numbers. What is
    printed there goes nowhere."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one: those below it are open.
            os.set_inheritable(os.open(os.devnull, flags), True)
    # Python has none where it found the descriptor closed.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def write_lines(descriptor: int, lines: ReadableBuffer) -> None:
    """Write all of it, however long that takes. Raises `OSError` if that fails. A file that takes only a part does not
    keep the beginning of a line, to which the next process would append its own."""
    view = memoryview(lines).cast("B")
    written, error = _write(descriptor, view)
    if error is not None:
        with suppress(OSError):
            _take_back(descriptor, written - (bytes(view[:written]).rfind(b"\n") + 1))
        raise error


def _write(descriptor: int, data: memoryview) -> tuple[int, OSError | None]:
    """How many bytes were written, and why not all of them."""
    written = 0
    while written < len(data):
        try:
            written += os.write(descriptor, data[written:])
        except BlockingIOError:
            # Another process that shares the pipe or terminal has made it non-blocking.
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            waiting.poll()
        except OSError as error:
            return written, error
    return written, None


def _take_back(descriptor: int, size: int) -> None:
    """Remove the last bytes that were written to a file, unless another process has written since."""
    status = os.fstat(descriptor)
    end = os.lseek(descriptor, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else 0
    if size and end == status.st_size:
        os.ftruncate(descriptor, end - size)
        os.lseek(descriptor, end - size, os.SEEK_SET)


class OutputDescriptor(io.RawIOBase):
    """A descriptor that is written to completely. It remembers its first error, whatever becomes of the exception."""

    def __init__(self, descriptor: int, *, may_be_lost: bool = False) -> None:
        self._descriptor = descriptor
        self.may_be_lost = may_be_lost
        """Whether what cannot be written is dropped instead of an error. Set at the end of a process that has reported
        the error: what is still in a buffer must not raise it again."""
        self.error: OSError | None = None
        """The first error."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        try:
            write_lines(self._descriptor, data)
        except OSError as error:
            if not self.may_be_lost:
                self.error = self.error or error
                raise
        return size


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)), error.end


codecs.register_error(ESCAPED, _escape)


def open_output(descriptor: int, like: TextIO, *, may_be_lost: bool = False) -> tuple[TextIO, OutputDescriptor]:
    """A text stream over a descriptor, with the settings of another stream. It does not close the descriptor."""
    raw = OutputDescriptor(descriptor, may_be_lost=may_be_lost)
    stream = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors=ESCAPED,
        line_buffering=may_be_lost or raw.isatty(),
        write_through=bool(getattr(like, "write_through", False)),
    )
    return stream, raw


def cause_text(error: OSError) -> str:
    """Why something could not be written: the system's words."""
    return error.strerror or os.strerror(error.errno or errno.EIO)
