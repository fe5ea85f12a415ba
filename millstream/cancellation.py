"""Cancellations of a task, including those that a library swallows.

Above it: code that awaits a library. Below it: asyncio. In Python 3.11, `asyncio.wait_for` returns a result that
arrives at the same moment as a cancellation, and the cancellation is lost: the task continues, and the timeout that
cancelled it does not end it.
"""

from __future__ import annotations

import asyncio


class Cancellations:
    """Cancellations of the current task since this was created."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "created by a coroutine"
        self._task = task
        self._before = task.cancelling()

    def check(self) -> None:
        """Raise `CancelledError` if there was one."""
        if self._task.cancelling() > self._before:
            raise asyncio.CancelledError
