"""Calls users' code that is not async as if the thread had no event loop.

`asyncio.run`, Django's ORM, Playwright and asgiref refuse to work where an event loop runs, and users' plain functions
are called in a thread whose loop does. That loop waits during such a call anyway, so the thread leaves it, and enters
it again afterwards, in the way that Python documents for frameworks (*Extending asyncio*).

A thread has two sides: our loop, and what users' code has. That is almost always nothing, but Playwright lets its own
loop run between two calls, in a coroutine of its own: each side finds what it has left. Above it: everything that
calls users' functions. Below it: asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from asyncio.events import _get_running_loop, _set_running_loop
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Iterator
from functools import cache
from types import TracebackType
from typing import Any, TypeVar, cast

_T = TypeVar("_T")
_END = object()


class _Side(threading.local):
    """What the other side of this thread has left."""

    loop: asyncio.AbstractEventLoop | None = None
    task: asyncio.Task[Any] | None = None
    is_outside = False


_side = _Side()


class outside_loop:  # used as a context manager, like contextlib's
    """The block runs as if no event loop ran in this thread. It must not await or yield.

    Within another such block, and without a loop, it changes nothing.
    """

    __slots__ = ("_changes",)

    def __enter__(self) -> None:
        self._changes = not _side.is_outside and _get_running_loop() is not None
        if self._changes:
            _cross()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._changes:
            _cross()


def _cross() -> None:
    """Change to the other side."""
    loop = _get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    if loop is not None and task is not None:
        _leave_task(loop, task)
    _set_running_loop(_side.loop)
    if _side.loop is not None and _side.task is not None:
        _enter_task(_side.loop, _side.task)
    _side.loop, _side.task, _side.is_outside = loop, task, not _side.is_outside


def call_plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a class, or a method of an object, outside the loop, unless the class has async methods.

    Such a class works on our loop, and what its other methods create (connections, queues) may belong to that loop.
    """
    owner = getattr(function, "__self__", None)
    kind: Any = function if inspect.isclass(function) else type(owner)
    if inspect.iscoroutinefunction(function) if owner is None and kind is not function else _is_async(kind):
        return function(*arguments)
    with outside_loop():
        return function(*arguments)


@cache
def _is_async(kind: type) -> bool:
    methods = (inspect.unwrap(method) for _, method in inspect.getmembers_static(kind) if callable(method))
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in methods)


def stepped_outside(items: Iterator[_T]) -> Iterator[_T]:
    """The items, each of which is made outside the loop."""
    while True:
        with outside_loop():
            item = next(items, _END)
        if item is _END:
            return
        yield cast("_T", item)
