"""Runs a function over the records of a call.

Above it: the server and the test kit. Below it: users' functions. It does not know gRPC. Everything here runs in the
function's own thread, on its event loop, so that a blocking function never keeps the server from answering health
checks.

The entry point is `FunctionLane.results`, which returns one result per record: the function's return value, or the
exception that it raised.
  * A function that is not async runs inline, one call at a time across all lanes; with `threads=n`, n threads share the
    records of a call. One that reads of lazy states runs in a thread of its own, because the loop receives what it
    reads.
  * An async function has up to `concurrency` records of a lane in flight, across several calls.
  * A batch function gets a call's records as one list.
  * A function with a type gets values of that type, and no values that do not fit.
  * A function with states runs the records of one key in order: see `keyed_execution`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from typing import Any

from millstream_udf.cancellation import called_once, failure_of, result_in_task, settled
from millstream_udf.context import CURRENT, Context
from millstream_udf.definition import MAP, SOURCE, SOURCE_TRANSFORM, Definition, Flavour, Takes
from millstream_udf.failures import FAILURES, failure
from millstream_udf.inputs import FrameInputs
from millstream_udf.key_states import CallStates
from millstream_udf.keyed_execution import KeyedCall
from millstream_udf.misfits import BadOutput, Misfit
from millstream_udf.outside_loop import call_plainly
from millstream_udf.returned_values import collected, collected_async, returns_nothing, yielded
from millstream_udf.tables import LaneTables
from millstream_udf.timers import timers_of

_TURN_S = 0.02
"""Time after which an async function that never waits yields to the event loop."""


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function, set up and ready to run. Created by `open_function`."""

    definition: Definition
    call: Callable[..., Any]
    pool: ThreadPoolExecutor | None
    """The threads of a function that is not async and has some."""
    workers: asyncio.TaskGroup
    """The tasks of an async function."""
    on_timer: Callable[..., Any] | None = None
    """What gets its timers."""
    plain: Callable[..., Any] = list
    """The function as it is written: `call` of a generator function returns a list."""
    slots: asyncio.Semaphore | None = None
    """Held by each record of a function that is not async whose outputs are sent as it makes them."""

    def lane(self) -> FunctionLane:
        """The function's lane for one stream."""
        return FunctionLane(self)


@asynccontextmanager
async def open_function(definition: Definition, context: Context) -> AsyncIterator[Function]:
    """Instantiate a class, call its `setup`; at the end its `close`."""
    instance, call = instantiate(definition)
    if (setup := getattr(instance, "setup", None)) is not None:
        await called_once(setup, context, what=f"setup of {definition.name}")
    pool = ThreadPoolExecutor(definition.threads, "millstream-udf") if definition.threads else None
    try:
        async with asyncio.TaskGroup() as workers:
            on_timer = None
            if definition.on_timer is not None:
                on_timer = definition.on_timer.target if instance is None else instance.on_timer
                on_timer = _collecting(definition.on_timer, on_timer)
            slots = None if definition.is_async else asyncio.Semaphore(definition.concurrency)
            yield Function(definition, _collecting(definition, call), pool, workers, on_timer, call, slots)
    finally:
        if pool is not None:
            pool.shutdown()
        if (close := getattr(instance, "close", None)) is not None:
            await called_once(close, what=f"close of {definition.name}")


def instantiate(definition: Definition) -> tuple[Any, Callable[..., Any]]:
    """The instance of the process, if there is one, and what to call."""
    # A source, and a sink that keeps positions, is instantiated for each lane, some reduce functions for each group.
    per_group = definition.reduce is not None and definition.reduce.per_group
    per_lane = SOURCE in definition.kinds or definition.keeps_positions
    if per_group or per_lane or not inspect.isclass(definition.target):
        return None, definition.target
    instance: Any = call_plainly(definition.target)
    return instance, instance.process


def items_of(
    definition: Definition, inputs: FrameInputs, context: Context
) -> tuple[Sequence[Any], Mapping[int, Misfit]]:
    """The values or records, as the function takes them, and the misfits: those whose values do not fit its type."""
    takes_values = definition.takes in (Takes.VALUE, Takes.VALUES)
    if definition.decode is None:
        return (inputs.values if takes_values else inputs.records_with(inputs.values, context)), {}
    values, misfits = definition.decode.many(inputs.values)
    return (values if takes_values else inputs.records_with(values, context)), misfits


class FunctionLane:
    """A function, for one stream."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.definition = function.definition
        # The items of a job of a function with states are functions already.
        self._call = _begun if function.definition.states else function.call
        self.tables = LaneTables(function.definition.tables)
        self._running = 0
        self._pending: deque[tuple[_Job, int]] = deque()
        self._batches = asyncio.Semaphore(function.definition.concurrency)
        self.plain, self.pool = function.plain, function.pool
        self.slots = function.slots or asyncio.Semaphore(function.definition.concurrency)
        """Held by each record whose outputs are sent as the function makes them."""

    async def results(self, inputs: FrameInputs, context: Context, states: CallStates | None = None) -> Sequence[Any]:
        """One entry per record. Raises the exception of a batch function, with which the call as a whole has failed.
        `states`: for a function that has some."""
        CURRENT.set(context)
        items, misfits = items_of(self.definition, inputs, context)
        places: Sequence[int] = range(len(items))
        if misfits:
            places = [place for place in places if place not in misfits]
            items = [items[place] for place in places]
        if not items:
            found: Sequence[Any] = ()
        elif states is None:
            found = await self._called(items, context)
        else:
            keyed = KeyedCall(self.definition, self._function.call, states, items, places, context)
            found = await self._called_by_key(keyed, states, len(items), context)
        if not misfits:
            return found
        results = iter(found)
        return [misfits[place] if place in misfits else next(results) for place in range(len(items) + len(misfits))]

    async def timer_results(self, inputs: FrameInputs, context: Context, states: CallStates) -> Sequence[Any]:
        """As `results`, for timers."""
        on_timer, call = self.definition.on_timer, self._function.on_timer
        if on_timer is None or call is None:
            raise ValueError(f"the call has timers, and {self.definition.name} has none")
        CURRENT.set(context)
        timers = timers_of(inputs)
        keyed = KeyedCall(on_timer, call, states, timers, range(len(timers)), context)
        return await self._called_by_key(keyed, states, len(timers), context)

    async def _called(self, items: Sequence[Any], context: Context) -> Sequence[Any]:
        """One result for each of the items."""
        definition = self.definition
        if definition.takes in (Takes.VALUES, Takes.RECORDS):
            return await self._batch(items, context)
        if definition.is_async:
            return await self._concurrently(items, context)
        arguments = (repeat(context),) if definition.wants_context else ()
        if self._function.pool is not None:
            return await self._called_in_threads(items, arguments, context)
        results: list[Any] = []
        apply(self._function.call, iter(items), arguments, results, len(items))
        return results

    async def _called_by_key(self, keyed: KeyedCall, states: CallStates, count: int, context: Context) -> Sequence[Any]:
        """As `_called`, for a function with states."""
        definition = keyed.definition
        results: list[Any] = [None] * count
        if definition.takes in (Takes.VALUES, Takes.RECORDS):
            turns = states.begin_all()
            given = await self._whole(keyed.batch_arguments(turns))
            return keyed.settled_batch(turns, self._batch_results(given, count))
        if definition.is_async:
            return await self._concurrently_by_key(keyed, count, context)
        if self._function.pool is None:
            keyed.run(range(count), results)
            return results
        chains = keyed.chains()
        source = iter(chains)

        def work() -> None:
            CURRENT.set(context)
            for chain in source:
                keyed.run(chain, results)

        await self._in_threads(work, len(chains))
        return results

    async def whole(self, argument: Any, context: Context) -> Any:
        """Call the function once, with a whole batch in its own form."""
        CURRENT.set(context)
        return await self._whole((argument, context) if self.definition.wants_context else (argument,))

    async def _whole(self, arguments: tuple[Any, ...]) -> Any:
        if not self.definition.is_async:
            if self._function.pool is not None:
                return await self._whole_in_thread(self._function.pool, arguments)
            try:
                return self._function.call(*arguments)
            except asyncio.CancelledError as error:
                raise failure_of(error) from None
        async with self._batches:
            return await result_in_task(self._function.call(*arguments))

    async def _whole_in_thread(self, pool: ThreadPoolExecutor, arguments: tuple[Any, ...]) -> Any:
        context = copy_context()

        def called() -> tuple[Any, BaseException | None]:
            try:
                return context.run(self._function.call, *arguments), None
            except FAILURES as error:
                return None, failure(error)

        return settled(await asyncio.get_running_loop().run_in_executor(pool, called))

    async def _batch(self, items: Sequence[Any], context: Context) -> Sequence[Any]:
        return self._batch_results(await self.whole(items, context), len(items))

    def _batch_results(self, results: Any, count: int) -> Sequence[Any]:
        """What a batch function has returned for so many records. Raises `BadOutput`."""
        if results is None and self.definition.for_sinks:
            # It means that everything was written. Others must return a list, because `outputs` would interpret None as
            # "filtered".
            return [None] * count
        if not isinstance(results, (list, tuple)) or len(results) != count:
            what = f"{len(results)} results" if isinstance(results, (list, tuple)) else type(results).__name__
            raise BadOutput(
                f"a batch function must return a list with one result per record: {count} records came in, {what} "
                "came back"
            )
        return results

    async def _called_in_threads(
        self, items: Sequence[Any], arguments: tuple[Iterator[Any], ...], current: Context
    ) -> list[Any]:
        # The threads take the next record from one shared iterator, so none waits while there is work.
        results: list[Any] = [None] * len(items)
        source = iter(enumerate(items))
        call, context = self._function.call, tuple(next(iterator) for iterator in arguments)

        def work() -> None:
            CURRENT.set(current)
            for index, item in source:
                try:
                    results[index] = call(item, *context)
                except FAILURES as error:
                    results[index] = failure(error)

        await self._in_threads(work, len(items))
        return results

    async def _in_threads(self, work: Callable[[], None], parts: int) -> None:
        """Run `work`, which takes one of so many parts after another, in as many threads as there are."""
        loop = asyncio.get_running_loop()
        threads = min(self.definition.threads, parts)
        await asyncio.gather(*(loop.run_in_executor(self._function.pool, work) for _ in range(threads)))

    async def _concurrently(self, items: Sequence[Any], context: Context) -> list[Any]:
        job = _Job(items, context, wants_context=self.definition.wants_context)
        return await self._worked(job, range(len(items)), self.definition.concurrency)

    async def _concurrently_by_key(self, keyed: KeyedCall, count: int, context: Context) -> list[Any]:
        followers: dict[int, int] = {}
        firsts: list[int] = []
        for chain in keyed.chains():
            firsts.append(chain[0])
            followers.update(pairwise(chain))

        async def one(index: int) -> Any:
            try:
                return await keyed.run_one(index)
            finally:
                # Before the records of other keys: the longest chain should not be the last one to go on.
                if index in followers and not job.is_abandoned:
                    self._pending.appendleft((job, followers[index]))

        job = _Job([partial(one, index) for index in range(count)], context, wants_context=False)
        return await self._worked(job, firsts, keyed.definition.concurrency)

    async def _worked(self, job: _Job, begin: Sequence[int], concurrency: int) -> list[Any]:
        """The results of a job, whose items at these indexes can begin now, so many at a time."""
        self._pending.extend(zip(repeat(job), begin))
        for _ in range(min(len(begin), concurrency - self._running)):
            self._start_worker()
        try:
            await job.done.wait()
        except asyncio.CancelledError:
            # The stream is lost, and its calls are sent again on the next: calls that have not begun need not begin.
            self._pending = deque(entry for entry in self._pending if entry[0] is not job)
            job.is_abandoned = True
            raise
        return job.results

    def _start_worker(self) -> None:
        work = self._work()
        try:
            self._function.workers.create_task(work)
        except RuntimeError:
            # The workers are being ended.
            work.close()
            raise
        self._running += 1

    def _replace_worker(self) -> None:
        """Called by a worker whose task was cancelled. Either the function has cancelled the task that it runs in:
        another worker takes over what is left. Or the workers are being ended: none can be started, and the records
        have no answers."""
        try:
            self._start_worker()
        except RuntimeError:
            raise asyncio.CancelledError from None

    async def _work(self) -> None:
        # Workers run as long as there are records: starting a worker is cheaper than waking one.
        call, task = self._call, asyncio.current_task()
        assert task is not None
        turn_ends = time.monotonic() + _TURN_S
        last: _Job | None = None
        try:
            while self._pending:
                job, index = self._pending.popleft()
                try:
                    if job is not last:
                        CURRENT.set(job.current)
                        last = job
                    job.results[index] = await call(job.items[index], *job.context)
                except asyncio.CancelledError as error:
                    # Also if the function has cancelled the task that it runs in.
                    job.results[index] = failure_of(error)
                except FAILURES as error:
                    job.results[index] = failure(error)
                cancelled = task.cancelling()
                if cancelled:
                    self._replace_worker()
                job.left -= 1
                if not job.left:
                    job.done.set()
                if cancelled:
                    return
                if time.monotonic() > turn_ends:
                    try:
                        await asyncio.sleep(0)
                    except asyncio.CancelledError:
                        # A function may also have had the task cancelled as soon as it has returned.
                        self._replace_worker()
                        return
                    turn_ends = time.monotonic() + _TURN_S
        finally:
            self._running -= 1


class _Job:
    """The records of one call of an async function."""

    __slots__ = ("context", "current", "done", "is_abandoned", "items", "left", "results")

    def __init__(self, items: Sequence[Any], context: Context, *, wants_context: bool) -> None:
        self.items = items
        self.current = context
        self.context = (context,) if wants_context else ()
        self.results: list[Any] = [None] * len(items)
        self.left = len(items)
        self.done = asyncio.Event()
        self.is_abandoned = False
        if not items:
            self.done.set()


def _begun(item: Callable[[], Any]) -> Any:
    """The coroutine of an item that is a function."""
    return item()


def apply(
    call: Callable[..., Any], items: Iterator[Any], arguments: tuple[Iterator[Any], ...], results: list[Any], count: int
) -> None:
    """Append the result of each item to `results`; an exception replaces the result of its own item only.

    `extend` keeps the results before an exception, so the loop continues after the failing record without overhead for
    the others.
    """
    while True:
        try:
            results.extend(map(call, items, *arguments))
        except FAILURES as error:
            results.append(failure(error))
            continue
        if len(results) >= count:
            return
        # `map` interprets a StopIteration from the function as its own end.
        results.append(RuntimeError("the function raised StopIteration; use next(iterator, default)"))


def _collecting(definition: Definition, call: Callable[..., Any]) -> Callable[..., Any]:
    """A generator function as one that returns a list, so that its exceptions belong to its record."""
    if definition.reduce is not None:
        # Its results belong to its group anyway, and need not fit into memory.
        return call
    of_map = MAP in definition.kinds or SOURCE_TRANSFORM in definition.kinds
    is_bounded = of_map and definition.takes in (Takes.VALUE, Takes.RECORD)
    if definition.flavour is Flavour.GENERATOR:
        collect = collected if is_bounded else list
        if returns_nothing(call):
            return lambda *arguments: collect(call(*arguments))
        return lambda *arguments: collect(yielded(call(*arguments)))
    if definition.flavour is Flavour.ASYNC_GENERATOR:
        return partial(_collect_async, call, is_bounded)
    return call


async def _collect_async(call: Callable[..., AsyncIterator[Any]], is_bounded: bool, *arguments: Any) -> list[Any]:
    if is_bounded:
        return await collected_async(call(*arguments))
    return [output async for output in call(*arguments)]
