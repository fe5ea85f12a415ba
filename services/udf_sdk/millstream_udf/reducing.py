"""Runs a reduce function over groups of records.

Above it: the sidecar's server, Spark's tasks, the test kit. Below it: users' functions. It knows neither gRPC nor
Spark: parts of groups come from a `Source`, answers about them go to the caller that iterates.

    parts ─► Cursor ─► function, group by group ─► answers, in the order of the groups

A group that is complete in its part is reduced immediately. A group that continues in the next parts is reduced while
they arrive: the function reads records, and reading pulls parts. Results are sent in answers of about ANSWER_BYTES, so
neither a group nor its results need to fit into memory.

In a process without its own server (a Spark worker), `load` returns a `Reduce`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from millstream_udf import output_prefix
from millstream_udf.cancellation import called_once, failure_in_task, outcome_of
from millstream_udf.context import CURRENT, Context
from millstream_udf.definition import REDUCE, Definition, Flavour, Takes
from millstream_udf.execution import instantiate
from millstream_udf.failures import FAILURES, describe, failure, summary
from millstream_udf.groups import Chunk, Cursor, Feed, Group, Part, Records, items_of
from millstream_udf.loading import LoadError
from millstream_udf.loading import load as load_definition
from millstream_udf.metrics import REGISTRY
from millstream_udf.misfits import MISFIT_CODE, BadOutput, Misfit
from millstream_udf.outputs import each_output, fault_of, output_of
from millstream_udf.outside_loop import stepped_outside
from millstream_udf.settings import Settings, declared, hold, refusal
from millstream_udf.typed_values import Encoder
from millstream_udf.values import Message, RecordOutcome

if TYPE_CHECKING:
    from millstream_udf.reduce_arrow import Tables

ANSWER_BYTES = 1024 * 1024
"""Bytes of results at which an answer is sent."""
_RESULT_BYTES = 8
"""Bytes of a result besides its value, so that an answer with empty results is also bounded."""
ANSWER_GROUPS = 4096
"""Number of groups at which an answer is sent."""
RESULT_BYTES_MAX = 7 * 1024 * 1024
"""Maximum bytes of one result, with its keys and headers: a result becomes a record, and a larger one is refused."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A group without results, and why."""

    index: int
    """Index into the answer's groups."""
    error: str
    """The error on one line."""
    detail: str = ""
    """The user's traceback."""
    code: int = 0
    """Code in Millstream's catalogue, if the failure has one."""


@dataclass(slots=True)
class Answer:
    """The outcome of some groups. The results of a failed group do not count, here or in earlier answers."""

    groups: list[Group] = field(default_factory=list)
    """Groups in order. If the previous answer was unfinished, the first one is the group that it left open."""
    counts: list[int] = field(default_factory=list)
    """Number of results of each group."""
    results: list[bytes | Message] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    unfinished: bool = False
    """More results of the last group follow."""


Reduce = Callable[[Iterable[Part]], Iterator[Answer]]
"""Reduces groups in a process that has no server for its function."""


class ReduceFunction:
    """A reduce function that is set up, one per process."""

    def __init__(self, definition: Definition, call: Callable[..., Any], name: str = "") -> None:
        """`call`: the function, or the class with one instance per group. `name`: a prefix for the lines that it
        prints, if other functions print, too."""
        if definition.reduce is None:
            raise TypeError(f"{definition.name} is not a reduce function; decorate it with @udf.reduce")
        self.definition = definition
        self._call = call
        self._name = name
        self._shape = definition.reduce
        self._values = definition.takes is Takes.VALUE
        self._one_by_one = definition.takes in (Takes.VALUE, Takes.RECORD)
        """Whether it gets values or records, and no tables."""
        self._decode = definition.decode
        self._encode = definition.encode

    @cached_property
    def _tables(self) -> Tables:
        # Only functions that take tables need pyarrow, which may not be installed.
        from millstream_udf.reduce_arrow import Tables

        return Tables(self.definition.options.schema)

    async def answers(self, cursor: Cursor, context: Context) -> AsyncGenerator[Answer, None]:
        """Reduce every group of `cursor`. Raises `Gone` if the parts end in the middle of one."""
        CURRENT.set(context)
        builder = _Builder()
        while await cursor.advance():
            groups = cursor.whole()
            if self.definition.is_async:
                for at in range(0, len(groups), self.definition.concurrency):
                    some = groups[at : at + self.definition.concurrency]
                    reductions = [self._collected(group, Feed(chunk), context) for group, chunk in some]
                    # A function that cancels the task that it runs in, which is one for its group, has failed.
                    found = await asyncio.gather(*reductions, return_exceptions=True)
                    for (group, _), results in zip(some, found, strict=True):
                        for full in builder.whole(group, results):
                            yield full
            else:
                feeds = ((group, Feed(chunk)) for group, chunk in groups)
                for full in stepped_outside(self._reduced(feeds, builder, context)):
                    yield full
            if (left_open := cursor.unfinished()) is not None:
                async for full in self._unfinished(*left_open, builder, context):
                    yield full
            if builder.answer.groups:
                yield builder.take()

    def _reduced(self, groups: Iterable[tuple[Group, Feed]], builder: _Builder, context: Context) -> Iterator[Answer]:
        """Reduce groups with a function that is not async. Yields the answers that are full."""
        for group, feed in groups:
            with output_prefix.labelled(group, self._name):
                yield from builder.group(group, self._results(group, feed, context))

    async def _unfinished(
        self, group: Group, feed: Feed, builder: _Builder, context: Context
    ) -> AsyncGenerator[Answer, None]:
        if self.definition.is_async:
            builder.begin(group)
            changed, taken = asyncio.Event(), asyncio.Event()
            # In a task of its own: a function that cancels the task that it runs in has failed.
            async with asyncio.TaskGroup() as tasks:
                filling = tasks.create_task(outcome_of(self._fill(group, feed, builder, context, changed, taken)))
                filling.add_done_callback(lambda _: changed.set())
                while True:
                    await changed.wait()
                    if filling.done():
                        break
                    changed.clear()
                    yield builder.take(unfinished=True)
                    taken.set()
            try:
                _, error = filling.result()
            except asyncio.CancelledError as cancelled:
                error = failure_in_task(cancelled)
            if error is not None:
                builder.fail(failure(error))
        else:
            for full in stepped_outside(self._reduced([(group, feed)], builder, context)):
                yield full
        # Continue with the next group, whether or not the function has read to the end of this one.
        await feed.skip()

    async def _fill(
        self,
        group: Group,
        feed: Feed,
        builder: _Builder,
        context: Context,
        full: asyncio.Event,
        taken: asyncio.Event,
    ) -> None:
        """Fills the builder with the results of a group. Sets `full` for each answer, and waits until it is `taken`."""
        with output_prefix.labelled(group, self._name):
            async with aclosing(self._results_async(group, feed, context)) as results:
                async for result in results:
                    if builder.add(result):
                        taken.clear()
                        full.set()
                        await taken.wait()

    def _results(self, group: Group, feed: Feed, context: Context) -> Iterator[bytes | Message]:
        """Results of a function that is not async. A generator, so that its exceptions reach the consumer of the
        results."""
        given = {"keys": group.keys, "window": group.window, "context": group.context or context}
        if self._shape.per_group:
            instance = self._call(*map(given.__getitem__, self._shape.arguments))
            for chunk in feed:
                deque(map(instance.add, self._items(chunk, group)), maxlen=0)
            yield from _outputs(instance.result(), self._encode)
            return
        if self._one_by_one:
            records: Any = Records(group, feed, values=self._values, decode=self._decode)
        else:
            records = self._table_of(self._tables.table([self._tables.batch(chunk) for chunk in feed]))
        given["records"] = records
        yield from _outputs(self._call(*map(given.__getitem__, self._shape.arguments)), self._encode)

    async def _results_async(self, group: Group, feed: Feed, context: Context) -> AsyncGenerator[bytes | Message, None]:
        given = {"keys": group.keys, "window": group.window, "context": group.context or context}
        if self._shape.per_group:
            instance = self._call(*map(given.__getitem__, self._shape.arguments))
            async for chunk in feed:
                for item in self._items(chunk, group):
                    if self._shape.add_is_async:
                        await instance.add(item)
                    else:
                        instance.add(item)
            returned = instance.result()
        else:
            if self._one_by_one:
                given["records"] = Records(group, feed, values=self._values, decode=self._decode)
            else:
                batches = [self._tables.batch(chunk) async for chunk in feed]
                given["records"] = self._table_of(self._tables.table(batches))
            returned = self._call(*map(given.__getitem__, self._shape.arguments))
        if self.definition.flavour is Flavour.ASYNC_GENERATOR:
            async for item in returned:
                yield output_of(item, self._encode)
        else:
            for output in _outputs(await returned, self._encode):
                yield output

    async def _collected(self, group: Group, feed: Feed, context: Context) -> list[bytes | Message] | BaseException:
        with output_prefix.labelled(group, self._name):
            try:
                return [result async for result in self._results_async(group, feed, context)]
            except FAILURES as error:
                return failure(error)

    def _items(self, chunk: Chunk, group: Group) -> Iterable[Any]:
        """What an instance for the group gets of a chunk: its values or records, or one table."""
        if self._one_by_one:
            return items_of(chunk, group, values=self._values, decode=self._decode)
        return (self._table_of(self._tables.batch(chunk)),)

    def _table_of(self, table: Any) -> Any:
        return table.to_pandas() if self.definition.takes is Takes.FRAME else table


class _Builder:
    """Collects results until they make an answer."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._size = 0
        self._begun = 0
        """Number of results in the answer that belong to earlier groups."""

    def group(self, group: Group, results: Iterator[bytes | Message]) -> Iterator[Answer]:
        """Collect the results of a group as they are produced; yields the answers that are full."""
        self.begin(group)
        while self._fill(results):
            yield self.take(unfinished=True)
        if len(self.answer.groups) >= ANSWER_GROUPS:
            yield self.take()

    def _fill(self, results: Iterator[bytes | Message]) -> bool:
        """Add results of the last group. Returns True when the answer is full, and False when they end or fail."""
        try:
            return any(map(self.add, results))
        except FAILURES as error:
            self.fail(failure(error))
            return False

    def whole(self, group: Group, results: Sequence[bytes | Message] | BaseException) -> Iterator[Answer]:
        """The same as `group`, for available results."""
        if isinstance(results, FAILURES):
            self.begin(group)
            self.fail(failure(results))
            return iter(())
        return self.group(group, iter(results))

    def begin(self, group: Group) -> None:
        self.answer.groups.append(group)
        self.answer.counts.append(0)
        self._begun = len(self.answer.results)

    def add(self, result: bytes | Message) -> bool:
        """Add a result. Returns whether the answer is full. Raises `BadOutput` for a result that cannot be sent."""
        size = _checked_size(result) if isinstance(result, Message) else len(result)
        if size > RESULT_BYTES_MAX:
            raise BadOutput(
                f"a result has {size:,} bytes; the maximum is {RESULT_BYTES_MAX:,}. Return several smaller ones"
            )
        self.answer.results.append(result)
        self.answer.counts[-1] += 1
        self._size += size + _RESULT_BYTES
        return self._size >= ANSWER_BYTES

    def fail(self, error: BaseException) -> None:
        """Remove the results of the last group."""
        answer = self.answer
        del answer.results[self._begun :]
        answer.counts[-1] = 0
        if isinstance(error, RecordOutcome):
            error = BadOutput(
                f"{type(error).__name__} is for one record, but a reduce function is called with many: return nothing "
                f"for no results, or raise any other exception to fail the group ({error})"
            )
        answer.failures.append(
            Failure(
                len(answer.groups) - 1,
                summary(error),
                describe(error),
                MISFIT_CODE if isinstance(error, Misfit) else 0,
            )
        )

    def take(self, *, unfinished: bool = False) -> Answer:
        taken, self.answer, self._size = self.answer, Answer(), 0
        taken.unfinished = unfinished
        if unfinished:
            self.begin(taken.groups[-1])
        return taken


def load(target: str, directory: str = "", context: Context | None = None, config: str = "") -> Reduce:
    """The reduce function `module:function` or `path/file.py:function`, looked for in `directory`. `config`: that of
    the pipeline file, as JSON.

    The result reduces the groups of parts, which are consumed one by one as answers are requested. The function is set
    up at the first part of a process. (`close` of a class is not called here: a Spark worker ends without notice.)
    Raises `LoadError` if there is no such function, and what the user's module raises when it is imported.
    """
    REGISTRY.not_exported = (
        "metrics of a function that runs inside Spark's Python workers are not exported: start it with `command` in "
        "place of `python`, which gives it a process of its own"
    )
    # One process may have the functions of several vertices, one after the other.
    settings = Settings(config or "{}")
    hold(settings)
    if refused := _refused(target, directory, settings.text):
        raise LoadError(f"{target}: {refused}")
    return partial(_answers, target, directory, context or Context(), settings)


_declared: dict[tuple[str, str], Sequence[Any]] = {}
"""The types with which each module, or file, reads the config. A module that is imported again, for another function or
with another config, declares none."""


@cache
def _refused(target: str, directory: str, config: str) -> str:
    """Why the config does not fit the function; empty if it does. Once in a process: a file that is executed again
    would keep its types, and all that it has, once more."""
    module = target.rpartition(":")[0], directory
    with declared() as kinds:
        _definition(target, directory)
    # What it imports is imported once, and a file is executed again without that.
    _declared[module] = max(_declared.get(module, ()), kinds, key=len)
    return refusal(_declared[module])


def _answers(
    target: str, directory: str, context: Context, settings: Settings, parts: Iterable[Part]
) -> Iterator[Answer]:
    hold(settings)
    function, runner = _process(target, directory, context, settings.text)
    answers = function.answers(Cursor(Parts(parts)), context)
    try:
        while (answer := runner.run(_next(answers))) is not None:
            yield answer
    finally:
        runner.run(answers.aclose())


class Parts:
    """A source of parts that are there, or for whose origin a loop may wait that has nothing else to do meanwhile."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = iter(parts)

    async def next(self) -> Part | None:
        return self.next_blocking()

    def next_blocking(self) -> Part | None:
        return next(self._parts, None)


def _definition(target: str, directory: str) -> Definition:
    definition = load_definition(target, directory)
    if REDUCE not in definition.kinds:
        raise LoadError(
            f"{target} is not a reduce function: decorate it with @udf.reduce, or take keys, records and window"
        )
    return definition


@cache
def _process(target: str, directory: str, context: Context, config: str) -> tuple[ReduceFunction, asyncio.Runner]:
    """The function in this process, and the loop on which it runs."""
    output_prefix.install()
    definition = _definition(target, directory)
    runner = asyncio.Runner()
    runner.run(_forget_loop())
    instance, call = instantiate(definition)
    if (setup := getattr(instance, "setup", None)) is not None:
        runner.run(called_once(setup, context, what=f"setup of {target}"))
    return ReduceFunction(definition, call, target), runner


async def _forget_loop() -> None:
    """A function that is not async would find this loop (`get_event_loop`), and cannot run it."""
    asyncio.set_event_loop(None)


async def _next(answers: AsyncGenerator[Answer, None]) -> Answer | None:
    return await anext(answers, None)


def _outputs(result: Any, encode: Encoder) -> Iterator[bytes | Message]:
    if not _is_table(result):
        return each_output(result, encode)
    from millstream_udf.reduce_arrow import outputs_of

    return outputs_of(result)


def _is_table(result: Any) -> bool:
    """A pyarrow.Table, a pyarrow.RecordBatch or a pandas.DataFrame; without importing either."""
    kind = type(result)
    return kind.__name__ in ("Table", "RecordBatch", "DataFrame") and kind.__module__.partition(".")[0] in (
        "pyarrow",
        "pandas",
    )


def _checked_size(message: Message) -> int:
    if (fault := fault_of(message)) is not None:
        raise fault
    if message.event_time_us is not None:
        raise BadOutput("a result cannot set its event time, which is the end of its window")
    texts = sum(map(len, message.keys or ())) + sum(map(len, message.tags))
    headers = sum(len(name) + len(value) for name, value in (message.headers or {}).items())
    # A text has up to four bytes per character.
    return len(message.value) + 4 * texts + headers
