"""Work that goes on beside a block of code.

Above it: the context managers of this package. It differs from a bare TaskGroup in one thing: an error of the block comes out as it is,
not in a group of one, so that callers can catch what the block's functions say they raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, _T], name: str) -> AsyncIterator[asyncio.Task[_T]]:
    """Run `work` until the block ends, then cancel it. If `work` fails, the block is cancelled and the group's error comes out."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work, name=name)
        try:
            yield task
        except Exception as error:  # noqa: BLE001 - raised again below, behind the group
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure
