"""What suites use instead of `assert`, so that they also work under `python -O`, and how they wait for a system."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.errors import RetryLaterError

T = TypeVar("T")

_PAUSE_S = 0.02


def check(held: object, what: str) -> None:
    """Raises `AssertionError` with `what` unless `held`."""
    if not held:
        raise AssertionError(what)


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, which is repeated as long as its system is away."""
    while True:
        try:
            return await call()
        except RetryLaterError:
            await asyncio.sleep(_PAUSE_S)
