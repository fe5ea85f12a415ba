"""Work that runs concurrently and is taken out in the order in which it began."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class InOrder(Generic[T]):
    """A queue of tasks, for one task that adds and one that takes out."""

    def __init__(self) -> None:
        self._tasks: deque[asyncio.Future[T]] = deque()
        self._added = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: asyncio.Future[T]) -> None:
        self._tasks.append(task)
        self._added.set()

    def add_done(self, result: T) -> None:
        """Add a result that needs no further work."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.set_result(result)
        self.add(done)

    def close(self) -> None:
        """Mark the queue as complete: nothing more will be added."""
        self._closed = True
        self._added.set()

    async def ready(self) -> list[T]:
        """Wait for the oldest task. Return its result, and those of the finished tasks that directly follow it.

        The list is empty if the queue is closed and everything was taken.
        """
        while not self._tasks:
            if self._closed:
                return []
            self._added.clear()
            await self._added.wait()
        if not self._tasks[0].done():
            await asyncio.wait((self._tasks[0],))
        return self.done()

    def done(self) -> list[T]:
        """The results of the oldest tasks, as far as they are finished."""
        results = []
        while self._tasks and self._tasks[0].done():
            results.append(self._tasks.popleft().result())
        return results
