"""The thread in which a function runs.

Above it: the server. Below it: `execution` and the user's function. The server's own loop, in the main thread, only
carries gRPC, and so answers health checks, however long a function computes or blocks. Calls over a socket are read and
answered in the function's thread, because two threads that wake each other for a small call cost more than the call.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from millstream_udf.cancellation import outcome_of, result_at_once, result_of, settled
from millstream_udf.context import Context
from millstream_udf.definition import Definition
from millstream_udf.execution import Function, open_function

_T = TypeVar("_T")


class FunctionThread:
    """A function in its own thread, on its own event loop. Created by `open_thread`."""

    def __init__(self, definition: Definition, context: Context) -> None:
        self._definition = definition
        self._context = context
        self._started: Future[tuple[Function, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._serving: asyncio.Task[None] | None = None
        """The task that the thread runs."""
        self.ended: Future[None] = Future()
        """Done when the thread has ended, with the error that has ended it."""

    @property
    def function(self) -> Function:
        return self._started.result()[0]

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` in the function's thread. Cancelling the wait cancels the work; a `CancelledError` that the work
        raises without that is raised here as a `RuntimeError`."""
        _, loop, _ = self._started.result()
        waiting = asyncio.run_coroutine_threadsafe(outcome_of(result_of(work)), loop)
        return settled(await asyncio.wrap_future(waiting))

    async def run_through(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work`, which never waits for anything, in the function's thread.

        It needs no task there, which for a few records costs more than they do. Once begun, it is not cancelled.
        """
        _, loop, _ = self._started.result()
        here = asyncio.get_running_loop()
        done: asyncio.Future[_T] = here.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def begin() -> None:
            result, error = None, None
            if done.cancelled():
                work.close()
                return
            try:
                result = result_at_once(work)
            except BaseException as failure:  # noqa: BLE001 - raised in the waiting task
                error = failure
            # The other loop may have ended.
            with suppress(RuntimeError):
                here.call_soon_threadsafe(settle, result, error)

        loop.call_soon_threadsafe(begin)
        return await done

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the function's thread, unless that has ended."""
        _, loop, _ = self._started.result()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(callback)

    async def wait_started(self) -> None:
        """Returns when `setup` has returned; raises what it raises."""
        await asyncio.wrap_future(self._started)

    async def stop(self) -> None:
        """Returns when `close` has returned."""
        _, loop, stopping = self._started.result()
        if not self.ended.done():
            loop.call_soon_threadsafe(stopping.set)
        await asyncio.wrap_future(self.ended)

    def main(self) -> None:
        """The thread."""
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                self._run_on(runner)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting tasks
            # Set for the tasks that wait for the start or the end.
            if not self._started.done():
                self._started.set_exception(error)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _run_on(self, runner: asyncio.Runner) -> None:
        """Serve to the end.

        A task or a callback that users' code has started may raise `SystemExit` or `KeyboardInterrupt`, with which
        asyncio leaves the loop. The loop goes on, so that code that awaits such a task gets its exception.
        """
        go_on: Callable[[], object] = partial(runner.run, self._serve())
        while True:
            try:
                go_on()
            except (SystemExit, KeyboardInterrupt) as error:
                if self._serving is None or self._serving.done():
                    raise
                traceback.print_exception(error)
                go_on = partial(runner.get_loop().run_until_complete, self._serving)
            else:
                return

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        # A function that is not async would find this loop (`get_event_loop`), and cannot run it.
        asyncio.set_event_loop(None)
        stopping = asyncio.Event()
        async with open_function(self._definition, self._context) as function:
            self._started.set_result((function, asyncio.get_running_loop(), stopping))
            await stopping.wait()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop if it is installed: with hundreds of records in flight, the loop itself is the main remaining
    cost."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@asynccontextmanager
async def open_thread(definition: Definition, context: Context) -> AsyncIterator[FunctionThread]:
    """Start the thread and wait for the function's `setup`; at the end wait for its `close`."""
    thread = FunctionThread(definition, context)
    # A daemon, because a function that never returns must not delay the end of the process.
    threading.Thread(target=thread.main, name="function", daemon=True).start()
    await thread.wait_started()
    try:
        yield thread
    finally:
        await thread.stop()
