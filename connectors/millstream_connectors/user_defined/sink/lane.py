"""The user-defined sink: a function in a separate process gets the records, and returns the outcome of each.

The sink guarantees at least once: whether a record takes effect twice depends on the function. It gets an id for each
record that is the same at every attempt, so it can avoid duplicates.

Above it: the delivery. Below it: the stream of a sidecar (`millstream.udf.streams`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from millstream.record import Position
from millstream.udf.answers import Outcome, Result, SinkAnswer
from millstream.udf.endings import ProcessEndedError
from millstream.udf.protocol import StreamName, UdfClient
from millstream.udf.streams import SinkStream
from millstream.udf.suspects import Suspects, outcome_of
from millstream_connectors.user_defined.sink.outcomes import failures_of
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WriteResult


class _UdfLane(UnkeptLane):
    def __init__(self, stream: SinkStream) -> None:
        self._stream = stream

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        calls = asyncio.Semaphore(self._stream.calls_max)
        try:
            # Tasks start in the order of their creation and the semaphore is fair, so calls are sent in order.
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(self._call(item, calls)) for item in frames]
        except ExceptionGroup as errors:
            # The first call that failed cancelled the others; callers expect a single error.
            raise errors.exceptions[0] from errors
        failures = [failures_of(one.result(), item.frame.records) for one, item in zip(asked, frames, strict=True)]
        return WriteResult(failures if any(failures) else ())

    async def _call(self, item: SinkFrame, calls: asyncio.Semaphore) -> SinkAnswer:
        async with calls:
            try:
                return await self._offer(item)
            except ProcessEndedError as ended:
                return await self._in_parts(item, ended)

    async def _offer(self, item: SinkFrame, *, alone: bool = False) -> SinkAnswer:
        return await self._stream.call(
            item.frame,
            id_prefix=item.id_prefix,
            first_index=item.first_index,
            attempt=item.attempt,
            traceparent=item.frame.traceparent,
            alone=alone,
        )

    async def _in_parts(self, item: SinkFrame, ended: ProcessEndedError) -> SinkAnswer:
        """The answer for records of which some end the process: finds these, and has the others written, in order."""
        suspects = Suspects()
        waiting: deque[Sequence[int]] = deque(suspects.ended(range(item.frame.records), alone=ended.alone))
        outcomes: list[Outcome] = []
        while waiting:
            rows = waiting.popleft()
            try:
                answer = await self._offer(item.take(rows), alone=suspects.must_be_alone(rows))
            except ProcessEndedError as error:
                pieces = suspects.ended(rows, alone=error.alone)
                waiting.extendleft(reversed(pieces))
                if not pieces:
                    outcomes.append(outcome_of(error.ending, rows[0]))
                continue
            suspects.answered(rows)
            if answer.error:
                outcomes += [Outcome(row, Result.ERROR, answer.error) for row in rows]
            outcomes += [replace(outcome, index=rows[outcome.index]) for outcome in answer.outcomes]
        return SinkAnswer(outcomes)


@asynccontextmanager
async def open_udf_sink(client: UdfClient, name: StreamName) -> AsyncIterator[SinkLane]:
    async with client.open_sink(name) as stream:
        yield _UdfLane(stream)
