"""One stream of calls that survives the death of the process it talks to.

    call() ──► outbox ──► write ══► sidecar ══► read ──► answer() of the call
                 ▲                     x stream breaks
                 └── all calls without an answer, in order, on the next stream

Above it: `client.py`, which knows what calls and answers look like. Below it: gRPC. An answer settles the call it names
once; a call is sent as often as streams break. It knows nothing of the process behind the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from millstream.errors import UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.udf.background import beside
from millstream.udf.protocol import StreamName

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
"""Of `proto/millstream/udf/v1/udf.proto`."""
HALF_CLOSE_TIMEOUT_S = 1.0
"""How long an idle stream may take to end after it was half-closed."""

# A stream that ends with one of these would end with it again: somebody has to change something.
FATAL = {
    grpc.StatusCode.UNIMPLEMENTED: "the function does not serve this kind",
    grpc.StatusCode.FAILED_PRECONDITION: "the function refused the stream",
    grpc.StatusCode.INVALID_ARGUMENT: "the function refused the stream",
    grpc.StatusCode.PERMISSION_DENIED: "the function refused the stream",
    grpc.StatusCode.UNAUTHENTICATED: "the function refused the stream",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "a message was larger than the protocol allows",
    grpc.StatusCode.OUT_OF_RANGE: "a message was larger than the protocol allows",
}

RawCall = Any
"""grpc.aio.StreamStreamCall of bytes; its stubs are generic where the class is not."""

_Answer = TypeVar("_Answer")
_T = TypeVar("_T")


class Welcome(Protocol):
    """The server's first message."""

    @property
    def protocol_version(self) -> int: ...
    @property
    def calls_max(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Dialect(Generic[_Answer]):
    """What one kind of stream says."""

    method: str
    """Full gRPC method name."""
    hello: bytes
    """The encoded first message."""
    welcome: Callable[[bytes], Welcome | None]
    """Decodes the server's first message; None when it is something else."""
    answer: Callable[[bytes], tuple[int, _Answer]]
    """Decodes an answer: call id and answer. Raises `ValueError`."""
    check: Callable[[_Answer, int], None]
    """Raises `ValueError` when an answer does not fit a call of so many records."""
    failed: Callable[[int, str], _Answer]
    """The answer that says that a call has failed as a whole, and why."""


@dataclass(slots=True, eq=False)
class _Call(Generic[_Answer]):
    call_id: int
    message: bytes
    records: int
    first: str
    """Id of the first of them, where it is known."""
    answered: asyncio.Future[_Answer]
    sends: int = field(default=0)


class CallStream(Generic[_Answer]):
    """Calls and their answers. Made by `open_call_stream`."""

    def __init__(self, channel: grpc.aio.Channel, name: StreamName, dialect: Dialect[_Answer]) -> None:
        self._channel = channel
        self._name = name
        self._dialect = dialect
        self._waiting: dict[int, _Call[_Answer]] = {}
        """Without an answer, in the order of calling."""
        self._outbox: deque[_Call[_Answer]] = deque()
        """Not yet sent on the stream that is open."""
        self._sent = 0
        """Sent on the stream that is open, and not answered."""
        self._ids = 0
        self._failed: Exception | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls_max = 1
        self.breaks = 0
        """Streams that broke while they were used."""
        self.refused = 0
        """Answers that did not fit their calls."""

    async def call(self, encode: Callable[[int], bytes], records: int, first: str = "") -> _Answer:
        """Send what `encode` makes for a call id, and wait for the answer: one that fits, or one that says that the
        function has failed."""
        if self._failed is not None:
            raise self._failed
        self._ids += 1
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        call = _Call(self._ids, encode(self._ids), records, first, answered)
        self._waiting[call.call_id] = call
        self._outbox.append(call)
        self._wake.set()
        return await call.answered

    async def wait_welcomed(self) -> None:
        """Returns when the first stream is open. Raises why none can be."""
        await asyncio.shield(self._welcomed)

    def finish(self) -> None:
        """Half-close: the stream ends when what was called is answered."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Keep a stream open. Ends when the function breaks the protocol: then every call fails with what it did."""
        try:
            await self._keep_open()
        except Exception as error:
            # Whoever waits for an answer must hear of it, whatever it is.
            self._failed = error
            if not self._welcomed.done():
                self._welcomed.set_exception(error)
            for call in self._waiting.values():
                if not call.answered.done():
                    call.answered.set_exception(error)
            self._waiting.clear()
            if not isinstance(error, UdfError):
                raise

    async def _keep_open(self) -> None:
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        while True:
            answers_before = self._ids - len(self._waiting)
            why = await self._one_stream()
            if self._closing and not self._waiting:
                return
            self.breaks += 1
            # A stream that got something done shows that the function works: then there is no reason to hold back.
            if self._ids - len(self._waiting) > answers_before:
                pauses.begin_again()
            oldest = next(iter(self._waiting.values()), None)
            _log.warning(
                "%s: the stream to the function ended (%s); %d calls without an answer are sent again in %.1f s%s",
                self.where,
                why,
                len(self._waiting),
                pauses.next_s,
                f"; the oldest, of {oldest.records} records, for the {oldest.sends + 1}th time"
                if oldest is not None and oldest.sends > 2
                else "",
            )
            await pauses.wait()

    async def _one_stream(self) -> str:
        """Open a stream and use it until it ends; why it did. Raises `UdfError` for ends that would come again."""
        stream: RawCall = self._channel.stream_stream(self._dialect.method)(wait_for_ready=True)
        try:
            await stream.write(self._dialect.hello)
            welcome = await stream.read()
            if welcome is grpc.aio.EOF:
                raise_fatal(self.where, await stream.code(), await stream.details())
                return f"before it began: {await stream.details() or 'no reason given'}"
            self._take_welcome(welcome)
            self._outbox = deque(call for call in self._waiting.values() if not call.answered.done())
            self._waiting = {call.call_id: call for call in self._outbox}
            self._sent = 0
            async with beside(self._write(stream), f"calls of {self.where}"):
                while (data := await stream.read()) is not grpc.aio.EOF:
                    self._settle(data)
            raise_fatal(self.where, await stream.code(), await stream.details())
            return f"{(await stream.code()).name}: {await stream.details() or 'the function closed it'}"
        except grpc.aio.AioRpcError as error:
            raise_fatal(self.where, error.code(), error.details())
            return f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError as error:
            # A write on a stream that has just ended.
            return str(error)
        finally:
            stream.cancel()

    async def _write(self, stream: RawCall) -> None:
        try:
            while True:
                while self._outbox and self._sent < self.calls_max:
                    call = self._outbox.popleft()
                    call.sends += 1
                    self._sent += 1
                    await stream.write(call.message)
                if self._closing and not self._outbox:
                    await stream.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended; the reader knows how.
            return

    def _take_welcome(self, data: bytes) -> None:
        welcome = self._decoded(self._dialect.welcome, data)
        if welcome is None:
            raise self._broken("its first message is not Welcome")
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise self._broken(
                f"it speaks version {welcome.protocol_version} of the protocol, and this Millstream version "
                f"{PROTOCOL_VERSION}; "
                "install a version of the SDK that goes with it"
            )
        if welcome.calls_max < 1:
            raise self._broken("it allows no calls (calls_max is 0)")
        self.calls_max = welcome.calls_max
        if not self._welcomed.done():
            self._welcomed.set_result(None)

    def _settle(self, data: bytes) -> None:
        call_id, answer = self._decoded(self._dialect.answer, data)
        call = self._waiting.get(call_id)
        if call is None or not call.sends:
            raise self._broken(
                f"it answered call {call_id} twice"
                if 0 < call_id <= self._ids
                else f"it answered call {call_id}, which nobody made"
            )
        try:
            self._dialect.check(answer, call.records)
        except ValueError as error:
            answer = self._dialect.failed(call_id, self._refuse(call, error))
        del self._waiting[call_id]
        self._sent -= 1
        self._wake.set()
        # Whoever called may have been cancelled; the answer is then of no use to anybody.
        if not call.answered.done():
            call.answered.set_result(answer)

    def _refuse(self, call: _Call[_Answer], error: ValueError) -> str:
        """Nothing of an answer that does not fit is used. It is a failure of the function like any other."""
        self.refused += 1
        which = f", of which the first is {call.first}" if call.first else ""
        what = f"its answer to call {call.call_id} ({call.records} records{which}) does not fit: {error}"
        if self.refused.bit_count() == 1:
            # At each doubling: a function may do so at every call.
            _log.warning("%s: %s (%d such answers; nothing of them is used)", self.where, what, self.refused)
        return f"the function breaks its protocol: {what}"

    def _decoded(self, decode: Callable[[bytes], _T], data: bytes) -> _T:
        try:
            return decode(data)
        except (DecodeError, ValueError) as error:
            raise self._broken(f"it sent {len(data)} bytes that are no message of the protocol: {error}") from error

    def _broken(self, what: str) -> UdfError:
        return UdfError(f"{self.where}: the function breaks its protocol: {what}")

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self._name.pipeline}/{self._name.vertex}/{self._name.lane}"


def raise_fatal(where: str, code: grpc.StatusCode, details: str | None) -> None:
    """Raise `UdfError` when a stream ended in a way that would come again."""
    if code in FATAL:
        raise UdfError(f"{where}: {FATAL[code]}: {details or code.name}")


@asynccontextmanager
async def open_call_stream(
    channel: grpc.aio.Channel, name: StreamName, dialect: Dialect[_Answer]
) -> AsyncIterator[CallStream[_Answer]]:
    """A stream that is open. Waits for the process behind it; raises `UdfError` when the two sides do not fit."""
    stream = CallStream(channel, name, dialect)
    async with beside(stream.run(), f"stream of {stream.where}") as running:
        await stream.wait_welcomed()
        yield stream
        stream.finish()
        await asyncio.wait((running,), timeout=HALF_CLOSE_TIMEOUT_S)
