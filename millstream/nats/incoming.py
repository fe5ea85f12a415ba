"""What a NATS server sends, cut into messages with few copies of their payloads.

    socket ─► PieceReader ─► PieceParser ─► client
              pieces, as     a payload that came in several pieces is joined once
              they came
       └─────────────────────────┴─ whole messages for listeners, while the task that reads has nothing to do

The task would be woken up by the event loop in its next turn, which costs more than to read a small message.

Above it: the client. Below it: asyncio, and the parser of `nats-py`, which still reads everything but messages. Its own
way copies each byte of a payload six times after the socket: into the buffer of the stream, out of it (twice), into
the buffer of the parser, and out of that (twice).
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.nats.client import parser as library

UNREAD_BYTES = 512 * 1024
"""Bytes that may wait to be parsed before the socket is not read for a while."""

# The library's, which only match at the beginning of a buffer.
_MESSAGE = re.compile(library.MSG_RE.pattern.removeprefix(b"\\A"))
_MESSAGE_WITH_HEADERS = re.compile(library.HMSG_RE.pattern.removeprefix(b"\\A"))
_END_BYTES = library.CRLF_SIZE
_HEADERS_FOLLOW = ord("H")
"""The first byte of a message with headers."""

AtOnce = Callable[[bytes], bytes | None]
"""Gets data that follow everything that was parsed, and returns what the task has to parse; None: nothing."""


def nothing_at_once(data: bytes) -> bytes | None:
    """The task parses everything."""
    return data


class PieceReader(asyncio.StreamReader):
    """A stream whose `read` returns what the socket gave, piece by piece. Lines are read as usual, before that."""

    if TYPE_CHECKING:
        # Of asyncio, and not in the types that are published for it.
        _buffer: bytearray
        _eof: bool
        _limit: int
        _paused: bool
        _transport: asyncio.ReadTransport | None
        _waiter: asyncio.Future[None] | None

        def _wakeup_waiter(self) -> None: ...
        async def _wait_for_data(self, func_name: str) -> None: ...

    def __init__(self, loop: asyncio.AbstractEventLoop, at_once: AtOnce = nothing_at_once) -> None:
        super().__init__(UNREAD_BYTES, loop)
        self._at_once = at_once
        self._pieces: deque[bytes] | None = None
        """None until the first `read`."""
        self._held = 0
        """Bytes of all pieces."""

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # what a protocol is given
        if self._pieces is None:
            super().feed_data(data)
            return
        if (waiter := self._waiter) is not None and not waiter.done():
            # The task waits for data, so everything before them is parsed.
            rest = self._at_once(data)
            if rest is None:
                return
            data = rest
        self._pieces.append(data)
        self._held += len(data)
        self._wakeup_waiter()
        if self._transport is not None and not self._paused and self._held > 2 * self._limit:
            self._transport.pause_reading()
            self._paused = True

    def at_eof(self) -> bool:
        return super().at_eof() and not self._pieces

    async def read(self, n: int = -1) -> bytes:
        """The next piece, whatever its size; empty at the end."""
        if (error := self.exception()) is not None:
            raise error
        if self._pieces is None:
            self._pieces = deque()
            if self._buffer:
                self.feed_data(bytes(self._buffer))
                self._buffer.clear()
        if not self._pieces and not self._eof:
            await self._wait_for_data("read")
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self._held -= len(piece)
        if self._paused and self._held <= self._limit and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece


class PieceParser(library.Parser):
    """The same as the library's parser, with fewer copies."""

    _resets = 0
    """A message may be handed over to something that resets the parser; then the rest of the data is void."""
    _failures: deque[Exception]
    """Of listeners, for the task to report."""

    def reset(self) -> None:
        super().reset()
        self._pieces: list[memoryview] = []
        """The beginning of a payload, without what is missing."""
        self._missing = 0
        self._resets += 1
        self._failures = deque()

    def take(self, data: bytes) -> bytes | None:
        """Hand over the whole messages for listeners at the beginning of `data`. See `AtOnce`."""
        if self.buf or self._missing:
            return data
        resets, at = self._resets, 0
        while at < len(data):
            found = (_MESSAGE_WITH_HEADERS if data[at] == _HEADERS_FOLLOW else _MESSAGE).match(data, at)
            if found is None:
                break
            subject, sid, _, reply, *sizes = found.groups()
            begin = found.end()
            end = begin + int(sizes[-1])
            if end + _END_BYTES > len(data):
                break
            body = begin + int(sizes[0]) if len(sizes) > 1 else begin
            try:
                if not self.nc.hear(int(sid), subject, reply or b"", data[begin:body], data[body:end]):
                    break
            except Exception as error:  # noqa: BLE001 - the remaining messages are still read
                self._failures.append(error)
            if resets != self._resets:
                return None
            at = end + _END_BYTES
        if at < len(data):
            return data[at:]
        return b"" if self._failures else None

    async def parse(self, data: bytes = b"") -> None:
        while self._failures:
            await self.nc._error_cb(self._failures.popleft())
        resets, view, at = self._resets, memoryview(data), 0
        while at < len(data) and resets == self._resets:
            if self._missing:
                part = view[at : at + self._missing]
                self._pieces.append(part)
                self._missing -= len(part)
                at += len(part)
                if not self._missing:
                    await self._hand_over()
                continue
            found = None
            if not self.buf:
                found = _MESSAGE_WITH_HEADERS.match(data, at) or _MESSAGE.match(data, at)
            if found is None:
                # Something else, or a line that is not complete.
                await super().parse(view[at:])  # type: ignore[arg-type]  # it is only appended to a buffer
                if resets == self._resets and self.state == library.AWAITING_MSG_PAYLOAD:
                    self._begin(memoryview(bytes(self.buf)))
                    self.buf.clear()
                return
            subject, sid, _, reply, *sizes = found.groups()
            self.msg_arg.update(subject=subject, sid=int(sid), reply=reply or b"")
            self.header_needed, self.needed = (int(sizes[0]) if len(sizes) > 1 else 0), int(sizes[-1])
            at = found.end()
            if self.needed + _END_BYTES > len(data) - at:
                self._begin(view[at:])
                return
            self._pieces = [view[at : at + self.needed + _END_BYTES]]
            at += self.needed + _END_BYTES
            await self._hand_over()

    def _begin(self, piece: memoryview) -> None:
        self._pieces = [piece] if len(piece) else []
        self._missing = self.needed + _END_BYTES - len(piece)
        self.state = library.AWAITING_CONTROL_LINE

    async def _hand_over(self) -> None:
        """Pass on the message whose payload is complete."""
        pieces, headers_bytes, self._pieces, self.header_needed = self._pieces, self.header_needed, [], 0
        if len(pieces[0]) < headers_bytes or len(pieces[-1]) < _END_BYTES:
            pieces = [memoryview(b"".join(pieces))]
        pieces[-1] = pieces[-1][:-_END_BYTES]
        headers = bytes(pieces[0][:headers_bytes])
        pieces[0] = pieces[0][headers_bytes:]
        payload = b"".join(pieces)
        message = self.msg_arg
        await self.nc._process_msg(message["sid"], message["subject"], message["reply"], payload, headers or None)
