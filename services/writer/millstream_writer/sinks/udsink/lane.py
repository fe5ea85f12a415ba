"""The user-defined sink: records go to a function in a process of its own, which says what became of each.

Above it: the delivery. Below it: the stream of a sidecar (`millstream.udf.protocol`). At least once: what the function
does with a record is its own; it is given an id that is the same at every attempt, so that it can do better.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream import codes
from millstream.naming import MISFIT, reason_and_detail
from millstream.record import Position
from millstream.udf.answers import Outcome, Result, SinkAnswer
from millstream.udf.protocol import SinkStream, StreamName, UdfClient
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

FAILED = "function failed"
"""What a record is counted under when the function gave an error; the error itself is in the message."""
_NO_REASON = "no reason given"


def failures_of(answer: SinkAnswer, records: int) -> list[SinkFailure]:
    """What an answer says about the records it does not count as written."""
    if answer.error:
        return [SinkFailure(row, FAILED, retryable=True, detail=answer.error) for row in range(records)]
    return [_failure_of(outcome) for outcome in answer.outcomes]


def _failure_of(outcome: Outcome) -> SinkFailure:
    row = outcome.index
    given, detail = reason_and_detail(outcome.reason, outcome.detail)
    reason = given or _NO_REASON
    if outcome.result == Result.RETRY:
        return SinkFailure(row, reason, retryable=True, attempted=False, asked=True, delay_s=outcome.delay_us / 1e6)
    if outcome.code == codes.RECORD_MISFIT.number:
        # Counted together, however different what is wrong with them.
        return SinkFailure(row, MISFIT, retryable=False, detail=reason, code=codes.RECORD_MISFIT)
    if outcome.result == Result.DEAD_LETTER:
        return SinkFailure(row, reason, retryable=False, detail=detail)
    if outcome.result == Result.DROP:
        return SinkFailure(row, reason, retryable=False, drop=True)
    if outcome.result == Result.FALLBACK:
        return SinkFailure(row, reason, retryable=False, fallback=True, detail=detail)
    return SinkFailure(row, FAILED, retryable=True, detail=f"{given}\n{detail}" if detail else given)


class _UdfLane(UnkeptLane):
    def __init__(self, stream: SinkStream) -> None:
        self._stream = stream

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        calls = asyncio.Semaphore(self._stream.calls_max)
        answers: list[SinkAnswer | None] = [None] * len(frames)
        try:
            # Tasks start in the order they are made and a semaphore lets them in by turns: calls are sent in order.
            async with asyncio.TaskGroup() as group:
                for number, item in enumerate(frames):
                    group.create_task(self._call(number, item, calls, answers))
        except ExceptionGroup as errors:
            # The first call that failed has cancelled the others; callers know single errors.
            raise errors.exceptions[0] from errors
        failures = [
            failures_of(answer, item.frame.records)
            for answer, item in zip(answers, frames, strict=True)
            if answer is not None
        ]
        return WriteResult(failures if any(failures) else ())

    async def _call(
        self,
        number: int,
        item: SinkFrame,
        calls: asyncio.Semaphore,
        answers: list[SinkAnswer | None],
    ) -> None:
        async with calls:
            answers[number] = await self._stream.call(
                item.frame,
                id_prefix=item.id_prefix,
                first_index=item.first_index,
                attempt=item.attempt,
                traceparent=item.frame.traceparent,
            )


@asynccontextmanager
async def open_udf_sink(client: UdfClient, name: StreamName) -> AsyncIterator[SinkLane]:
    async with client.open_sink(name) as stream:
        yield _UdfLane(stream)
