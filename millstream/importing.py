"""Imports away from the event loop.

The modules of a client take seconds to import on a busy machine, and nothing else happens on an event loop meanwhile:
its process gives no sign of life, and counts as hung. So a coroutine has no `import`. It calls a function that has it,
in a thread. `tools/style.py` finds imports in coroutines, and `tests/unit/test_imports.py` packages that are first
imported on a loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_one_at_a_time = threading.Lock()
"""Two threads that import modules which import each other may see one of them half finished."""


async def importing(call: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a function that imports modules. It runs in a thread, so it may not use the event loop."""
    return await _in_thread(call, *args, **named)


async def started(call: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **named: P.kwargs) -> T:
    """The result of a coroutine that a function returns after it has imported modules. Only the function runs in a
    thread."""
    made = _in_thread(call, *args, **named)
    try:
        coroutine = await asyncio.shield(made)
    except asyncio.CancelledError:
        # The thread goes on, and nothing would ever await what it returns.
        made.add_done_callback(_close_result)
        raise
    return await coroutine


def _in_thread(call: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> asyncio.Future[T]:
    def called() -> T:
        with _one_at_a_time:
            return call(*args, **named)

    # A thread of its own, which ends: those of `asyncio.to_thread` stay.
    thread = ThreadPoolExecutor(1, thread_name_prefix="importing")
    made = asyncio.get_running_loop().run_in_executor(thread, copy_context().run, called)
    thread.shutdown(wait=False)
    return made


def _close_result(made: asyncio.Future[Coroutine[Any, Any, Any]]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()
