"""Connects the server's loop, which reads and writes a reduce stream, with the function's thread.

Above it: the server. Below it: `reducing`. It does not know gRPC.

    read ─► PartQueue, at most HELD_BYTES_MAX ─► function's thread ─► answer ─► write

While a function that is not async reads a large group, its thread does nothing else, not even for other streams. So it
is called when the group has arrived completely, or HELD_BYTES_MAX / 2 of it, and rarely waits for a client.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from google.protobuf.message import DecodeError

from millstream_udf import columns
from millstream_udf.context import Context
from millstream_udf.failures import Gone
from millstream_udf.groups import Cursor, Part, decode_part
from millstream_udf.reducing import Answer, ReduceFunction
from millstream_udf.values import Message
from millstream_udf.wire.udf.v1 import udf_pb2

HELD_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of parts of one stream that are read and not reduced."""


class PartQueue:
    """Parts that were read. One thread puts them, on its event loop; the function's thread takes them."""

    def __init__(self, *, patient: bool) -> None:
        """`patient`: the consumer cannot wait in the middle of a group without delaying others."""
        self._patient = patient
        self._parts: deque[tuple[Part, int]] = deque()
        self._bytes = 0
        self._taken_bytes = 0
        self._ended = False
        self._unfinished = False
        self._changed = threading.Condition()
        self._filling: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Event()
        self._taking: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None

    async def put(self, data: bytes) -> None:
        """Add one message of the stream, when there is space. Raises `ValueError` for an invalid one."""
        try:
            request = udf_pb2.SealedReduceRequest.FromString(data)
        except DecodeError as error:
            raise ValueError(f"{len(data)} bytes are not a message of a reduce stream: {error}") from error
        if not request.HasField("part"):
            raise ValueError("after Hello, a reduce stream can contain only parts")
        part = decode_part(request.part, continues=self._unfinished)
        self._filling = asyncio.get_running_loop()
        while self._bytes and self._bytes + len(data) > HELD_BYTES_MAX and not self._ended:
            self._room.clear()
            await self._room.wait()
        self._unfinished = part.unfinished
        with self._changed:
            self._parts.append((part, len(data)))
            self._bytes += len(data)
            self._tell()

    def end(self) -> None:
        """Mark the end of the parts."""
        with self._changed:
            self._ended = True
            self._tell()
        self._room.set()

    async def next(self) -> Part | None:
        self._taking = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._ready():
                    return self._take()
                self._news = asyncio.Event()
            await self._news.wait()

    def next_blocking(self) -> Part | None:
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._ended)
            return self._take()

    def _ready(self) -> bool:
        """Whether the next part may be taken."""
        if self._ended or not self._parts:
            return self._ended
        if not self._patient or not self._parts[0][0].unfinished:
            return True
        # The group that this part leaves open has ended in a later part, or much of it has arrived.
        goes_on = all(part.unfinished and not part.groups for part, _ in list(self._parts)[1:])
        return not goes_on or self._bytes >= HELD_BYTES_MAX // 2

    def _take(self) -> Part | None:
        # A consumer that takes the next part has finished the previous one.
        self._bytes -= self._taken_bytes
        self._taken_bytes = 0
        if self._filling is not None and not self._filling.is_closed():
            self._filling.call_soon_threadsafe(self._room.set)
        if not self._parts:
            return None
        part, self._taken_bytes = self._parts.popleft()
        return part

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._news is not None and self._taking is not None and not self._taking.is_closed():
            self._taking.call_soon_threadsafe(self._news.set)


async def reduce_stream(
    function: ReduceFunction, parts: PartQueue, context: Context, write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Answer the groups of a stream, in the function's thread, until its parts end. `write` waits for space."""
    try:
        async with aclosing(function.answers(Cursor(parts), context)) as answers:
            async for answer in answers:
                await write(encode_answer(answer))
    except Gone:
        # In the middle of a group: the client is gone, or this process drains. The group is sent again to the next
        # process.
        return


def encode_answer(answer: Answer) -> bytes:
    """The message to send."""
    results = answer.results
    message = udf_pb2.SealedReduceAnswer(counts=answer.counts, unfinished=answer.unfinished)
    for failure in answer.failures:
        message.failures.add(index=failure.index, error=failure.error, detail=failure.detail, code=failure.code)
    if results:
        message.values = columns.pack_bytes([item.value if isinstance(item, Message) else item for item in results])
        given = [item if isinstance(item, Message) else None for item in results]
        if any(item is not None and item.keys is not None for item in given):
            keys = [group.keys for group, count in zip(answer.groups, answer.counts, strict=True) for _ in range(count)]
            texts = [
                own if item is None or item.keys is None else item.keys for item, own in zip(given, keys, strict=True)
            ]
            message.keys = columns.pack_lists(_encoded(texts)) or columns.pack_no_lists(len(results))
        message.tags = columns.pack_lists(_encoded([() if item is None else item.tags for item in given]))
        message.headers = columns.pack_headers([{} if item is None else item.headers or {} for item in given])
    return udf_pb2.SealedReduceResponse(answer=message).SerializeToString()


def _encoded(texts: list[tuple[str, ...]]) -> list[list[bytes]]:
    return [[text.encode() for text in some] for some in texts]
