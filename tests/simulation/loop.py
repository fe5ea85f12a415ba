"""An event loop without a clock and without chance: time jumps to the next timer, a seed decides who runs next.

    ready steps of each process ─► one process is drawn ─► a few of its steps run, in their order ─► again
                     ▲                                                         none is ready │
                     └────────────── the next timer, whatever its time ◄────────────────────┘

All processes of a simulated pipeline share the loop. Inside a process steps run in the order asyncio promises; between
processes there is none. A process may be *paused* (its steps wait, timers too) and *killed* (its steps never run, so
nothing of it is cleaned up). What would run in a thread runs as one step of the process, later.

Above it: `world`. It knows nothing of pipelines.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

BURST_MAX = 4
"""Steps of one process in a row."""

_CANCELS_MAX = 5
"""How often a process that cleans up is asked again to stop."""

T = TypeVar("T")


class StuckError(Exception):
    """Nothing can ever run again, or too much has run: the simulation makes no progress."""


class Process:
    """Steps that live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Step] = deque()
        self.paused = False
        self.dead = False
        self.drawn_from = False
        """Among those the loop draws from."""
        self.tasks: dict[SimTask[Any], None] = {}
        """All that are not done. They are held here, so that those of a dead process are not finalized."""
        self.in_threads: dict[SimFuture[Any], None] = {}
        """What waits for its thread."""


CURRENT: ContextVar[Process] = ContextVar("CURRENT")
"""The process a step belongs to. Tasks, callbacks and timers inherit it from where they were made."""


class Step:
    """A callback that waits to run. Also the handle that asyncio cancels it by."""

    __slots__ = ("_cancelled", "args", "callback", "context", "due_s")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, due_s: float) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.due_s = due_s
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.due_s


class _Numbered:
    """Sets of futures are iterated in the order of their hashes: those must not be addresses."""

    _number = 0

    def __hash__(self) -> int:
        return self._number


class SimFuture(_Numbered, asyncio.Future[T]):
    __hash__ = _Numbered.__hash__


class SimTask(_Numbered, asyncio.Task[T]):
    __hash__ = _Numbered.__hash__


class SimLoop(asyncio.AbstractEventLoop):
    """One run of one seed."""

    def __init__(self, rng: random.Random, thread_delay_s: Callable[[], float]) -> None:
        self._rng = rng
        self._thread_delay_s = thread_delay_s
        self._now_s = 0.0
        self._timers: list[tuple[float, float, int, Step]] = []
        self._runnable: list[Process] = []
        self._made = 0
        self._errors: list[BaseException] = []
        self.steps = 0
        """That have run: two runs of a seed have the same number."""

    # Driven by the world

    def pause(self, process: Process) -> None:
        process.paused = True
        self._leave_out(process)

    def resume(self, process: Process) -> None:
        process.paused = False
        if process.ready and not process.dead:
            self._draw_from(process)

    def kill(self, process: Process) -> None:
        """No step of it runs any more."""
        process.dead = True
        self._leave_out(process)

    def _draw_from(self, process: Process) -> None:
        if not process.drawn_from:
            process.drawn_from = True
            self._runnable.append(process)

    def _leave_out(self, process: Process) -> None:
        if process.drawn_from:
            process.drawn_from = False
            self._runnable.remove(process)

    def run(self, main: Coroutine[Any, Any, T], process: Process, *, steps_max: int) -> T:
        """Run `main` as a task of `process` until it is done. Raises `StuckError`."""
        with self._running():
            context = copy_context()
            context.run(CURRENT.set, process)
            task = context.run(self.create_task, main)
            self._run_until(task, steps_max)
            return task.result()

    def bury(self, processes: Sequence[Process]) -> None:
        """Let processes clean up one after another, after all checks: for the files they have open."""
        for process in processes:
            self.kill(process)
        with self._running():
            for process in processes:
                process.dead = process.paused = False
                for _ in range(_CANCELS_MAX):
                    self._cancel(process)
                process.dead = True
                if process.tasks:
                    raise StuckError(f"{process.name} does not end when it is cancelled: {list(process.tasks)}")

    def _cancel(self, process: Process) -> None:
        for waiting in list(process.in_threads):
            # A thread cannot be cancelled: it ends in some way.
            waiting.set_exception(RuntimeError("the process is dead"))
            waiting.exception()
        for task in list(process.tasks):
            task.cancel()
        self.resume(process)
        while process.drawn_from:
            self._run_some()

    def _run_until(self, task: asyncio.Task[Any], steps_max: int) -> None:
        limit = self.steps + steps_max
        while not task.done():
            if not self._run_some():
                raise StuckError(f"nothing can happen any more at {self._now_s:.6f} s")
            if self.steps > limit:
                raise StuckError(f"{steps_max} steps without an end, at {self._now_s:.6f} s")
            if self._errors:
                raise self._errors[0]

    def _run_some(self) -> bool:
        """A few steps of one process, or the next timer. False: there is nothing."""
        runnable = self._runnable
        if not runnable:
            return self._advance()
        random01 = self._rng.random
        index = int(random01() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[index]
        ready = process.ready
        for _ in range(1 + int(random01() * BURST_MAX)):
            step = ready.popleft()
            if not step._cancelled:
                self.steps += 1
                step.context.run(step.callback, *step.args)
            if process.paused or process.dead:
                return True
            if not ready:
                self._leave_out(process)
                return True
        return True

    def _advance(self) -> bool:
        timers = self._timers
        while timers and timers[0][3]._cancelled:
            heapq.heappop(timers)
        if not timers:
            return False
        due_s = timers[0][0]
        self._now_s = max(self._now_s, due_s)
        while timers and timers[0][0] <= due_s:
            step = heapq.heappop(timers)[3]
            if not step._cancelled:
                self._enqueue(step)
        return True

    def _enqueue(self, step: Step) -> None:
        process = step.context[CURRENT]
        process.ready.append(step)
        if not process.paused and not process.dead:
            self._draw_from(process)

    @contextmanager
    def _running(self) -> Generator[None, None, None]:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now_s

    # A step is a handle for all that asyncio does with one.

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        step = Step(callback, args, copy_context() if context is None else context, 0.0)
        self._enqueue(step)
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        step = Step(callback, args, copy_context() if context is None else context, when)
        self._made += 1
        # Timers of the same time go off in any order.
        heapq.heappush(self._timers, (when, self._rng.random(), self._made, step))
        return step

    def create_future(self) -> SimFuture[Any]:
        future: SimFuture[Any] = SimFuture(loop=self)
        self._made += 1
        future._number = self._made
        return future

    def create_task(  # type: ignore[override]  # a task is a future
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> SimTask[T]:
        self._made += 1
        number = self._made
        task: SimTask[T] = SimTask.__new__(SimTask)
        task._number = number
        task.__init__(coro, loop=self, name=name or f"task {number}", context=context)  # type: ignore[misc]  # it needs its number before: tasks are kept in sets
        process = (context or copy_context())[CURRENT]
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop, context=context)
        # Those of dead processes are let go at the end, as they are.
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # there is no other way to say so
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> SimFuture[T]:  # type: ignore[override]  # it can be awaited
        future = self.create_future()
        process = CURRENT.get()
        process.in_threads[future] = None

        def work() -> None:
            if future.done():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001  # the caller that waits for the thread gets it
                if not process.dead:
                    future.set_exception(error)
            else:
                if not process.dead:
                    future.set_result(result)

        future.add_done_callback(lambda _: process.in_threads.pop(future, None))
        self.call_later(self._thread_delay_s(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._errors.append(error if isinstance(error, BaseException) else RuntimeError(str(context)))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers are skipped when they are due."""
