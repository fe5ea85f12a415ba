"""Runs a function without a pipeline, exactly as a pipeline would: the test kit.

    from millstream_udf.testing import run

    def test_it_shouts():
        assert run(process, [b"hello"]).values == [b"HELLO"]

What a function remembers is in its `Results`, for the next run; `KeptStates` has what a test wants it to remember. What
it counts is there, too. `given` sets the config and the secrets of functions, and counts, for everything in the kit.
`run_timers` moves the watermark, or the clock, and runs the timers whose time has come.
`run_reduce` and `run_windows` do the same for reduce functions, `read_source` for sources. `check_sink` kills a sink
that keeps positions between its calls, and `OpenSink` makes these calls one at a time.

Values and records are packed into a frame, go through the same code as in a running sidecar, and the answer is unpacked
again. Nothing is started: no broker, no gRPC, no other process. For a function with types, inputs may be objects, which
are encoded as JSON, and `Results.objects` decodes its outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millstream_udf import columns
from millstream_udf.answering import answer_map, answer_sink, context_of
from millstream_udf.context import Context
from millstream_udf.defining import define
from millstream_udf.definition import MAP, REDUCE, SINK, SOURCE, SOURCE_TRANSFORM, Definition
from millstream_udf.execution import open_function
from millstream_udf.function_types import UNKNOWN
from millstream_udf.inputs import FrameInputs
from millstream_udf.key_states import now_us as present_us
from millstream_udf.sources import SourceLane, frame_of
from millstream_udf.tables import stored_tables
from millstream_udf.testing_context import Metrics, Observed, counting, given, settled
from millstream_udf.testing_objects import objects_of, record_of
from millstream_udf.testing_reduce import Reduced, run_reduce, run_windows
from millstream_udf.testing_sinks import OpenSink, check_sink, write_once
from millstream_udf.testing_states import KeptStates, kept_states
from millstream_udf.testing_timers import fire_all
from millstream_udf.timer_entries import CLOCKS, pack_due
from millstream_udf.timers import Timer
from millstream_udf.values import Batch, Message, Record
from millstream_udf.wire.udf.v1 import udf_pb2

__all__ = [
    "KeptStates",
    "Metrics",
    "Observed",
    "OpenSink",
    "Outcome",
    "Reduced",
    "Results",
    "arun",
    "check_sink",
    "given",
    "read_source",
    "run",
    "run_reduce",
    "run_timers",
    "run_windows",
]

_RESULTS = {
    udf_pb2.Outcome.RESULT_ERROR: "error",
    udf_pb2.Outcome.RESULT_RETRY: "retry",
    udf_pb2.Outcome.RESULT_DEAD_LETTER: "dead letter",
    udf_pb2.Outcome.RESULT_DROP: "drop",
    udf_pb2.Outcome.RESULT_FALLBACK: "fallback",
    udf_pb2.Outcome.RESULT_HELD_UP: "held up",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an input that was not processed normally."""

    index: int
    """Index of the input."""
    result: str
    """One of: error, retry, dead letter, drop, fallback, held up (an earlier record of its key has failed or is to be
    retried, so a function with states did not get it)."""
    reason: str = ""
    detail: str = ""
    """The traceback of an error."""
    delay_s: float = 0.0
    """The delay of a retry, in seconds."""
    code: str = ""
    """The error code, if the outcome has one: MS-3005 for a value that does not fit."""


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a function for some inputs."""

    _messages: Sequence[Message] = ()
    parents: Sequence[int] = ()
    """Index of the input of each output."""
    outcomes: Sequence[Outcome] = ()
    """The outcomes of inputs that were not processed normally. An input with neither output nor outcome was
    filtered."""
    inputs: int = field(default=0)
    """The number of inputs."""
    gives: Any = UNKNOWN
    """The type of the outputs, if the function is annotated with one."""
    states: KeptStates | None = None
    """What the function remembers now, by key; None if it has no states."""
    metrics: Metrics = field(default_factory=dict)
    """What the function counted, by name and labels: `{'refused{reason="price"}': 2}`."""
    timers: Sequence[Timer] = ()
    """The timers that have fired, in order: the inputs of `run_timers`."""

    @property
    def messages(self) -> Sequence[Message]:
        """The outputs in order, with inherited keys, headers and event times filled in.

        Raises `AssertionError` with the function's traceback if there are no outputs and the function has failed, so
        that the test shows why. A test that expects the failure looks at `outcomes`.
        """
        for outcome in self.outcomes:
            if outcome.result == "error" and not self._messages:
                detail = f"\n{outcome.detail}" if outcome.detail else ""
                raise AssertionError(f"the function failed on input {outcome.index}: {outcome.reason}{detail}")
        return self._messages

    @property
    def values(self) -> list[bytes]:
        """The values of the outputs."""
        return [message.value for message in self.messages]

    def objects(self, kind: Any = None) -> list[Any]:
        """The outputs, decoded to `kind`. Default: the type that the function is annotated to return, else any JSON.

        Raises `ValueError` for an output that does not fit.
        """
        return objects_of(self.values, self.gives if kind is None else kind)

    def of(self, index: int) -> list[Message]:
        """The outputs of one input."""
        return [message for message, parent in zip(self._messages, self.parents, strict=True) if parent == index]


def run(
    function: Any,
    inputs: Iterable[Any],
    *,
    kind: str = "",
    attempt: int = 0,
    watermark_us: int = -(2**63),
    edge: str = "",
    states: KeptStates | Mapping[Any, Mapping[str, Any]] | None = None,
    now_us: int | None = None,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Results:
    """Run `function` on `inputs` as one call: values as bytes or str, objects, which are written as JSON, or a `Record`
    with either. Raises `RuntimeError` if the call as a whole fails.

    `kind` is "map", "source transform" or "sink", for functions that could be several of these; by default the first
    one that matches.

    `edge`: the edge by which all of these come: `record.edge` and `context.edge`.

    `states`: what a function with states remembers before, by key and name: `{"ada": {"total": 5}}`, or the `states` of
    earlier results, which are then also those afterwards. `now_us`: the present time, microseconds since the epoch, for
    states that expire by it.

    `config`, `secrets`: those of the pipeline file. By default those of a `given` around the call, or none.

    `tables`: the tables of its vertex, by name and key: `{"rates": {"EUR": {"rate": 1.08}}}`. Values are objects of the
    table's type, or its bytes.
    """
    return asyncio.run(
        arun(
            function,
            inputs,
            kind=kind,
            attempt=attempt,
            watermark_us=watermark_us,
            edge=edge,
            states=states,
            now_us=now_us,
            config=config,
            secrets=secrets,
            tables=tables,
        )
    )


async def arun(
    function: Any,
    inputs: Iterable[Any],
    *,
    kind: str = "",
    attempt: int = 0,
    watermark_us: int = -(2**63),
    edge: str = "",
    states: KeptStates | Mapping[Any, Mapping[str, Any]] | None = None,
    now_us: int | None = None,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Results:
    """The same as `run`, for async tests."""
    with settled(config, secrets), counting() as counted:
        results = await _run(function, inputs, kind, attempt, watermark_us, states, now_us, edge, tables or {})
    return replace(results, metrics=counted)


async def _run(
    function: Any,
    inputs: Iterable[Any],
    kind: str,
    attempt: int,
    watermark_us: int,
    states: KeptStates | Mapping[Any, Mapping[str, Any]] | None,
    now_us: int | None,
    edge: str,
    tables: Mapping[str, Mapping[Any, Any]],
) -> Results:
    records = [record_of(item) for item in inputs]
    definition = define(function, getattr(function, "__name__", type(function).__name__))
    kept, filled = kept_states(definition, states), stored_tables(tables, definition.tables)
    if not records:
        return Results(states=kept)
    hello = _hello(definition, kind, edge)
    frame = frame_of(records)
    answer: udf_pb2.SinkAnswer | udf_pb2.SealedMapAnswer
    if definition.keeps_positions:
        answer = await write_once(definition, hello, records, attempt)
    else:
        async with open_function(definition, context_of(hello)) as opened:
            if hello.kind == SINK:
                sink_call = udf_pb2.SealedSinkCall(frame=frame, id_prefix="test/in-test/0/1/", attempt=attempt)
                answer = await answer_sink(opened.lane(), hello, sink_call)
            else:
                now = present_us() if now_us is None else now_us
                map_call = udf_pb2.SealedMapCall(frame=frame, attempt=attempt, watermark_us=watermark_us)
                if kept is not None:
                    map_call.states = kept.sent(FrameInputs(frame), watermark_us=watermark_us, now_us=now)
                ask = None if kept is None else kept.ask(FrameInputs(frame))
                lane = opened.lane()
                lane.tables.fill(filled)
                answer = await answer_map(lane, hello, map_call, now_us=lambda: now, ask=ask)
    if answer.error:
        raise RuntimeError(answer.error)
    if isinstance(answer, udf_pb2.SinkAnswer):
        return Results(outcomes=_outcomes(answer.outcomes), inputs=len(records))
    results = replace(_map_results(FrameInputs(frame), answer), gives=definition.gives, states=kept)
    if kept is not None:
        kept.commit(FrameInputs(frame), answer.changes)
    return results


def run_timers(
    function: Any,
    states: KeptStates | Mapping[Any, Mapping[str, Any]] | None,
    *,
    watermark_us: int = -(2**63),
    now_us: int = -(2**63),
    attempt: int = 0,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Results:
    """Run the timers of `function` whose time has come: by event time up to `watermark_us`, then by processing time up
    to `now_us`, microseconds since the epoch. They fire as in a pipeline, also those that they set.

    `states`, `tables`: what is remembered before, and the tables, as for `run`; its timers are `states.timers`. The
    inputs of the results are the timers that have fired, which are `results.timers`. One that fails or is to be
    retried fires once, and stays set. Raises `RuntimeError` if a call as a whole fails.
    """
    return asyncio.run(
        arun_timers(
            function,
            states,
            watermark_us=watermark_us,
            now_us=now_us,
            attempt=attempt,
            config=config,
            secrets=secrets,
            tables=tables,
        )
    )


async def arun_timers(
    function: Any,
    states: KeptStates | Mapping[Any, Mapping[str, Any]] | None,
    *,
    watermark_us: int = -(2**63),
    now_us: int = -(2**63),
    attempt: int = 0,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    tables: Mapping[str, Mapping[Any, Any]] | None = None,
) -> Results:
    """The same as `run_timers`, for async tests."""
    definition = define(function, getattr(function, "__name__", type(function).__name__))
    if definition.on_timer is None:
        raise TypeError(f"{definition.name} has no on_timer")
    kept, filled = kept_states(definition, states), stored_tables(tables or {}, definition.tables)
    assert kept is not None, "timers are a state"
    fired: list[Timer] = []
    messages: list[Message] = []
    parents: list[int] = []
    outcomes: list[Outcome] = []
    hello, present = _hello(definition, "map", ""), present_us() if now_us == -(2**63) else now_us
    with settled(config, secrets), counting() as counted:
        async with open_function(definition, context_of(hello)) as opened:
            lane = opened.lane()
            lane.tables.fill(filled)

            async def fire(timers: list[Timer]) -> set[int]:
                records = [
                    Record(pack_due(one.name, CLOCKS[one.clock], one.at_us), one.event_time_us, one.keys)
                    for one in timers
                ]
                inputs = FrameInputs(frame_of(records))
                call = udf_pb2.SealedMapCall(
                    frame=frame_of(records), attempt=attempt, watermark_us=watermark_us, timers=True
                )
                call.states = kept.sent(inputs, watermark_us=watermark_us, now_us=present, timers=timers)
                answer = await answer_map(lane, hello, call, now_us=lambda: present, ask=kept.ask(inputs))
                if answer.error:
                    raise RuntimeError(answer.error)
                kept.commit(inputs, answer.changes)
                found, before = _map_results(inputs, answer), len(fired)
                fired.extend(timers)
                messages.extend(found._messages)
                parents.extend(before + parent for parent in found.parents)
                outcomes.extend(replace(one, index=before + one.index) for one in found.outcomes)
                return {one.index for one in found.outcomes if one.result in ("error", "retry")}

            await fire_all(kept, watermark_us, present if now_us != -(2**63) else now_us, fire)
    gives = definition.on_timer.gives
    return Results(messages, parents, outcomes, len(fired), gives, kept, metrics=counted, timers=fired)


def read_source(
    source: type,
    *,
    position: bytes = b"",
    partition: int = 0,
    partitions: int = 1,
    records_max: int = 100,
    reads: int = 1,
) -> list[Batch]:
    """Open a source at `position` and read `reads` times, or until it ends. Each batch is committed immediately."""

    async def read() -> list[Batch]:
        encode = define(source, source.__name__).encode
        lane = SourceLane(source, Context(pipeline="test", vertex="test", lane=f"source.{partition}"), encode)
        await lane.open(udf_pb2.SourceOpen(position=position, partition=partition, partitions=partitions))
        batches: list[Batch] = []
        try:
            while len(batches) < reads and not (batches and batches[-1].ended):
                batch = await lane.read(udf_pb2.SourceRead(records_max=records_max, bytes_max=2**20, timeout_us=10_000))
                if batch.error:
                    raise RuntimeError(batch.error)
                records = FrameInputs(batch.frame.SerializeToString()).records if batch.HasField("frame") else []
                pending = batch.pending if batch.HasField("pending") else None
                batches.append(Batch(records, position=batch.position, ended=batch.ended, pending=pending))
                await lane.committed(udf_pb2.SourceCommitted(position=batch.position))
        finally:
            await lane.close()
        return batches

    return asyncio.run(read())


def _hello(definition: Definition, kind: str, edge: str) -> udf_pb2.Hello:
    kinds = {"map": MAP, "source transform": SOURCE_TRANSFORM, "sink": SINK}
    if kind and kind not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, not {kind!r}")
    chosen = kinds[kind] if kind else definition.kinds[0]
    if chosen == SOURCE:
        raise TypeError("a source takes no inputs; use read_source")
    if chosen == REDUCE:
        raise TypeError("a reduce function takes windows; use run_reduce or run_windows")
    if chosen not in definition.kinds:
        raise TypeError(f"{definition.name} is not a {kind}")
    return udf_pb2.Hello(
        protocol_version=1,
        kind=chosen,
        pipeline="test",
        vertex=definition.name,
        lane=f"in-{definition.name}.0",
        edge=edge,
    )


def _map_results(inputs: FrameInputs, answer: udf_pb2.SealedMapAnswer) -> Results:
    count = answer.records
    parents = columns.unpack_offsets(answer.parents).tolist() if answer.parents else list(range(count))
    keys = (
        [tuple(part.decode() for part in parts) for parts in columns.unpack_lists(answer.keys, count)]
        if answer.keys
        else [inputs.keys[parent] for parent in parents]
    )
    headers = (
        columns.unpack_headers(answer.headers, count)
        if answer.headers
        else [inputs.headers[parent] for parent in parents]
    )
    times = (
        columns.unpack_times(answer.event_times_us).tolist()
        if answer.event_times_us
        else [inputs.event_times_us[parent] for parent in parents]
    )
    tags = [tuple(tag.decode() for tag in tags) for tags in columns.unpack_lists(answer.tags, count)]
    rows = zip(columns.unpack_bytes(answer.values), keys, tags, headers, times, strict=True)
    return Results([Message(*row) for row in rows], parents, _outcomes(answer.outcomes), inputs.count)


def _outcomes(outcomes: Iterable[udf_pb2.Outcome]) -> list[Outcome]:
    return [
        Outcome(
            item.index,
            _RESULTS[item.result],
            item.reason,
            item.detail,
            item.delay_us / 1_000_000,
            f"MS-{item.code}" if item.code else "",
        )
        for item in outcomes
    ]
