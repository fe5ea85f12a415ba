"""What every kind of sink keeps to, each with its real target."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.account import Account
from millstream.limits import RESULT_FRAME_RECORDS_MAX
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import Guarantee, SinkFrame
from tests.contract.sinks.file_target import NOWHERE, leftovers, sink_owner, value_of
from tests.contract.sinks.sink_targets import KINDS, SinkTarget, open_target
from tests.support import sizes
from tests.unit.writer.sink_frames import sink_frame

FRAME_RECORDS = 10
# Each of them may have to start a server.
pytestmark = pytest.mark.timeout(900)
ONE_OF_EACH = (
    "file jsonl",
    "objects jsonl",
    "udsink positions",
    "postgres insert",
    "sqlite insert",
    "mariadb insert",
    "kafka",
    "redis stream",
    "jetstream positions",
    "delta",
    "iceberg",
    "bigquery",
    "opensearch insert",
)
"""Of the sinks that repeat nothing."""
MANY_AT_ONCE = ("file", "objects", "postgres", "delta", "bigquery")
"""Those that take the largest frame in a second or two."""


@pytest.fixture(params=KINDS)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SinkTarget]:
    servers = [
        name
        for name in (
            "postgres",
            "mariadb",
            "kafka",
            "redis",
            "objects",
            "rabbit",
            "sqs",
            "pubsub",
            "mqtt",
            "opensearch",
        )
        if request.param.startswith(name)
    ]
    given = {name: request.getfixturevalue(name) for name in servers}
    async with asyncio.timeout(60), open_target(request.param, tmp_path, **given) as opened:
        yield opened


@asynccontextmanager
async def delivering(target: SinkTarget, epoch: int = 1, start: Position = NOWHERE) -> AsyncIterator[Delivery]:
    policy = RetryPolicy(Backoff(0.001), OnFailure.RETRY)
    limits = DeliveryLimits(10**9, 10**12)
    async with open_sink(target.spec, replace(sink_owner(epoch, start=start), client=target.udf_client)) as lane:
        assert lane.guarantee is target.guarantee
        yield Delivery(lane, None, policy, limits, where="p/out/in-out.0", rng=random.Random(1))


def frame(number: int, first: int = 0) -> SinkFrame:
    """Frame `number`, of sequence 2 * `number`, from index `first` on."""
    numbers = range(number * FRAME_RECORDS - FRAME_RECORDS + first, number * FRAME_RECORDS)
    return sink_frame(
        [value_of(n) for n in numbers], 2 * number, first_index=first, keys=[[b"%d" % n] for n in numbers]
    )


async def test_records_arrive_in_order_and_are_settled_after_a_flush(target: SinkTarget) -> None:
    async with delivering(target) as delivery:
        for number in range(1, 6):
            await delivery.write([frame(2 * number - 1), frame(2 * number)], Position(4 * number))
            await delivery.tick()
        await delivery.flush()
        settled = delivery.take_settled()
        assert settled == (Position(20), Account(inputs=100, processed=100))
    assert target.numbers() == list(range(100))


async def test_an_owner_that_dies_is_followed_by_one_that_goes_on_from_the_mark(target: SinkTarget) -> None:
    """The first owner is gone before it flushed or committed what it wrote last."""
    async with delivering(target) as delivery:
        await delivery.write([frame(1)], Position(2))
        await delivery.flush()
        settled = delivery.take_settled()
        assert settled is not None
        await delivery.write([frame(2).take(range(7))], Position(2, 7))
        await delivery.flush()
        await delivery.write([frame(2, 7), frame(3)], Position(6))
    async with delivering(target, 2, settled.position) as delivery:
        await delivery.write([frame(2)], Position(4))
        await delivery.write([frame(3)], Position(6))
        await delivery.flush()
        settled = delivery.take_settled()
    assert settled is not None
    assert settled.position == Position(6)
    if target.guarantee is Guarantee.AT_LEAST_ONCE:
        assert sorted(set(target.numbers())) == list(range(30))
    else:
        assert target.numbers() == list(range(30))


@pytest.mark.parametrize("target", ONE_OF_EACH, indirect=True)
async def test_a_repeated_frame_of_any_size_has_no_effect_on_the_next_one(target: SinkTarget) -> None:
    """Windows write the largest frames, and positions that targets keep as numbers have to hold their indexes."""
    largest = RESULT_FRAME_RECORDS_MAX
    # Of a kind that takes seconds for so many records, only the end of such a frame, with the same indexes.
    first = 0 if sizes.ALL or target.kind.startswith(MANY_AT_ONCE) else largest - 3
    begins = [10_000 + first, 10_000 + largest, 10_001 + largest, 10_002 + largest]
    frames = [
        sink_frame(
            [value_of(n) for n in numbers],
            sequence,
            keys=[[b"%d" % n] for n in numbers],
            first_index=first if sequence == 1 else 0,
        )
        for sequence, numbers in enumerate(map(range, begins, begins[1:]), 1)
    ]
    for epoch, (start, stop) in enumerate(((0, 1), (0, 2), (1, 3)), 1):
        async with delivering(target, epoch, Position(start)) as delivery:
            for frame in frames[start:stop]:
                await delivery.write([frame], Position(frame.sequence))
            await delivery.flush()
    assert target.numbers() == list(range(begins[0], begins[-1]))


async def test_opening_and_closing_has_no_effect(target: SinkTarget) -> None:
    async with delivering(target) as delivery:
        await delivery.flush()
        await delivery.tick()
        assert delivery.take_settled() is None
    assert target.numbers() == []
    if target.kind.startswith("file"):
        assert leftovers(target.directory / "out") == []


async def test_a_write_of_which_nothing_is_for_this_sink_moves_it_on(target: SinkTarget) -> None:
    async with open_sink(target.spec, replace(sink_owner(1), client=target.udf_client)) as lane:
        assert not (await lane.write([], Position(7))).failures
        assert lane.durable in (None, Position(7))
    assert target.numbers() == []


async def test_closing_in_the_middle_of_a_write_leaves_nothing_running(target: SinkTarget) -> None:
    target.http.held = asyncio.Event()
    with pytest.raises(TimeoutError):
        await _deliver_until_timeout(target)
    target.http.held.set()
    if target.kind.startswith("file"):
        assert leftovers(target.directory / "out") == []
    async with delivering(target, 2) as delivery:
        await delivery.write([frame(1)], Position(2))
        await delivery.flush()
    assert set(range(10)) <= set(target.numbers())


async def _deliver_until_timeout(target: SinkTarget) -> None:
    async with asyncio.timeout(0.05), delivering(target) as delivery:
        for number in range(1, 10_000):
            await delivery.write([frame(number)], Position(2 * number))
