"""A file sink's lane in an object store: opening, and the directories of its records.

Above it: the connector. Below it: `lane`, as for a directory, and `bucket`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from millstream.objects.settings import ObjectStore
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkLane
from millstream_writer.sinks.file.bucket import LaneBucket
from millstream_writer.sinks.file.connector import FileSink
from millstream_writer.sinks.file.lane import FileSinkLane, PartitionOf, format_of
from millstream_writer.sinks.kept import check_kept

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_US = 3_600_000_000
_FORMS = {"year": "%Y", "month": "%m", "day": "%d", "dt": "%Y-%m-%d", "hour": "%H"}


def partitions(names: Sequence[str]) -> PartitionOf:
    """Directories of an event time, in UTC: `dt=2024-01-31/hour=08`."""

    @lru_cache(maxsize=1024)
    def of_hour(hour: int) -> str:
        moment = _EPOCH + timedelta(hours=hour)
        # strftime writes a year before 1000 with fewer digits.
        texts = {name: moment.strftime(_FORMS[name].replace("%Y", f"{moment.year:04}")) for name in names}
        return "/".join(f"{name}={texts[name]}" for name in names)

    return lambda time_us: of_hour(time_us // _HOUR_US)


@asynccontextmanager
async def open_object_sink(spec: FileSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """Opens the prefix for one lane and fences every earlier owner. Raises as `SinkConnector.open` does."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="object-sink")
    finisher = ThreadPoolExecutor(1, thread_name_prefix="object-sink-put")
    loop = asyncio.get_running_loop()
    bucket = LaneBucket(spec.path, spec.store or ObjectStore(), _layout(spec), bool(spec.partition_by), owner)
    try:
        file_format = await loop.run_in_executor(worker, format_of, spec)
        kept = await loop.run_in_executor(finisher, bucket.look)
        if kept is not None:
            await check_kept(owner, kept, bucket.target, bucket.remedy, ours=False)
        reached = await loop.run_in_executor(finisher, bucket.take_over)
        lane = FileSinkLane(
            bucket,
            file_format,
            spec.rolling,
            start=owner.start,
            finished=None if owner.fallback else reached,
            clock=owner.clock,
            worker=worker,
            finisher=finisher,
            partition_of=partitions(spec.partition_by) if spec.partition_by else None,
            begun=bucket.begun(),
        )
        yield lane
    finally:
        worker.shutdown(wait=False)
        finisher.shutdown(wait=False)


def _layout(spec: FileSink) -> str:
    text = f"{spec.format} {[(column.name, column.type) for column in spec.columns]} {list(spec.partition_by)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
