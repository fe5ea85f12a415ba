"""Source lanes for tests: opened from the spec as a user writes it, and read as a vertex reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.clock import Clock, SystemClock
from millstream.frame import Frame
from millstream.record import SOURCE_INPUT, LaneId, Record
from millstream.spec.models import Source
from millstream_connectors.opening_sources import open_source
from millstream_reader.ids import SeenIds
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane, is_held_up

WAIT_S = 180.0
"""How long a test waits for what must happen."""


async def held_up(lane: SourceLane, expected: bool, batches: list[SourceBatch] | None = None) -> None:
    """Read until the lane says that its source is held up, or no longer is. Appends what was read to `batches`; without
    these, nothing may be."""
    async with asyncio.timeout(WAIT_S):
        while is_held_up(lane) is not expected:
            batch = await lane.read(10, 1 << 20, 0.05)
            if batches is not None:
                batches.append(batch)
            assert batches is not None or batch.frame is None


def lane_id(partition: int = 0) -> LaneId:
    return LaneId("in", SOURCE_INPUT, partition)


@asynccontextmanager
async def open_lane(
    spec: dict[str, Any],
    position: bytes = b"",
    *,
    base_dir: Path = Path("."),
    partition: int = 0,
    partitions: int = 1,
    clock: Clock | None = None,
    seen: SeenIds | None = None,
) -> AsyncIterator[SourceLane]:
    source = Source.model_validate(spec)
    async with open_source(
        source, lane_id(partition), partitions, position, base_dir=base_dir, clock=clock or SystemClock(), seen=seen
    ) as lane:
        yield lane


async def read_to_end(
    lane: SourceLane, records_max: int = 4096, bytes_max: int = 1 << 20
) -> tuple[list[Record], list[InvalidRecord], list[SourceBatch]]:
    """All that is left, with the limits checked on every batch."""
    batches: list[SourceBatch] = []
    async with asyncio.timeout(WAIT_S):
        while not batches or not batches[-1].ended:
            batches.append(await lane.read(records_max, bytes_max, 0.05))
            check_limits(batches[-1], records_max, bytes_max)
    return records_of(batches), [item for batch in batches for item in batch.invalid], batches


def check_limits(batch: SourceBatch, records_max: int, bytes_max: int) -> None:
    frame = batch.frame
    if frame is None:
        return
    assert 1 <= frame.records <= records_max
    assert frame.records == 1 or len(frame.contents.column) <= bytes_max + 64
    times = frame.event_times_us()
    assert (frame.event_time_min_us, frame.event_time_max_us) == (min(times), max(times))
    assert Frame.decode(frame.encode()) == frame


def records_of(batches: list[SourceBatch]) -> list[Record]:
    return [record for batch in batches if batch.frame is not None for record in batch.frame.to_records()]


async def read_until(
    lane: SourceLane, enough: Callable[[list[Record]], bool], batches: list[SourceBatch] | None = None
) -> list[Record]:
    """Read until the records are enough; a test that never gets them fails."""
    batches = [] if batches is None else batches
    async with asyncio.timeout(WAIT_S):
        while not enough(records_of(batches)):
            batches.append(await lane.read(4096, 1 << 20, 0.05))
    return records_of(batches)


def values(records: list[Record]) -> list[bytes]:
    return [record.value for record in records]
