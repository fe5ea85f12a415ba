"""What is closed if what follows fails.

Above it: lanes and clients, which close a connection at the first failure. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager


@contextmanager
def on_failure(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if the block raises or is cancelled."""
    try:
        yield
    except BaseException:
        close()
        raise


@asynccontextmanager
async def on_failure_await(close: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """As `on_failure`, for what takes time to close."""
    try:
        yield
    except BaseException:
        await close()
        raise
