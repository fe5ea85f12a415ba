"""A thread for the calls of one lane's client, where these block.

Above it: lanes of clients without coroutines. Below it: nothing. Calls follow each other in their order, and a call
that is not waited for any more still ends before the next begins.
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
    """The lane is being closed: a call that waited for its server was given up."""


class ClientThread:
    """The one thread in which a lane's clients are used."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._closing = threading.Event()

    async def run(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def check(self) -> None:
        """In the thread. Raises `ClosingError` when the lane is being closed."""
        if self._closing.is_set():
            raise ClosingError

    def submit(self, call: Callable[[], object]) -> None:
        """Has it called when the thread is free, and does not wait. It raises nothing that matters."""
        self._executor.submit(call)

    def end(self, call: Callable[[], object]) -> None:
        """Calls that wait give up, and `call` follows as the last; it is not waited for."""
        self._closing.set()
        self._executor.submit(call)

    def wait(self, seconds: float) -> None:
        """In the thread."""
        self._closing.wait(seconds)
        self.check()


@asynccontextmanager
async def open_thread(name: str) -> AsyncIterator[ClientThread]:
    """A thread that ends with the block; a call that it is busy with gives up within seconds, and is not waited for."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    try:
        yield ClientThread(executor)
    finally:
        executor.shutdown(wait=False)
