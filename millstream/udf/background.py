"""Work that goes on beside a block of code.

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
    """Run `work` until the block ends, then cancel it.

    If `work` fails, the block is cancelled, and the error comes out in a group.
    """
    async with open_tasks() as tasks:
        task = tasks.create_task(work, name=name)
        try:
            yield task
        finally:
            task.cancel()
