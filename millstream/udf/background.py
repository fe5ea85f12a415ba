"""Runs work alongside a block of code.

Above it: the context managers of this package. Below it: `millstream.background`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from millstream.background import open_tasks

_T = TypeVar("_T")


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, _T], name: str) -> AsyncIterator[asyncio.Task[_T]]:
    """Runs `work` until the block ends, then cancels it.

    If `work` fails, the block is cancelled, and the error is raised in a group.
    """
    async with open_tasks() as tasks:
        task = tasks.create_task(work, name=name)
        try:
            yield task
        finally:
            task.cancel()
