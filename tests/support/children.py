"""Processes of a test, and coroutines that run side by side: when the test fails, it leaves none of them to the next.

A child of asyncio that outlives its loop fails a neighbour: its transport is collected in the middle of another test.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

END_TIMEOUT_S = 30.0

T = TypeVar("T")


@asynccontextmanager
async def started(*command: str | os.PathLike[str], **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has ended, with its pipes, when the block ends. `options` are those of `subprocess.Popen`."""
    process = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        # `wait` would leave the transports of its pipes open.
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.communicate()


async def together(*coroutines: Coroutine[Any, Any, T]) -> list[T]:
    """What they return, in their order. When one fails, the others have ended, too, unlike with `gather`."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in coroutines]
    return [task.result() for task in tasks]
