"""A file sink's lane in an object store: opening.

Above it: the connector. Below it: `lane`, as for a directory, and `bucket`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from millstream_connectors.file.settings import FileSink
from millstream_connectors.file.sink.bucket import LaneBucket
from millstream_connectors.file.sink.lane import FileSinkLane, StartingPoint, format_of
from millstream_connectors.file.sink.partitions import partitions
from millstream_connectors.shared.kept import check_kept
from millstream_connectors.shared.objects.settings import ObjectStore
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkLane


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
            await check_kept(owner, kept, bucket.target, bucket.remedy, ours=kept.owner == owner.identity)
        reached = await loop.run_in_executor(finisher, bucket.take_over)
        lane = FileSinkLane(
            bucket,
            file_format,
            spec.rolling,
            StartingPoint(owner.start, None if owner.fallback else reached, bucket.begun()),
            clock=owner.clock,
            worker=worker,
            finisher=finisher,
            partition_of=partitions(spec.partition_by) if spec.partition_by else None,
        )
        yield lane
    finally:
        worker.shutdown(wait=False)
        finisher.shutdown(wait=False)


def _layout(spec: FileSink) -> str:
    text = f"{spec.format} {[(column.name, column.type) for column in spec.columns]} {list(spec.partition_by)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
