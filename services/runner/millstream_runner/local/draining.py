"""Draining on request: sources stop reading, and every vertex ends when it has read everything.

Above it: the run. Below it: the workers, and how many records wait where.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from millstream import limits
from millstream.clock import Clock
from millstream.errors import RetryLaterError
from millstream.plan.plan import Plan
from millstream_runner.local.progress import PipelineProgress
from millstream_runner.local.view import PipelineView
from millstream_runner.local.workers import LocalWorkers

GRACE_S = 5.0
"""Time after the deadline of a drain until vertices that have not ended by themselves are killed. Nothing is lost by
that."""
_POLL_S = 0.05


async def drain(
    plan: Plan, workers: LocalWorkers, view: PipelineView, progress: PipelineProgress, clock: Clock
) -> None:
    """Stop the sources, then each vertex when it has read everything; at the deadline, stop the remaining ones."""
    deadline_s = clock.monotonic_s() + limits.DRAIN_TIMEOUT_S
    sources = {vertex.name for vertex in plan.sources}
    await _stop_group(workers, sources, deadline_s - clock.monotonic_s())
    for group in plan.sccs:
        if sources.isdisjoint(group):
            await _until_read(group, workers, view, progress, deadline_s - clock.monotonic_s())
            await _stop_group(workers, group, deadline_s - clock.monotonic_s())


async def _until_read(
    vertices: Collection[str], workers: LocalWorkers, view: PipelineView, progress: PipelineProgress, left_s: float
) -> None:
    """Wait until the buffers that these vertices read are empty; no process writes to them any more. Does not wait if a
    function waits for a person."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, left_s)):
            while not workers.have_over(vertices) and not workers.are_held_up(vertices):
                with contextlib.suppress(RetryLaterError):
                    await view.update(progress)
                    if not progress.waiting(vertices):
                        return
                await asyncio.sleep(_POLL_S)


async def _stop_group(workers: LocalWorkers, vertices: Collection[str], left_s: float) -> None:
    """Stop these vertices, and wait for them for that long."""
    left_s = max(0.0, left_s)
    workers.stop(vertices, grace_s=left_s + GRACE_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(left_s):
            while not workers.have_over(vertices):  # noqa: ASYNC110  # several events may make it true
                await asyncio.sleep(_POLL_S)
