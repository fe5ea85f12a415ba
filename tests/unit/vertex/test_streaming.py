"""Outputs that a stage passes on while its function makes them: what comes out is what comes out without that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import millstream_udf as udf
from millstream.clock import SystemClock
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.limits import RECORD_BYTES_MAX
from millstream.record import LaneId
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.telemetry.telemetry import Telemetry
from millstream_udf import streaming
from millstream_vertex.lineage import Lineage
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.stages import Stages, Step
from millstream_writer.committer import Unit
from millstream_writer.routing import Route, Router
from tests.unit.vertex.lane_rig import (
    InProcessParts,
    InProcessStream,
    open_parts,
    open_rig,
    open_stream,
    records_of,
    stage_of,
)
from tests.unit.vertex.test_arrow_chain import DEAD, OUT, output_of

RETRIES = RetryPolicy(Backoff(0.0, steps=2), OnFailure.DEAD_LETTER, asked_max=1)
Ways = Mapping[bytes, Callable[[], BaseException]]


class Expanding:
    """Makes as many outputs of a value as it says. In the middle of some it fails."""

    def __init__(self, failing: Mapping[bytes, int] | None = None, ways: Ways | None = None) -> None:
        """`failing`: how many attempts fail, by value. `ways`: with what, if not a `ValueError`."""
        self.failing = Counter(failing or {})
        self.ways = ways or {}
        self.made: list[bytes] = []

    def outputs(self, record: udf.Record) -> Iterator[bytes | udf.Message]:
        value, count = bytes(record.value), int(record.value)
        for number in range(count):
            if number == count // 2 and self.failing[value]:
                self.failing[value] -= 1
                raise self.ways[value]() if value in self.ways else ValueError(f"at {number}")
            output = value + b".%d" % number
            self.made.append(output)
            yield output if number % 3 else udf.Message(output, keys=("k",), tags=("t",), headers={"h": output})


@udf.map
def exclaim(record: udf.Record) -> Sequence[bytes]:
    """The second function of the chain: it shows the ids of its records."""
    value = bytes(record.value) + b" " + str(record.id).encode()
    if b".4 " in value:
        return [value, b"twice"]
    return [] if b".3 " in value else [value]


def as_generator(function: Expanding) -> Any:
    def process(record: udf.Record) -> Iterator[bytes | udf.Message]:
        yield from function.outputs(record)

    return udf.map(process)


def as_async_generator(function: Expanding) -> Any:
    async def process(record: udf.Record) -> AsyncIterator[bytes | udf.Message]:
        for output in function.outputs(record):
            await asyncio.sleep(0)
            yield output

    return udf.map(process)


def as_list(function: Expanding) -> Any:
    def process(record: udf.Record) -> list[bytes | udf.Message]:
        return list(function.outputs(record))

    return udf.map(process)


def in_threads(function: Expanding) -> Any:
    def process(record: udf.Record) -> Iterator[bytes | udf.Message]:
        yield from function.outputs(record)

    return udf.map(threads=3)(process)


@pytest.fixture(params=[1, 3, 4096], ids=["one by one", "three by three", "whole"])
def part_records(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Outputs in a part."""
    monkeypatch.setattr(streaming, "PIECE_RECORDS", request.param)
    monkeypatch.setattr(streaming, "RUN_BYTES", 1)
    monkeypatch.setattr(streaming, "PIECE_AGE_S", 1e9)
    return int(request.param)


async def taken(first: InProcessStream, values: Sequence[bytes], policy: RetryPolicy = RETRIES) -> Unit:
    """The unit that values are after a function and `exclaim`."""
    router = Router([Route(OUT.edge, 1, None)], [Route(DEAD.edge, 1, None)])
    async with open_rig() as rig, open_stream(exclaim) as second:
        stages = [stage_of(one, policy, dead_letter=True) for one in (first, second)]
        lanes = LaneId("first", "in-first", 0), LaneId("second", "first", 0)
        steps = [
            Step(lane, stage, router, Telemetry(), LaneCounters(), number)
            for number, (lane, stage) in enumerate(zip(lanes, stages, strict=True))
        ]
        output = await output_of(rig, router)
        return await Stages(steps, output, SystemClock()).take(records_of(*values), Lineage("7/"), 0)


def rows_of(unit: Unit) -> list[tuple[str, Any]]:
    """Everything in a unit, whatever frames it is in, apart from where tracebacks point."""
    rows: list[tuple[str, Any]] = []
    for buffer, frame in unit.frames:
        for value, keys, headers, time_us in zip(
            frame.values(), frame.keys(), frame.headers(), frame.event_times_us(), strict=True
        ):
            known = {name: content for name, content in headers.items() if not name.startswith("dead-letter-detail")}
            rows.append((buffer.edge, (value, keys, {} if buffer == DEAD else known, time_us)))
    return sorted(rows, key=lambda row: row[0])


def accounts_of(unit: Unit) -> list[Any]:
    return [unit.account, *((one.account, one.records) for one in unit.passed)]


CASES: dict[str, tuple[list[bytes], dict[bytes, int], Ways]] = {
    "nothing fails": ([b"5", b"0", b"7", b"1"], {}, {}),
    "one record": ([b"9"], {}, {}),
    "fails once": ([b"5", b"6", b"7"], {b"6": 1}, {}),
    "the first fails": ([b"6", b"5"], {b"6": 1}, {}),
    "the last fails": ([b"5", b"6"], {b"6": 1}, {}),
    "fails to the end": ([b"5", b"6", b"7"], {b"6": 9}, {}),
    "several fail": ([b"4", b"6", b"5", b"8"], {b"6": 1, b"8": 9}, {}),
    "is dropped": ([b"5", b"6", b"7"], {b"6": 9}, {b"6": lambda: udf.Drop("no")}),
    "is a dead letter": ([b"5", b"6", b"7"], {b"6": 9}, {b"6": lambda: udf.DeadLetter("no")}),
    "asks again": ([b"5", b"6", b"7"], {b"6": 1}, {b"6": lambda: udf.Retry(0.0, "later")}),
}


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I4")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", [as_generator, as_async_generator, in_threads, as_list])
async def test_what_comes_out_is_what_comes_out_without(part_records: int, case: str, form: Any) -> None:
    values, failing, ways = CASES[case]
    async with open_stream(as_list(Expanding(failing, ways))) as whole:
        expected = await taken(whole, values)
    async with open_parts(form(Expanding(failing, ways))) as parts:
        found = await taken(parts, values)
    assert rows_of(found) == rows_of(expected)
    assert accounts_of(found) == [replace_bytes(one, found) for one in accounts_of(expected)]


def replace_bytes(account: Any, unit: Unit) -> Any:
    """The same account; columns of several frames have other bytes."""
    if isinstance(account, tuple):
        return replace(account[0], input_bytes=unit.passed[0].account.input_bytes), account[1]
    return account


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("loses", [1, 2])
async def test_a_stream_that_is_lost_in_the_middle_leaves_nothing(part_records: int, loses: int) -> None:
    values = [b"5", b"6", b"7"]
    async with open_stream(as_list(Expanding())) as whole:
        expected = await taken(whole, values)
    async with open_parts(as_generator(Expanding())) as parts:
        parts.loses = loses
        found = await taken(parts, values)
    assert rows_of(found) == rows_of(expected)


async def test_outputs_reach_the_next_function_before_the_last_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE_RECORDS", 2)
    monkeypatch.setattr(streaming, "RUN_BYTES", 1)
    function, seen = Expanding(), list[int]()

    class Watched(InProcessParts):
        async def streamed_call(self, frame: Frame, take: Any, **options: Any) -> Any:
            async def watched(part: Any) -> None:
                await take(part)
                seen.append(part.records)

            return await super().streamed_call(frame, watched, **options)

    async with open_parts(as_generator(function)) as opened:
        opened.__class__ = Watched
        unit = await taken(opened, [b"5", b"2"])
    assert seen == [2, 2, 2]
    assert len(unit.frames) == 4


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_function_that_cancels_its_own_task_fails_for_its_record_alone(
    part_records: int, concurrency: int
) -> None:
    @udf.map(concurrency=concurrency)
    async def process(record: udf.Record) -> AsyncIterator[bytes]:
        yield bytes(record.value) + b".0"
        await asyncio.sleep(0)
        if record.value == b"2":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        yield bytes(record.value) + b".1"

    async with open_parts(process) as parts:
        unit = await taken(parts, [b"1", b"2", b"3", b"4"])
    out = [row[1][0].partition(b" ")[0] for row in rows_of(unit) if row[0] == OUT.edge]
    assert [one for one in out if not one.startswith(b"2")] == [b"1.0", b"1.1", b"3.0", b"3.1", b"4.0", b"4.1"]
    # Whether the cancellation is noticed depends on whether anything was waited for after it.
    assert [one for one in out if one.startswith(b"2")] in ([], [b"2.0", b"2.1"])


async def test_an_output_that_is_too_large_fails_its_record_alone(part_records: int) -> None:
    def process(record: udf.Record) -> Iterator[bytes]:
        yield bytes(record.value) + b".0"
        yield bytes(RECORD_BYTES_MAX + 1) if record.value == b"2" else bytes(record.value) + b".1"

    async with open_parts(udf.map(process)) as parts:
        unit = await taken(parts, [b"1", b"2", b"3"])
    out = [row[1][0] for row in rows_of(unit) if row[0] == OUT.edge]
    assert [value.partition(b" ")[0] for value in out] == [b"1.0", b"1.1", b"3.0", b"3.1"]
    assert (unit.account.dead_lettered, unit.account.outputs) == (1, 4)


async def test_a_policy_that_stops_names_the_record(part_records: int) -> None:
    stop = RetryPolicy(Backoff(0.0, steps=1), OnFailure.STOP)
    async with open_parts(as_generator(Expanding({b"6": 9}))) as parts:
        with pytest.raises(ExceptionGroup) as raised:
            await taken(parts, [b"5", b"6"], stop)
        assert raised.group_contains(UdfError, match="7/1 .* after 1 attempt: ValueError: at 3")
