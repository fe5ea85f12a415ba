"""Runs tasks alongside an `async with` body, without changing what the body raises, and several requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
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


async def all_of(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs several requests at once and returns their results. Waits for all of them, then raises the first error."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", answers)
