"""Lanes of sinks that write into tables, and what their tests write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.unit.writer.sink_frames import sink_frame

LATER = {"commitEvery": "1h"}


def numbers(sequence: int, *, name: str = "") -> SinkFrame:
    """Ten of them, from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + 10)], sequence, name=name)


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    """The lane, for a minute at most."""
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


async def written(lane: SinkLane, *sequences: int) -> None:
    """Returns when these numbers are durable."""
    for sequence in sequences:
        await lane.write([numbers(sequence)], Position(sequence))
    while lane.durable != Position(sequences[-1]):
        with suppress(RetryLaterError):
            await lane.flush()


async def again(call: Callable[[], Awaitable[object]]) -> None:
    """Until it is taken, as the delivery does."""
    while True:
        try:
            await call()
        except RetryLaterError:
            await asyncio.sleep(0.01)
        else:
            return
