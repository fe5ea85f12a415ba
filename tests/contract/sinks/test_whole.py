"""Sinks at the end of a chain, each with its real target: a delivery is there whole, or not at all."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame, WholeLane
from tests.contract.sinks.file_target import NOWHERE, sink_owner, value_of
from tests.contract.sinks.sink_targets import KINDS, SinkTarget, open_target
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

_NAMES = ("file", "postgres", "sqlite", "mariadb", "kafka", "redis", "delta", "iceberg", "udsink p")
WHOLE = [kind for kind in KINDS if kind.startswith(_NAMES)]
FRAMES = 3
RECORDS = 10
# Each of them may have to start a server.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=WHOLE)
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SinkTarget]:
    servers = [name for name in ("postgres", "mariadb", "kafka", "redis") if request.param.startswith(name)]
    given = {name: request.getfixturevalue(name) for name in servers}
    async with open_target(request.param, tmp_path, **given) as opened:
        yield opened


@asynccontextmanager
async def opened(target: SinkTarget, epoch: int, start: Position = NOWHERE) -> AsyncIterator[WholeLane]:
    owner = replace(sink_owner(epoch, start=start), whole=True, client=target.udf_client)
    async with open_sink(target.spec, owner) as lane:
        if not isinstance(lane, WholeLane):
            pytest.skip("it keeps no position here")
        yield lane


def delivery_of(first: int) -> list[SinkFrame]:
    """Frames with these numbers, `first` the number of the first frame: indexes begin where the chain's records do."""
    return [
        sink_frame(
            [value_of(n) for n in range(number * RECORDS, number * RECORDS + RECORDS)],
            number,
            first_index=number * 1_000_000,
            name=f"delivery {first}",
            keys=[[b"%d" % n] for n in range(number * RECORDS, number * RECORDS + RECORDS)],
        )
        for number in range(first, first + FRAMES)
    ]


@pytest.mark.guarantee("I1")
async def test_a_target_is_before_a_delivery_or_behind_it(target: SinkTarget) -> None:
    async with opened(target, 1) as lane:
        assert await lane.reach() == Position(0)
        await lane.write(delivery_of(1), Position(3))
        if lane.collects:
            assert lane.durable == Position(0)
            # Time alone makes nothing of it durable either.
            await lane.tick()
            assert target.numbers() == []
        await lane.flush()
        assert lane.durable == Position(3)
        await lane.write(delivery_of(4), Position(6))
    # The lane died: before it said that a delivery is complete, or after.
    async with opened(target, 2) as lane:
        reached = await lane.reach()
        assert reached == Position(3 if lane.collects else 6)
        # Another delivery has the place of one that was not made.
        await lane.write(delivery_of(reached.sequence + 1), Position(reached.sequence + 3))
        await lane.flush()
    expected = range(RECORDS, (reached.sequence + FRAMES + 1) * RECORDS)
    assert target.numbers() == list(expected)


@pytest.mark.guarantee("I1")
async def test_with_refused_records_nothing_is_there_before_the_flush(target: SinkTarget) -> None:
    frames = delivery_of(1)
    bad = (
        b"x" * 3_000_000 if target.spec.kind == "kafka" else b"not json" if target.spec.kind != "redisStreams" else b""
    )
    values = [bad if n == 15 else value_of(n) for n in range(10, 20)]
    frames[0] = replace(frames[0], frame=sink_frame(values, 1, keys=[[b"%d" % n] for n in range(10, 20)]).frame)
    stop = RetryPolicy(Backoff(0.001), OnFailure.STOP)
    drop = replace(stop, on_failure=OnFailure.DROP)
    async with opened(target, 1) as lane:
        result = await lane.write(frames, Position(3))
        if not any(result.failures):
            pytest.skip("it takes any record")
        assert target.numbers() == []
    async with opened(target, 2) as lane:
        with raises(codes.SINK_REFUSED, "attempt"):
            await _delivery(lane, stop).write(frames, Position(3))
    async with opened(target, 3) as lane:
        assert await lane.reach() == Position(0)
        delivery = _delivery(lane, drop)
        account = await delivery.write(frames, Position(3))
        assert sum(account.dropped.values()) == 1
        assert target.numbers() == []
        await delivery.flush()
        assert lane.durable == Position(3)
    assert target.numbers() == [n for n in range(10, 40) if n != 15]
    async with opened(target, 4) as lane:
        assert await lane.reach() == Position(3)


def _delivery(lane: WholeLane, policy: RetryPolicy) -> Delivery:
    return Delivery(lane, None, policy, DeliveryLimits(), where="p/out/in-out.0", rng=random.Random(1))
