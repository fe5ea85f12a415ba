"""Measures what a broker alone can store on this machine, as the reference for the throughput of a pipeline.

Above it: the measurement of each technology, which says how a commit is written. It writes frames of the same size as a
pipeline's writers, as many in a commit as fit, with two commits in flight, and does nothing else.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from millstream import limits
from millstream.frame import build_frame

Write = Callable[[bytes, int, Iterator[int]], Coroutine[Any, Any, None]]
"""For each element of the iterator, writes a commit that has this frame so many times."""
_IN_FLIGHT = 2


async def records_per_s(records: int, record_bytes: int, write: Write) -> float:
    """Records per second, measured over at least `records` records."""
    size = max(1, min(limits.FRAME_RECORDS_MAX, limits.FRAME_BYTES_MAX // record_bytes))
    frame = build_frame([b"x" * record_bytes] * size, array("q", [0]) * size, ingest_time_us=0).encode()
    per_commit = min(limits.COMMIT_MESSAGES_MAX, max(1, limits.COMMIT_BYTES_MAX // len(frame)))
    commits = -(-records // (size * per_commit))
    left = iter(range(commits))
    begun_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(write(frame, per_commit, left), name="raw writer")
    return commits * per_commit * size / (time.perf_counter() - begun_s)
