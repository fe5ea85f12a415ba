"""Opens the lane of a table sink: the file sink's lane, whose files are commits of a table.

Above it: the connectors. Below it: the table, through its client, and the lane that collects records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from millstream_connectors.file.settings import Rolling
from millstream_connectors.file.sink.lane import FileSinkLane, StartingPoint
from millstream_connectors.lake.lane_table import LaneTable
from millstream_connectors.lake.rows import TableRows
from millstream_connectors.lake.settings import TableCommits
from millstream_connectors.shared.kept import check_kept
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkLane


@asynccontextmanager
async def open_table_sink(
    settings: TableCommits, rows: TableRows, table: LaneTable[Any], owner: SinkOwner
) -> AsyncIterator[SinkLane]:
    """Opens the table for one lane and fences every earlier owner. Raises as `SinkConnector.open` does."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="table-sink")
    finisher = ThreadPoolExecutor(1, thread_name_prefix="table-sink-commit")
    loop = asyncio.get_running_loop()
    limits = {
        "max_bytes": settings.max_bytes,
        "max_records": settings.max_records,
        "max_age_s": settings.commit_every_s,
    }
    try:
        kept = await loop.run_in_executor(finisher, table.look)
        if kept is not None:
            await check_kept(owner, kept, table.target, table.remedy, ours=table.was_ours)
        reached = await loop.run_in_executor(finisher, table.take_over)
        await owner.note_target()
        yield FileSinkLane(
            table,
            rows,
            Rolling().model_copy(update=limits),
            StartingPoint(owner.start, None if owner.fallback else reached),
            clock=owner.clock,
            worker=worker,
            finisher=finisher,
            whole=owner.whole,
        )
    finally:
        # After what it is still doing: a cancelled call continues there.
        finisher.submit(table.close)
        worker.shutdown(wait=False)
        finisher.shutdown(wait=False)
