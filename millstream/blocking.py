"""A thread for the blocking calls of one lane's client.

Above it: lanes whose client has no coroutines. Below it: nothing. Calls run one after the other, in order. A call
whose caller has stopped waiting still ends before the next one begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class ClosingError(Exception):
    """The lane is closing: a call that was waiting for its server has been given up."""


class ClientThread:
    """The one thread in which a lane's clients are used."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._closing = threading.Event()

    async def run(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def check(self) -> None:
        """Called in the thread. Raises `ClosingError` when the lane is closing."""
        if self._closing.is_set():
            raise ClosingError

    def submit(self, call: Callable[[], object]) -> None:
        """Schedules a call for when the thread is free, and does not wait for it. Its errors are ignored."""
        self._executor.submit(call)

    def end(self, call: Callable[[], object]) -> None:
        """Makes waiting calls give up, and schedules `call` as the last one without waiting for it."""
        self._closing.set()
        self._executor.submit(call)

    def wait(self, seconds: float) -> None:
        """Called in the thread. Raises `ClosingError` when the lane is closing."""
        self._closing.wait(seconds)
        self.check()


@asynccontextmanager
async def open_thread(name: str) -> AsyncIterator[ClientThread]:
    """A thread that ends with the block. A call in progress gives up within seconds; the block does not wait for it."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        yield ClientThread(executor)
    finally:
        executor.shutdown(wait=False)
