"""A sink that the user wrote, in its real process: what it says of each record, and what the delivery makes of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.account import Account
from millstream.errors import UdfError
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf.answers import SinkAnswer
from millstream.udf.native.messages import sink_answer_of
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.user_defined.sink.outcomes import failures_of
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_writer.delivery import Delivery, DeliveryLimits
from tests.contract.sinks.file_target import file_spec, numbers_in, sink_owner, value_of
from tests.contract.sinks.sink_targets import SinkTarget, open_target
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

NUMBERS = range(1000000, 1000060)
FRAME = sink_frame([value_of(number) for number in NUMBERS], 5)


@asynccontextmanager
async def delivering(directory: Path, on_failure: OnFailure) -> AsyncIterator[tuple[Delivery, SinkTarget]]:
    """With files as the fallback."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        target = await stack.enter_async_context(open_target("udsink", directory))
        primary = await stack.enter_async_context(
            open_sink(target.spec, replace(sink_owner(1), client=target.udf_client))
        )
        fallback_spec = file_spec(directory / "fallback", "jsonl")
        fallback = await stack.enter_async_context(open_sink(fallback_spec, sink_owner(1).as_fallback()))
        policy, limits = RetryPolicy(Backoff(0.001, steps=3), on_failure), DeliveryLimits(10**9, 10**12)
        yield (
            Delivery(
                primary, fallback, policy, limits, where="p/out/in-out.0", rng=random.Random(1), stop_error=UdfError
            ),
            target,
        )


@pytest.mark.guarantee("I2")
async def test_everything_a_sink_can_say_of_a_record(tmp_path: Path) -> None:
    async with delivering(tmp_path, OnFailure.FALLBACK) as (delivery, target):
        await delivery.write([FRAME], Position(5))
        await delivery.flush()
        settled = delivery.take_settled()
        written = [json.loads(line) for line in (tmp_path / "written").read_text().splitlines()]
    assert settled is not None
    assert settled.account == Account(inputs=60, processed=59, fallback=2, dropped={"unwanted": 1})
    # 1000011 failed twice and 1000022 asked for another time, both later than the others; each under its own id.
    assert [item["n"] for item in written[-2:]] == [1000022, 1000011]
    assert sorted(target.numbers()) == [number for number in NUMBERS if number not in (1000033, 1000044, 1000055)]
    assert all(item["id"] == f"out/in/0/5/{item['n'] - 1000000}" for item in written)
    assert numbers_in(tmp_path / "fallback") == [1000044, 1000055]


async def test_a_record_the_sink_cannot_take_stops_the_lane_with_its_name_and_the_reason(tmp_path: Path) -> None:
    async with delivering(tmp_path, OnFailure.STOP) as (delivery, _):
        with raises(codes.SINK_FUNCTION_FAILED, match=r"did not take record out/in/0/5/55 .*: hopeless"):
            await delivery.write([FRAME], Position(5))


def test_a_call_that_failed_as_a_whole_has_failed_for_each_record() -> None:
    failures = failures_of(SinkAnswer(error="boom"), 3)
    assert [(f.index, f.retryable, f.attempted, f.detail) for f in failures] == [
        (i, True, True, "boom") for i in range(3)
    ]


@pytest.mark.parametrize(
    ("outcomes", "what"),
    [
        ([udf_pb2.Outcome(index=3, result=udf_pb2.Outcome.RESULT_DROP)], "input 3 of 3"),
        ([udf_pb2.Outcome(index=1, result=udf_pb2.Outcome.RESULT_DROP)] * 2, "two outcomes are for input 1"),
        ([udf_pb2.Outcome(index=1)], "has no result"),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(outcomes: list[udf_pb2.Outcome], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        sink_answer_of(udf_pb2.SinkAnswer(outcomes=outcomes), 3)
