"""Tasks beside an `async with` body, without changing what the body raises, and several requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

T = TypeVar("T")


@asynccontextmanager
async def open_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose body's error comes out as it is, not in a group of one.

    The body has to see that its tasks end; an error cancels them.
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


async def all_of(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What several requests at once give. Returns when none is in progress; raises what one of them has raised."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", answers)
