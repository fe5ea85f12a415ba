"""Runs tasks alongside an `async with` body, without changing what the body raises, and several requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


@asynccontextmanager
async def open_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises an error of its body as it is, not in a group of one.

    The body has to make sure that its tasks end; an error cancels them.
    """
    of_body: Exception | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            try:
                yield tasks
            except Exception as error:
                of_body = error
                raise
    except BaseExceptionGroup as group:
        if of_body is None or len(group.exceptions) > 1:
            raise
    if of_body is not None:
        raise of_body


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, T], name: str) -> AsyncIterator[asyncio.Task[T]]:
    """Runs `work` until the block ends, then cancels it.

    If `work` fails, the block is cancelled, and the error is raised in a group.
    """
    async with open_tasks() as tasks:
        task = tasks.create_task(work, name=name)
        try:
            yield task
        finally:
            task.cancel()


class Background:
    """Tasks that end with the body of `open_background`. An error of one ends neither the body nor the other tasks."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: list[asyncio.Task[None]] = []
        self._error: Exception | None = None
        self._failed = asyncio.Event()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run `work` until it ends or the body does."""
        self._running.append(self._tasks.create_task(self._run(work), name=name))

    async def failed(self) -> None:
        """Wait until cancelled. Raises the error that ended a task; it may be called by several who report it."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error

    def close(self) -> None:
        """End all tasks."""
        for task in self._running:
            task.cancel()

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001  # `failed` raises it
            self._error = error
            self._failed.set()


@asynccontextmanager
async def open_background() -> AsyncIterator[Background]:
    """Tasks that are started by the body and end with it."""
    async with open_tasks() as tasks:
        background = Background(tasks)
        try:
            yield background
        finally:
            background.close()


async def all_of(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs several requests at once and returns their results. Waits for all of them, then raises the first error."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", answers)
