"""Sends the calls of one lane, and receives their answers, over streams that may break.

    call() ──► outbox ──► send ══► function ══► receive ──► answer() of the call
                 ▲                     x stream breaks
                 └── all calls without an answer, in order, on the next stream

Above it: a protocol, which owns the format of calls and answers. Below it: its wire, one stream to the function, and
what is known of the process behind it (`lives.py`). Each call gets one answer, but is sent again whenever a stream
breaks. If the process has ended by its own doing, the calls that it had are not sent again: their callers find out
which record is the cause (`suspects.py`).

Until it has answered a call, a function may read of what its caller offers. These reads come in between the answers,
are replied to at once, and are not repeated: whoever gets the call again reads again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, runtime_checkable

from millstream import codes
from millstream.background import beside
from millstream.errors import UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses
from millstream.plurals import counted
from millstream.udf.endings import LostCall, ProcessEndedError
from millstream.udf.lives import Lives
from millstream.udf.pieces import PieceMisfitError, Pieces, PiecesLostError
from millstream.udf.protocol import StreamName
from millstream.udf.states import StateReader

_log = logging.getLogger(__name__)

HALF_CLOSE_TIMEOUT_S = 1.0
"""How long an idle stream may take to end after the half-close."""

OPENINGS_MAX = 5
"""How often in a row the function may end its stream because it has failed, before it is given up: as the reads of a
source."""

_Answer = TypeVar("_Answer")
_T = TypeVar("_T")


class WireEndedError(Exception):
    """The stream has ended; the text gives the reason. The next stream may work."""

    def __init__(self, why: str, *, broke: bool = False, failure: str = "") -> None:
        """`broke`: whether it certainly ended with an error. `failure`: what the function itself says of its failure,
        if it has ended the stream because of one."""
        super().__init__(why)
        self.broke = broke
        self.failure = failure


class Wire(Protocol):
    """One stream to a function. Its methods raise `WireEndedError` if it has ended for any reason, and `UdfError` if
    the next stream would end as well."""

    async def send(self, message: bytes) -> None:
        """Sends a message, and waits until there is space for another one."""

    async def receive(self) -> bytes:
        """The next message."""

    async def half_close(self) -> None:
        """Sends nothing more; the function ends the stream when it has answered."""


@runtime_checkable
class PromptWire(Protocol):
    """A wire that can often send without waiting. Not every wire has to be one."""

    def send_at_once(self, message: bytes) -> bool:
        """Sends a message if that needs no waiting. Otherwise returns False, and `send` does it, or raises the
        reason."""


class Read(Protocol):
    """A read of a function during a call."""

    @property
    def call_id(self) -> int:
        """The call."""

    def reply(self, source: StateReader | str) -> bytes:
        """The message with what a reader finds, or with the reason why there is no reader."""


@dataclass(frozen=True, slots=True)
class Dialect(Generic[_Answer]):
    """The messages of one kind of stream. `welcome` and `answer` raise `ValueError` for bytes that are not such a
    message."""

    open: Callable[[], AbstractAsyncContextManager[Wire]]
    """Opens a new stream. Waits for the function."""
    hello: bytes
    """The first message."""
    welcome: Callable[[bytes], int]
    """Reads the function's first message: how many unanswered calls it allows. Raises `UdfError` if the two sides are
    incompatible."""
    answer: Callable[[bytes], tuple[int, Callable[[int], _Answer]]]
    """Reads an answer: the id of its call, and a function that converts it to the answer for a call with a given number
    of records. That function raises `ValueError` if the answer does not fit such a call; `PieceMisfitError` if it is
    the part of one, and not the last."""
    failed: Callable[[str], _Answer]
    """Makes an answer that says that the whole call has failed, and why."""
    read: Callable[[bytes], Read | None] = lambda data: None
    """Reads a message that may be a read; None if it is not one. Raises `ValueError` for bytes that are not a
    message."""
    is_unfinished: Callable[[_Answer], bool] = lambda answer: False
    """Whether more of an answer follows."""


@dataclass(slots=True, eq=False)
class _Call(Generic[_Answer]):
    call_id: int
    encode: Callable[[int], bytes]
    message: bytes
    records: int
    first: Callable[[], str]
    """Returns the id of the first record; empty if it is unknown."""
    where: str
    answered: asyncio.Future[_Answer]
    reader: StateReader | None = field(default=None)
    """What the function may read from until it has answered."""
    alone: bool = field(default=False)
    """The function has no other call meanwhile."""
    sends: int = field(default=0)
    life: int = field(default=0)
    """The process that has the call, or had it when its stream broke; 0 for none."""
    pieces: Pieces[_Answer] | None = field(default=None)
    """The pieces of its answer; None if that may not have any."""
    refused: str = field(default="")
    """Why its answer cannot be used, of which more follows."""

    @property
    def what(self) -> str:
        """Its lane and records, for messages."""
        first = self.first()
        which = f" ({'' if self.records == 1 else 'from '}{first})" if first else ""
        return f"{counted(self.records, 'record')} of {self.where}{which}"


class CallStream(Generic[_Answer]):
    """Calls and their answers. Made by `open_call_stream`."""

    def __init__(self, name: StreamName, dialect: Dialect[_Answer], lives: Lives) -> None:
        self._where = name.where
        self._dialect = dialect
        self._lives = lives
        self._life = 0
        """The process behind the open stream."""
        self._waiting: dict[int, _Call[_Answer]] = {}
        """Calls without an answer, in the order of the calls."""
        self._wire: PromptWire | None = None
        """The open stream, for calls that can be sent at once."""
        self._outbox: deque[_Call[_Answer]] = deque()
        """Calls that were not sent yet on the open stream."""
        self._sent = 0
        """How many calls were sent on the open stream and are not answered."""
        self._ids = 0
        self._failed: Exception | None = None
        self._broke = False
        """Whether the last stream certainly ended with an error."""
        self._closing = False
        self._writing = asyncio.Lock()
        """Held while something waits for space on the stream."""
        self._wake = asyncio.Event()
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls_max = 1
        self.breaks = 0
        """Streams that broke while they were in use."""
        self.refused = 0
        """Answers that did not fit their calls."""

    async def call(
        self,
        encode: Callable[[int], bytes],
        records: int,
        first: Callable[[], str] = lambda: "",
        *,
        reader: StateReader | None = None,
        alone: bool = False,
        take: Callable[[_Answer], Awaitable[None]] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> _Answer:
        """Sends the message that `encode` returns for a call id, and waits for the answer: one that fits, or one that
        says that the function has failed. The message is encoded again for each stream that it is sent on.

        `first` returns the id of the first record, for messages. `reader`: what the function may read from until it has
        answered. `alone`: it is sent when the function has no other call, and no other is sent until it is answered.
        Raises `ProcessEndedError` if the function's process has ended by its own doing while it had the call. `take`:
        gets every part of an answer in several messages except for the last one; then `PiecesLostError` is raised if
        the stream ends after the first of them. `meanwhile`: called after the message was sent, if that needs no
        waiting; otherwise before.
        """
        if not alone:
            return await self._call(encode, records, first, reader, take, meanwhile, alone=False)
        async with self._lives.alone(records):
            return await self._call(encode, records, first, reader, take, meanwhile, alone=True)

    async def _call(
        self,
        encode: Callable[[int], bytes],
        records: int,
        first: Callable[[], str],
        reader: StateReader | None,
        take: Callable[[_Answer], Awaitable[None]] | None,
        meanwhile: Callable[[], None] | None,
        *,
        alone: bool,
    ) -> _Answer:
        if self._failed is not None:
            raise self._failed
        self._ids += 1
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        call = _Call(self._ids, encode, encode(self._ids), records, first, self._where, answered, reader, alone)
        self._waiting[call.call_id] = call
        # A task that only passes it on would cost as much as the call itself, if that is small.
        wire = self._wire if not self._outbox and self._sent < self.calls_max and self._may_send(call) else None
        if wire is not None and wire.send_at_once(call.message):
            self._count_sent(call)
        else:
            self._outbox.insert(0 if alone else len(self._outbox), call)
            self._wake.set()
        if meanwhile is not None:
            meanwhile()
        if take is not None:
            await self._take_pieces(call, take)
        return await call.answered

    async def _take_pieces(self, call: _Call[_Answer], take: Callable[[_Answer], Awaitable[None]]) -> None:
        pieces: Pieces[_Answer] = Pieces()
        call.pieces = pieces
        call.answered.add_done_callback(lambda _: pieces.end())
        try:
            while (piece := await pieces.next()) is not None:
                await take(piece)
        finally:
            # The other calls of the stream go on, whatever becomes of this one.
            pieces.abandon()

    def _may_send(self, call: _Call[_Answer]) -> bool:
        return self._lives.is_open or call.alone

    def _count_sent(self, call: _Call[_Answer]) -> None:
        call.sends += 1
        call.life = self._life
        self._sent += 1
        self._lives.sent(call)

    async def wait_welcomed(self) -> None:
        """Returns when the first stream is open. Raises the error if none can be opened."""
        await asyncio.shield(self._welcomed)

    def finish(self) -> None:
        """Half-closes the stream: it ends when all calls are answered."""
        self._closing = True
        self._wake.set()

    async def run(self) -> None:
        """Keeps a stream open. Ends when the function breaks the protocol: then every call fails with that error."""
        unlisten = self._lives.listen(self._wake.set)
        try:
            await self._keep_open()
        except Exception as error:
            # Every caller that waits for an answer gets the error, whatever it is.
            self._failed = error
            if not self._welcomed.done():
                self._welcomed.set_exception(error)
            for call in self._waiting.values():
                if not call.answered.done():
                    call.answered.set_exception(error)
            self._waiting.clear()
            if not isinstance(error, UdfError):
                raise
        finally:
            unlisten()

    async def _keep_open(self) -> None:
        pauses, failures = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S), 0
        while True:
            answers_before = self._ids - len(self._waiting)
            ended = await self._one_stream()
            if self._closing and not self._waiting:
                return
            self.breaks += 1
            # If the stream brought answers, the function works: then there is no reason for longer pauses.
            if self._ids - len(self._waiting) > answers_before:
                pauses.begin_again()
                failures = 0
            failures = failures + 1 if ended.failure else 0
            if failures >= OPENINGS_MAX:
                raise UdfError(
                    codes.FUNCTION_NOT_STARTED,
                    f"{self._where}: the function failed to open a lane, {failures} times in a row: {ended.failure}",
                )
            oldest = next(iter(self._waiting.values()), None)
            _log.log(
                # If the process has ended, its supervisor reports that; an end for a change is not a fault.
                logging.INFO if pauses.none_yet else logging.WARNING,
                "%s: the stream to the function ended (%s); %d calls without an answer are sent again in %.1f s%s",
                self._where,
                ended,
                len(self._waiting),
                pauses.next_s,
                f"; the oldest one, with {oldest.records} records, for the {oldest.sends + 1}th time"
                if oldest is not None and oldest.sends > 2
                else "",
            )
            await pauses.wait()

    async def _one_stream(self) -> WireEndedError:
        """Opens a stream, uses it until it ends, and returns how it ended. Raises `UdfError` if the next stream would
        end the same way."""
        try:
            async with self._dialect.open() as wire:
                await wire.send(self._dialect.hello)
                self._take_welcome(await wire.receive())
                self._life = self._lives.number
                self._begin_again()
                async with beside(self._send(wire), f"calls of {self._where}"):
                    self._wire = wire if isinstance(wire, PromptWire) else None
                    while True:
                        data = await wire.receive()
                        read = understood(self._where, self._dialect.read, data)
                        if read is None:
                            await self._settle(data)
                        else:
                            await self._reply(wire, read)
        except WireEndedError as ended:
            if self._sent:
                self._broke = ended.broke
            return ended
        finally:
            self._wire = None
            for call in self._waiting.values():
                self._lives.settled(call)
            self._sent = 0

    def _begin_again(self) -> None:
        """Put the calls without an answer into the outbox, except for those that the last process had when it ended by
        its own doing."""
        for call in list(self._waiting.values()):
            # A stream also breaks if something is sent to a process that was asked to end and has just done so. A call
            # that ends its process does it again.
            broke = self._broke and call.sends > 1
            lost = LostCall(call.life, call.alone and self._lives.is_cause_alone(call.life), broke)
            ending = self._lives.cause(lost)
            if ending is not None and not call.answered.done():
                call.answered.set_exception(ProcessEndedError(ending, alone=lost.alone))
            if call.pieces is not None and call.pieces.began and not call.answered.done():
                call.answered.set_exception(
                    PiecesLostError("the stream to the function ended in the middle of an answer")
                )
            call.life, call.refused = 0, ""
        # The call that has the function alone comes first: the others wait for its end.
        calls = [call for call in self._waiting.values() if not call.answered.done()]
        self._waiting = {call.call_id: call for call in calls}
        self._outbox = deque(sorted(calls, key=lambda call: not call.alone))
        for call in self._outbox:
            # What the function takes may have changed with the stream.
            call.message = call.encode(call.call_id)

    async def _send(self, wire: Wire) -> None:
        try:
            while True:
                while self._outbox and self._sent < self.calls_max and self._may_send(self._outbox[0]):
                    call = self._outbox.popleft()
                    self._count_sent(call)
                    async with self._writing:
                        await wire.send(call.message)
                if self._closing and not self._outbox and not any(call.reader for call in self._waiting.values()):
                    await wire.half_close()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (WireEndedError, UdfError):
            # The receiving side gets the same error.
            return

    def _take_welcome(self, data: bytes) -> None:
        self.calls_max = understood(self._where, self._dialect.welcome, data)
        if self.calls_max < 1:
            raise broken(self._where, "it does not allow any calls")
        if not self._welcomed.done():
            self._welcomed.set_result(None)

    async def _reply(self, wire: Wire, read: Read) -> None:
        if not 0 < read.call_id <= self._ids:
            raise broken(self._where, f"it reads for call {read.call_id}, which does not exist")
        call = self._waiting.get(read.call_id)
        source: StateReader | str = "the call has its answer already, or nobody waits for one"
        if call is not None and not call.answered.done():
            source = call.reader or "the function has said that it has no lazy states"
        message = read.reply(source)
        # Nothing more is received until there is space for it: that is what bounds the replies of a function that reads
        # faster than it receives.
        if self._wire is None or not self._wire.send_at_once(message):
            async with self._writing:
                await wire.send(message)

    async def _settle(self, data: bytes) -> None:
        call_id, fit = understood(self._where, self._dialect.answer, data)
        call = self._waiting.get(call_id)
        if call is None or not call.sends:
            raise broken(
                self._where,
                f"it answered call {call_id} twice"
                if 0 < call_id <= self._ids
                else f"it answered call {call_id}, which does not exist",
            )
        try:
            answer = fit(call.records)
            follows = self._dialect.is_unfinished(answer)
        except ValueError as error:
            call.refused = call.refused or self._refuse(call, error)
            answer, follows = self._dialect.failed(call.refused), isinstance(error, PieceMisfitError)
        if follows:
            if call.pieces is not None and not call.refused:
                await call.pieces.put(answer)
            return
        if call.refused:
            # A part of it did not fit.
            answer = self._dialect.failed(call.refused)
        del self._waiting[call_id]
        self._sent -= 1
        self._lives.settled(call)
        self._wake.set()
        # The caller may have been cancelled; then the answer is not needed.
        if not call.answered.done():
            call.answered.set_result(answer)

    def _refuse(self, call: _Call[_Answer], error: ValueError) -> str:
        """Returns the error for an answer that does not fit. No part of such an answer is used, and it counts as a
        failure of the function."""
        self.refused += 1
        first = call.first()
        which = f", of which the first is {first}" if first else ""
        what = f"its answer to call {call.call_id} ({call.records} records{which}) does not fit: {error}"
        if self.refused.bit_count() == 1:
            # Only at each doubling, because a function may do this at every call.
            _log.warning("%s: %s (%d such answers so far; none of them is used)", self._where, what, self.refused)
        return f"the function breaks its protocol: {what}"


def understood(where: str, decode: Callable[[bytes], _T], data: bytes) -> _T:
    """What `decode` makes of a message. Raises `UdfError` if it raises `ValueError`."""
    try:
        return decode(data)
    except ValueError as error:
        raise broken(where, f"it sent {len(data)} bytes that are not a message of the protocol: {error}") from error


def broken(where: str, what: str) -> UdfError:
    """The error for a function that breaks its protocol."""
    return UdfError(codes.FUNCTION_PROTOCOL, f"{where}: the function breaks its protocol: {what}")


@asynccontextmanager
async def open_call_stream(
    name: StreamName, dialect: Dialect[_Answer], lives: Lives
) -> AsyncIterator[CallStream[_Answer]]:
    """An open stream of calls. Waits for the function; raises `UdfError` if the two sides are incompatible. `lives`:
    what is known of the function's processes."""
    stream = CallStream(name, dialect, lives)
    async with beside(stream.run(), f"stream of {name.where}") as running:
        await stream.wait_welcomed()
        yield stream
        stream.finish()
        await asyncio.wait((running,), timeout=HALF_CLOSE_TIMEOUT_S)
