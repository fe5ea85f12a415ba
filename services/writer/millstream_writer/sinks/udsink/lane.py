"""The user-defined sink: a function in a separate process gets the records, and returns the outcome of each.

The sink guarantees at least once: whether a record takes effect twice depends on the function. It gets an id for each
record that is the same at every attempt, so it can avoid duplicates.

Above it: the delivery. Below it: the stream of a sidecar (`millstream.udf.protocol`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millstream.record import Position
from millstream.udf.answers import SinkAnswer
from millstream.udf.protocol import SinkStream, StreamName, UdfClient
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WriteResult
from millstream_writer.sinks.udsink.outcomes import failures_of


class _UdfLane(UnkeptLane):
    def __init__(self, stream: SinkStream) -> None:
        self._stream = stream

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        calls = asyncio.Semaphore(self._stream.calls_max)
        answers: list[SinkAnswer | None] = [None] * len(frames)
        try:
            # Tasks start in the order of their creation and the semaphore is fair, so calls are sent in order.
            async with asyncio.TaskGroup() as group:
                for number, item in enumerate(frames):
                    group.create_task(self._call(number, item, calls, answers))
        except ExceptionGroup as errors:
            # The first call that failed cancelled the others; callers expect a single error.
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
