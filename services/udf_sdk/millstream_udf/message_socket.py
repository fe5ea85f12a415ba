"""Messages over a stream socket: each begins with its length, four bytes, little-endian.

Above it: the server, and in a pipeline the client. Below it: the event loop. A message is received directly into its
own memory, and sent without being joined. It does not know the contents of a message.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

HEADER_BYTES = 4
_SMALL_BYTES = 64 * 1024
"""Bytes read at a time while the length of the next message is unknown."""
_WAITING_MAX = 16
"""Maximum number of received messages that wait; beyond it, no more are read."""
_WAITING_BYTES_MAX = 2 * 1024 * 1024
"""Maximum bytes of these messages."""
_UNSENT_BYTES_MAX = 2 * 1024 * 1024
_KERNEL_BYTES = 2 * 1024 * 1024
"""Sent bytes that the kernel may hold (fewer if the system limits it): complete messages, so that two processes need
not switch several times per message on busy processors."""


class AbortableProtocol(asyncio.BufferedProtocol):
    """A connection that can be closed even before the event loop has made it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._aborted = False

    def abort(self) -> None:
        """Close immediately, without sending the rest."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        # uvloop's transports have their own class.
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self._transport.abort()


class MessageSocket(AbortableProtocol):
    """One connection. One task calls `receive`, and one task at a time calls `send`."""

    def __init__(self, bytes_max: int, unsent_bytes_max: int = _UNSENT_BYTES_MAX) -> None:
        """`unsent_bytes_max`: bytes that the system has not accepted, above which `send` waits."""
        super().__init__()
        self._bytes_max = bytes_max
        self._unsent_bytes_max = unsent_bytes_max
        self._small = bytearray(_SMALL_BYTES)
        self._message: bytearray | None = None
        """A message whose first part has arrived."""
        self._filled = 0
        """Number of its bytes, or of those in `_small`."""
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._paused = False
        self._ended = False
        """Whether the other side has ended."""
        self._stopped = False
        self.failed = ""
        """Why it stopped reading, if the other side is the cause: it may not send a message of that size."""
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    @property
    def has_more(self) -> bool:
        """Whether `receive` has a message without waiting."""
        return bool(self._received)

    def stop(self) -> None:
        """Receive nothing more, not even messages that have arrived."""
        self._stopped = True
        self._changed.set()

    async def receive(self) -> bytes | None:
        """The next message; None if the other side has ended or `failed`, the connection is lost, or it was stopped."""
        while not self._received or self._stopped:
            if self._stopped or self._ended or self.failed:
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._received.popleft()
        self._received_bytes -= len(message)
        if self._paused and not self._is_full() and (transport := self._open_transport()) is not None:
            self._paused = False
            transport.resume_reading()
        return message

    async def send(self, *parts: bytes) -> None:
        """Send a message of these parts. Returns when there is space for another one; raises `ConnectionError` if the
        connection is lost."""
        if (transport := self._open_transport()) is None:
            raise ConnectionResetError("the socket is closed")
        _write(transport, parts)
        await self._writable.wait()

    def send_at_once(self, *parts: bytes) -> bool:
        """Send a message of these parts, unless the connection is lost or there is no space for one."""
        if not self._writable.is_set() or (transport := self._open_transport()) is None:
            return False
        _write(transport, parts)
        return True

    def end(self) -> None:
        """End the sending side."""
        if (transport := self._open_transport()) is not None:
            transport.write_eof()

    async def close(self) -> None:
        """Wait until everything is sent, or nothing more can be sent."""
        if self._transport is not None:
            self._transport.close()
            await self._lost.wait()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._unsent_bytes_max)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._changed.set()
        self._writable.set()
        self._lost.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._small if self._message is None else self._message)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        if self._message is None:
            self._take_small()
        elif self._filled == len(self._message):
            self._put(bytes(self._message))
            self._message, self._filled = None, 0
        if self._is_full() and not self._paused and (transport := self._open_transport()) is not None:
            self._paused = True
            transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._changed.set()
        # Outstanding answers may still be sent.
        return True

    def _take_small(self) -> None:
        """Extract the messages from the bytes that were read, and begin the incomplete one."""
        with memoryview(self._small) as read:
            start = 0
            while self._filled - start >= HEADER_BYTES:
                body = start + HEADER_BYTES
                size = int.from_bytes(read[start:body], "little")
                if size > self._bytes_max:
                    self._refuse(size)
                    return
                if body + size > self._filled:
                    if size <= _SMALL_BYTES - HEADER_BYTES:
                        break
                    self._message = bytearray(size)
                    self._filled -= body
                    self._message[: self._filled] = read[body : body + self._filled]
                    return
                self._put(bytes(read[body : body + size]))
                start = body + size
            self._filled -= start
            if start:
                read[: self._filled] = bytes(read[start : start + self._filled])

    def _put(self, message: bytes) -> None:
        self._received.append(message)
        self._received_bytes += len(message)
        self._changed.set()

    def _refuse(self, size: int) -> None:
        self.failed = f"the size of the next message is {size:,} bytes; the limit is {self._bytes_max:,}"
        self._changed.set()
        self.abort()

    def _open_transport(self) -> asyncio.Transport | None:
        transport = self._transport
        return None if transport is None or transport.is_closing() else transport

    def _is_full(self) -> bool:
        return len(self._received) >= _WAITING_MAX or self._received_bytes >= _WAITING_BYTES_MAX


def _write(transport: asyncio.Transport, parts: Sequence[bytes]) -> None:
    transport.writelines((sum(map(len, parts)).to_bytes(HEADER_BYTES, "little"), *parts))
