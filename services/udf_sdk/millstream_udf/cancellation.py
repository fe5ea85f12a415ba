"""Distinguishes a cancelled task from a function that raises `CancelledError` itself, because it awaits something that
was cancelled.

To asyncio, both look the same: such a task ends as cancelled, and the failure is not reported. For users it is a
failure like any other. Above it: everything that runs users' functions. Below it: `outside_loop`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from millstream_udf.outside_loop import call_plainly

_T = TypeVar("_T")


def failure_of(error: asyncio.CancelledError, what: str = "the work") -> RuntimeError:
    """The failure of code that does not wait, and so cannot have been cancelled. It has the user's traceback."""
    return RuntimeError(f"{what} was cancelled").with_traceback(error.__traceback__)


def failure_in_task(error: asyncio.CancelledError, what: str = "the work") -> RuntimeError:
    """The same for code that may wait. Raises `error` if the running task is being cancelled."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        # A thread without a loop.
        task = None
    if task is not None and task.cancelling():
        raise error
    return failure_of(error, what)


def result_at_once(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which never waits for anything, without a task. Raises `RuntimeError` if it waits, or if it
    raises `CancelledError`, which would look like a cancellation of the caller."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: _T = ended.value
        return result
    except asyncio.CancelledError as error:
        raise failure_of(error) from None
    work.close()
    raise RuntimeError("work that must not wait has waited")


async def result_of(work: Awaitable[_T]) -> _T:
    """Awaits `work`. Raises `RuntimeError` if it raises `CancelledError` and the running task was not cancelled."""
    try:
        return await work
    except asyncio.CancelledError as error:
        raise failure_in_task(error) from None


async def result_in_task(work: Awaitable[_T]) -> _T:
    """The same, with `work` in a task of its own: it has failed, too, if it cancels the task that it runs in."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(outcome_of(work))
    try:
        outcome = working.result()
    except asyncio.CancelledError as cancelled:
        raise failure_in_task(cancelled) from None
    return settled(outcome)


async def result_of_call(method: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a method that may be async. Raises as `result_in_task` does."""
    try:
        result = call_plainly(method, *arguments)
    except asyncio.CancelledError as error:
        raise failure_of(error) from None
    return await result_in_task(result) if inspect.isawaitable(result) else result


async def called_once(method: Callable[..., Any], *arguments: Any, what: str) -> None:
    """Calls `setup` or `close`, which may be async. In this task: a reduce function finds the context variables that
    its `setup` has set. The method has failed, too, if it cancels this task, which then goes on."""
    steps = _Steps(_called(method, arguments))
    try:
        await steps
    except asyncio.CancelledError as error:
        raise (failure_of if steps.cancellations else failure_in_task)(error, what) from None
    else:
        if steps.cancellations:
            raise RuntimeError(f"{what} has cancelled the task that it ran in")
    finally:
        await steps.take_back()


async def outcome_of(work: Awaitable[_T]) -> tuple[_T | None, BaseException | None]:
    """The result or the error, which must not end the task: a `SystemExit` would end the loop."""
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised in the waiting task
        return None, error


def settled(outcome: tuple[_T | None, BaseException | None]) -> _T:
    """The result in an outcome. Raises its error."""
    result, error = outcome
    if error is not None:
        raise error
    return cast("_T", result)


class _Steps(Awaitable[None]):
    """Awaits work in the running task, and notices if the work itself cancels that task."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self.cancellations = 0
        """How often the work has cancelled the task. Others cancel it between two steps of the work."""

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            before = task.cancelling()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self.cancellations = max(0, self.cancellations + task.cancelling() - before)
            try:
                step = partial(self._work.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - the work gets it
                step = partial(self._work.throw, error.with_traceback(None))

    async def take_back(self) -> None:
        """Take the cancellations of the work back."""
        task = asyncio.current_task()
        if task is not None and self.cancellations:
            with suppress(asyncio.CancelledError):
                # If the work has not waited since, the next wait raises it.
                await asyncio.sleep(0)
            for _ in range(self.cancellations):
                task.uncancel()


async def _called(method: Callable[..., Any], arguments: Sequence[Any]) -> None:
    result = call_plainly(method, *arguments)
    if inspect.isawaitable(result):
        await result
