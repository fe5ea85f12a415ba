"""A stream whose function reads of lazy states while it has calls.

    client ══ calls, what was found ══► receive ─┬─► a call: answered, by the function
                                                 └─► what was found: to the read that waits for it
           ◄══ answers, reads ═════════ send ◄─── the function, in any thread

Above it: the server. Below it: the stream, a socket or gRPC. Whoever reads waits in the function, so the stream is
received all the time: nothing here waits for a call to end. When the stream ends, so does each read, with an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, Protocol

import grpc.aio

from millstream_udf.state_found import Found, is_found
from millstream_udf.state_reads import unpack_found
from millstream_udf.state_specs import StateError
from millstream_udf.wire.udf.v1 import udf_pb2

Answer = Callable[[bytes], Coroutine[Any, Any, Sequence[bytes]]]
Run = Callable[[Coroutine[Any, Any, Sequence[bytes]]], Awaitable[Sequence[bytes]]]


class Stream(Protocol):
    """The messages of a stream. `send` raises `ConnectionError` or `BaseError` of gRPC if it is lost."""

    async def receive(self) -> bytes | None:
        """The next message; None at the end."""

    async def send(self, *parts: bytes) -> None:
        """Send a message."""

    def stop(self) -> None:
        """Receive nothing more."""


class Conversation:
    """One such stream."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._writing = asyncio.Lock()
        self._numbers = count(1)
        self._reads: dict[int, Future[Found]] = {}
        """The reads that wait."""
        self._calls = 0
        """Calls that are not answered."""
        self._stopping = False
        self._ended = False

    def stop(self) -> None:
        """Take no more calls. What is found for those that are there is still received."""
        self._stopping = True
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if self._stopping and not self._calls and self._stream is not None:
            self._stream.stop()

    async def run(self, stream: Stream, answer: Answer, run: Run) -> None:
        """Answer the calls of a stream until its end. `answer` makes the answer to a call, which `run` runs where the
        function is."""
        self._stream, self._loop = stream, asyncio.get_running_loop()
        self._stop_if_done()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    while (data := await stream.receive()) is not None:
                        if is_found(data):
                            self._take(data)
                        elif not self._stopping:
                            self._calls += 1
                            tasks.create_task(self._handle(data, answer, run))
                finally:
                    self._end()
        finally:
            self._ended = True

    async def _handle(self, data: bytes, answer: Answer, run: Run) -> None:
        try:
            await self._send(*await run(answer(data)))
        except (grpc.aio.BaseError, ConnectionError):
            # The stream is lost, so nothing more is received, either. Unanswered calls are sent again on the next one.
            return
        finally:
            self._calls -= 1
            self._stop_if_done()

    async def _send(self, *parts: bytes) -> None:
        assert self._stream is not None, "it runs"
        async with self._writing:
            await self._stream.send(*parts)

    def ask(self, read: udf_pb2.StateRead) -> Future[Found]:
        """See `Ask`."""
        answer: Future[Found] = Future()
        # It cannot be cancelled: the answer comes anyway.
        answer.set_running_or_notify_cancel()
        read.read_id = next(self._numbers)
        message = udf_pb2.SealedMapResponse(read=read).SerializeToString()
        assert self._loop is not None, "it runs"
        try:
            self._loop.call_soon_threadsafe(self._begin, read.read_id, message, answer)
        except RuntimeError:
            answer.set_exception(_gone())
        return answer

    def _begin(self, number: int, message: bytes, answer: Future[Found]) -> None:
        sending = self._ask(message)
        try:
            if self._ended or self._tasks is None:
                raise RuntimeError
            self._tasks.create_task(sending)
        except RuntimeError:
            # Nothing is received any more.
            sending.close()
            answer.set_exception(_gone())
            return
        self._reads[number] = answer

    async def _ask(self, message: bytes) -> None:
        try:
            await self._send(message)
        except (grpc.aio.BaseError, ConnectionError):
            # The end of the stream ends its reads.
            return

    def _take(self, data: bytes) -> None:
        number, found = unpack_found(data)
        answer = self._reads.pop(number, None)
        if answer is None:
            return
        if isinstance(found, StateError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def _end(self) -> None:
        """End the reads that wait: nothing more is received."""
        self._ended = True
        for answer in self._reads.values():
            answer.set_exception(_gone())
        self._reads.clear()


def _gone() -> StateError:
    return StateError(
        "the state cannot be read, because the stream of the call has ended. Nothing that the function still does for "
        "the record counts: the call is repeated"
    )
