"""Sends the outputs of a function while it makes them, in several messages of one answer.

    records ─► function ─► outputs of each record ─► those of the first record that is not over ─► a piece ─► send
                 RUN_BYTES at a time                  the others wait for their turn               PIECE_BYTES, or
                                                                                                   PIECE_AGE_S old

So a generator needs the memory of what is not sent, and stops where the receiver does not keep up. Outputs stay in the
order of their records. A record that fails may have outputs in pieces that were sent: its outcome says that they do not
count. Above it: the server. Below it: `execution`, which has the function, and `outputs`. It runs in the function's
thread, and does not know gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from contextvars import copy_context
from typing import Any

from millstream_udf.answering import MESSAGE_BYTES_MAX, context_of, too_much
from millstream_udf.cancellation import failure_of
from millstream_udf.context import CURRENT, Context
from millstream_udf.definition import Definition, Flavour
from millstream_udf.execution import FunctionLane, items_of
from millstream_udf.failures import FAILURES, Outcomes, error_text, failure
from millstream_udf.fields import Data
from millstream_udf.inputs import FrameInputs
from millstream_udf.outputs import answer_of, each_output, output_of, sendable
from millstream_udf.outside_loop import outside_loop
from millstream_udf.returned_values import outputs_max, too_many
from millstream_udf.typed_values import Encoder
from millstream_udf.values import Message
from millstream_udf.wire.udf.v1 import udf_pb2

PIECE_BYTES = 1024 * 1024
PIECE_RECORDS = 4096
"""Bytes and outputs of a piece: about those of a stored frame."""
PIECE_AGE_S = 0.05
"""A piece that is older is sent with the next output, however small it is."""
RUN_BYTES = 64 * 1024
"""Bytes of outputs that are taken from the function for a record before it has its turn."""
AHEAD_BYTES_MAX = 8 * PIECE_BYTES
"""Bytes of records that are over and wait for an earlier one; beyond it, no further record begins."""
_OUTPUT_BYTES = 16
"""Overhead of an output in its columns."""

Send = Callable[[udf_pb2.SealedMapAnswer], Coroutine[Any, Any, None]]
"""Sends a part of an answer. Waits while the receiver does not keep up."""


def refuses_streaming(definition: Definition) -> str:
    """Why the outputs of a function cannot be sent as it makes them, and what to do; empty if they can."""
    if definition.streams:
        return ""
    if definition.states:
        why = "remembers something for each key: put what yields into a function and a vertex of its own"
    elif definition.tables:
        why = "reads tables: put what yields into a function and a vertex of its own"
    else:
        why = "processes whole batches: write it for single records"
    return f"the pipeline has `streaming: true`, and {definition.name} {why}, or leave `streaming` out"


async def stream_map(
    lane: FunctionLane, hello: udf_pb2.Hello, call: udf_pb2.SealedMapCall, frame: Data, send: Send
) -> udf_pb2.SealedMapAnswer:
    """As `answer_map`, with `send` for every part of the answer except for the last one, which is returned."""
    context = context_of(
        hello,
        attempt=call.attempt,
        watermark_us=call.watermark_us,
        traceparent=call.traceparent,
        edge=call.edge,
    )
    try:
        inputs = FrameInputs(frame or call.frame, call.id_prefix, call.first_index)
        return await _StreamedCall(lane, call.call_id, inputs, context, send).answer()
    except FAILURES as error:
        return udf_pb2.SealedMapAnswer(call_id=call.call_id, error=error_text(failure(error)))


class _StoppedError(Exception):
    """The rest of the answer is not needed: it cannot be sent, or it is too large."""


class _Turn:
    """One record."""

    __slots__ = ("count", "error", "index", "is_over", "outputs", "size")

    def __init__(self, index: int) -> None:
        self.index = index
        self.outputs: list[bytes | Message] = []
        """Those that are not in a piece."""
        self.size = 0
        self.count = 0
        """How many there were."""
        self.error: BaseException | None = None
        self.is_over = False


class _StreamedCall:
    """The records of one call."""

    def __init__(self, lane: FunctionLane, call_id: int, inputs: FrameInputs, context: Context, send: Send) -> None:
        self._lane = lane
        self._definition = lane.definition
        self._encode = lane.definition.encode
        self._call_id = call_id
        self._inputs = inputs
        self._context = context
        self._arguments = (context,) if lane.definition.wants_context else ()
        self._send = send
        self._turns: deque[_Turn] = deque()
        """The records that have begun and are not in a piece with all of their outputs, in order."""
        self._turn_changed = asyncio.Event()
        self._ahead = 0
        """Bytes of those that are over."""
        self._outputs: list[bytes | Message] = []
        """The next piece."""
        self._parents: list[int] = []
        self._size = 0
        self._sent_s = time.monotonic()
        self._sent_bytes = 0
        self._outcomes = Outcomes()
        self._owner: asyncio.Task[Any] | None = None
        self._stopped: BaseException | None = None
        """Why the rest of the answer is not needed."""

    async def answer(self) -> udf_pb2.SealedMapAnswer:
        """The last part of the answer. Raises what `send` raises."""
        self._owner = asyncio.current_task()
        CURRENT.set(self._context)
        try:
            await self._run_all()
            await self._advance()
            return self._piece()
        except _StoppedError as stopped:
            if isinstance(self._stopped, _StoppedError):
                return udf_pb2.SealedMapAnswer(call_id=self._call_id, error=str(stopped))
            assert self._stopped is not None, "it is set before it is raised"
            raise self._stopped from None

    async def _run_all(self) -> None:
        items, misfits = items_of(self._definition, self._inputs, self._context)
        # A function that is not async cannot cancel the task that it runs in.
        one_by_one = self._definition.concurrency == 1 and not self._definition.is_async
        try:
            async with asyncio.TaskGroup() as tasks:
                for place, item in enumerate(items):
                    while self._ahead > AHEAD_BYTES_MAX:
                        await self._next_turn()
                    turn = _Turn(place)
                    if place in misfits:
                        self._turns.append(turn)
                        await self._over(turn, misfits[place])
                        continue
                    await self._lane.slots.acquire()
                    self._turns.append(turn)
                    if one_by_one:
                        await self._run(turn, item)
                    else:
                        tasks.create_task(self._run(turn, item))
        except BaseExceptionGroup as group:
            # Those of the other tasks are cancellations.
            raise group.exceptions[0] from None

    async def _run(self, turn: _Turn, item: Any) -> None:
        error: BaseException | None = None
        try:
            await self._take_outputs(turn, item)
        except _StoppedError:
            raise
        except asyncio.CancelledError as cancelled:
            assert self._owner is not None, "it is set at the beginning"
            if self._stopped is not None or self._owner.cancelling():
                raise
            # The function has raised it, or has cancelled the task that it runs in.
            error = failure_of(cancelled)
        except FAILURES as raised:
            error = failure(raised)
        finally:
            self._lane.slots.release()
        await self._over(turn, error)

    async def _take_outputs(self, turn: _Turn, item: Any) -> None:
        """Call the function, and take its outputs. Raises what it raises."""
        definition, call, arguments = self._definition, self._lane.plain, (item, *self._arguments)
        if definition.flavour is Flavour.ASYNC_GENERATOR:
            async with aclosing(call(*arguments)) as made:
                async for output in made:
                    if self._add(turn, output_of(output, self._encode)):
                        await self._move(turn)
            return
        if definition.is_async:
            outputs = _outputs_of(await call(*arguments), self._encode)
        else:
            outputs = _made(call, arguments, self._encode)
        while not await self._fill(turn, outputs):
            await self._move(turn)

    async def _fill(self, turn: _Turn, outputs: Iterator[bytes | Message]) -> bool:
        """Take outputs until there are enough to pass on. Returns whether those were all."""
        if self._definition.is_async:
            return self._filled(turn, outputs)
        if self._lane.pool is None:
            with outside_loop():
                return self._filled(turn, outputs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._lane.pool, copy_context().run, self._filled, turn, outputs)

    def _filled(self, turn: _Turn, outputs: Iterator[bytes | Message]) -> bool:
        return not any(self._add(turn, output) for output in outputs)

    def _add(self, turn: _Turn, output: bytes | Message) -> bool:
        """Add an output. Returns whether there are enough to pass on."""
        output = sendable(output)
        turn.count += 1
        if turn.count > outputs_max():
            raise too_many(outputs_max())
        turn.outputs.append(output)
        value = output.value if isinstance(output, Message) else output
        turn.size += len(value) + _OUTPUT_BYTES
        return turn.size >= RUN_BYTES or (self._has_turn(turn) and time.monotonic() - self._sent_s > PIECE_AGE_S)

    def _has_turn(self, turn: _Turn) -> bool:
        return self._turns[0] is turn

    async def _move(self, turn: _Turn) -> None:
        """Wait for the turn of a record, and pass its outputs on."""
        while not self._has_turn(turn):
            await self._next_turn()
        self._put_in(turn)
        await self._send_full()

    async def _next_turn(self) -> None:
        """Wait until another record has its turn."""
        if self._turns[0].is_over:
            await self._advance()
            return
        self._turn_changed.clear()
        await self._turn_changed.wait()

    async def _over(self, turn: _Turn, error: BaseException | None) -> None:
        """A record is over."""
        turn.error, turn.is_over = error, True
        self._ahead += turn.size
        await self._advance()

    async def _advance(self) -> None:
        """Pass on what is over and has its turn. It may be cancelled in the middle, by a function that has cancelled
        the task that it runs in; then others do the rest."""
        while self._turns and self._turns[0].is_over:
            first = self._turns.popleft()
            self._ahead -= first.size
            if first.error is None:
                self._put_in(first)
            else:
                self._take_out(first)
                self._outcomes.add(first.index, first.error)
            self._turn_changed.set()
            await self._send_full()

    def _put_in(self, turn: _Turn) -> None:
        self._outputs.extend(turn.outputs)
        self._parents.extend([turn.index] * len(turn.outputs))
        self._size += turn.size
        turn.outputs, turn.size = [], 0

    def _take_out(self, turn: _Turn) -> None:
        """What has not been sent of a record that has failed need not be sent."""
        while self._parents and self._parents[-1] == turn.index:
            self._parents.pop()
            self._outputs.pop()

    async def _send_full(self) -> None:
        """Send the next piece if it is large or old enough."""
        is_old = time.monotonic() - self._sent_s > PIECE_AGE_S
        if self._size >= PIECE_BYTES or len(self._outputs) >= PIECE_RECORDS or (is_old and self._outputs):
            piece = self._piece()
            piece.unfinished = True
            try:
                # The piece has outputs of other records, too, so it is sent whatever a function does to its task.
                await asyncio.shield(self._send(piece))
            except Exception as error:
                self._stopped = error
                raise _StoppedError from error

    def _piece(self) -> udf_pb2.SealedMapAnswer:
        """What was not sent. Raises `_StoppedError` if the answer is too large."""
        self._sent_bytes += self._size
        if self._sent_bytes > MESSAGE_BYTES_MAX:
            self._stopped = _StoppedError(too_much("outputs", self._sent_bytes))
            raise self._stopped
        answer = answer_of(self._inputs, self._outputs, self._parents)
        answer.call_id = self._call_id
        answer.outcomes.extend(self._outcomes.items)
        self._outputs, self._parents, self._size, self._sent_s = [], [], 0, time.monotonic()
        self._outcomes.items = []
        return answer


def _made(call: Callable[..., Any], arguments: tuple[Any, ...], encode: Encoder) -> Iterator[bytes | Message]:
    """The outputs of a function that is not async. It is called with the first one."""
    yield from _outputs_of(call(*arguments), encode)


def _outputs_of(result: Any, encode: Encoder) -> Iterator[bytes | Message]:
    if isinstance(result, FAILURES):
        raise result
    return each_output(result, encode)
