"""The standard output of a run, for the processes of the run: what they print reaches it completely, or they know.

    worker: print ─► lines ─► socket ─► supervisor ─► standard output of the run
                       ▲                                 │ written, or the error
                       └──────────── answer ◄────────────┘

Above it: workers, whose `sys.stdout` it becomes, and their supervisor. Below it: a pair of sockets. A pipe would take
lines that nothing has printed yet, and a sink that prints records would commit them. The lines of several processes do
not mix, because the supervisor prints what it gets as a whole.
"""

from __future__ import annotations

import asyncio
import io
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EIO
from typing import TYPE_CHECKING

from millstream.descriptors import ESCAPED, OutputDescriptor

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHANNEL_VARIABLE = "MILLSTREAM_PRINT_FD"
"""Environment variable with the number of the file descriptor of a process's channel."""
_SIZE = struct.Struct("!I")
"""Before the lines: their size in bytes. The answer is the number of the system's error; 0 for none."""
_READ_BYTES = 1024 * 1024

Print = Callable[[bytes], Awaitable[None]]
"""Prints complete lines. Returns when they are printed, and raises `OSError` if they cannot be."""


class PrintChannel:
    """The supervisor's end of the channel of one process. Made by `open_channel`."""

    def __init__(self, own: socket.socket, theirs: socket.socket, prints: Print) -> None:
        self.descriptor = theirs.fileno()
        """The descriptor that the process must inherit; see `environment`."""
        self._own = own
        self._print = prints

    @property
    def environment(self) -> dict[str, str]:
        """The variable that gives the process the descriptor."""
        return {CHANNEL_VARIABLE: str(self.descriptor)}

    async def serve(self) -> None:
        """Prints what the process sends, until it closes its end or this is cancelled."""
        reader, writer = await asyncio.open_connection(sock=self._own, limit=_READ_BYTES)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                    lines = await reader.readexactly(size)
                    number = 0
                    try:
                        await self._print(lines)
                    except OSError as error:
                        number = error.errno or EIO
                    writer.write(_SIZE.pack(number))
        finally:
            writer.close()


@contextmanager
def open_channel(prints: Print) -> Iterator[PrintChannel]:
    """A channel for a process that is about to start and that inherits its `descriptor`."""
    own, theirs = socket.socketpair()
    with theirs, own:
        yield PrintChannel(own, theirs, prints)


class _Printed(io.RawIOBase):
    """The process's end: a write returns when it is printed. For several threads."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self._channel.close()

    def write(self, lines: ReadableBuffer) -> int:
        view = memoryview(lines).cast("B")
        with self._lock:
            self._channel.sendall(_SIZE.pack(len(view)))
            self._channel.sendall(view)
            answer = self._channel.recv(_SIZE.size, socket.MSG_WAITALL)
        if len(answer) < _SIZE.size:
            raise OSError(EIO, "the process that prints has ended")
        if (number := _SIZE.unpack(answer)[0]) != 0:
            raise OSError(number, os.strerror(number))
        return len(view)


def print_through_channel() -> None:
    """Makes the channel that the process was started with its `sys.stdout`; without one, its own standard output, which
    is written to without a buffer. Both take UTF-8, whatever the environment says."""
    # Processes that this one starts must not inherit the variable.
    text = os.environ.pop(CHANNEL_VARIABLE, None)
    raw: io.RawIOBase = OutputDescriptor(sys.stdout.fileno())
    # If the descriptor is not a socket, it belongs to something else, and the variable came from elsewhere.
    with suppress(OSError):
        if text is not None and stat.S_ISSOCK(os.fstat(int(text)).st_mode):
            os.set_inheritable(int(text), False)
            raw = _Printed(socket.socket(fileno=int(text)))
    sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", errors=ESCAPED, line_buffering=True)
