"""The `rabbitmq` source and streams of a real server: by offset, from every position, and what was removed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from millstream import codes
from millstream.clock import SystemClock
from millstream.spec.models import Source
from millstream_reader.source import SourceBatch, SourceLane
from tests.contract.sources.lanes import held_up, open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.rabbit_server import RabbitServer


def spec(server: RabbitServer, queue: str, **settings: Any) -> dict[str, Any]:
    return {"rabbitmq": {**server.settings, "queue": queue, "stream": True, **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read(lane: SourceLane, count: int, batches: list[SourceBatch] | None = None) -> list[bytes]:
    return values(await read_until(lane, lambda records: len(records) >= count, batches))


@pytest.mark.guarantee("I1", "I4")
async def test_from_any_position_each_message_comes_once_and_in_order(rabbit: RabbitServer) -> None:
    queue = rabbit.queue("stream")
    rabbit.send(queue, numbers(0, 600), ids="m")
    batches: list[SourceBatch] = []
    async with open_lane(spec(rabbit, queue)) as lane:
        assert await read(lane, 600, batches) == numbers(0, 600)
        rabbit.send(queue, numbers(600, 5), ids="n")
        assert await read(lane, 605, batches) == numbers(0, 605)
    records = records_of(batches)
    assert [record.headers["x-stream-offset"] for record in records] == numbers(0, 605)
    done = 0
    for batch in batches[:: max(1, len(batches) // 4)]:
        before = batches[: batches.index(batch) + 1]
        done = len(records_of(before))
        async with open_lane(spec(rabbit, queue), batch.position) as lane:
            assert await read(lane, 605 - done) == numbers(done, 605 - done)
            assert (await lane.read(10, 1 << 20, 0.1)).frame is None


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I9")
async def test_a_server_that_is_killed_is_waited_for(rabbit: RabbitServer) -> None:
    queue = rabbit.stream()
    rabbit.send(queue, numbers(0, 50), ids="m")
    async with open_lane(spec(rabbit, queue)) as lane:
        found = await read(lane, 50)
        rabbit.kill()
        await held_up(lane, True)
        rabbit.start()
        rabbit.until_there(queue)
        await held_up(lane, False)
        rabbit.send(queue, numbers(50, 50), ids="n")
        found += await read(lane, 50)
    assert found == numbers(0, 100)


@pytest.mark.guarantee("I10")
async def test_messages_that_were_removed_before_they_were_read_stop_the_lane(rabbit: RabbitServer) -> None:
    queue = rabbit.queue("stream", x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=10_000)
    rabbit.send(queue, [b"x"] * 3, ids="m")
    batches: list[SourceBatch] = []
    async with open_lane(spec(rabbit, queue)) as lane:
        await read(lane, 3, batches)
    position = batches[-1].position
    for n in range(40):
        rabbit.send(queue, [bytes(1000)] * 5, ids=f"n{n}-")
    with raises(codes.SOURCE_RECORDS_REMOVED, "the lane is at offset 2, but the first message left is"):
        async with open_lane(spec(rabbit, queue), position) as lane:
            await read(lane, 1)


@pytest.mark.sweep
@pytest.mark.guarantee("I10", "I15")
async def test_a_stream_that_was_recreated_stops_the_lane(rabbit: RabbitServer) -> None:
    queue = rabbit.queue("stream")
    rabbit.send(queue, numbers(0, 3), ids="m")
    batches: list[SourceBatch] = []
    async with open_lane(spec(rabbit, queue)) as lane:
        await read(lane, 3, batches)
    rabbit.remove(queue)
    rabbit.queue("stream", queue)
    rabbit.send(queue, numbers(10, 5), ids="m")
    with raises(codes.SOURCE_PAST_REPLACED, "at offset 2 is not the one that was read"):
        async with open_lane(spec(rabbit, queue), batches[-1].position) as lane:
            await read(lane, 1)


@pytest.mark.sweep
async def test_a_first_run_may_start_at_a_time(rabbit: RabbitServer) -> None:
    queue = rabbit.queue("stream")
    rabbit.send(queue, numbers(0, 3), ids="m")
    # The protocol has times in whole seconds.
    start_s = SystemClock().now_us() // 1_000_000 + 2
    async with open_lane(spec(rabbit, queue)) as lane:
        while SystemClock().now_us() < start_s * 1_000_000:
            await lane.read(10, 1 << 20, 0.1)
    rabbit.send(queue, numbers(3, 3), ids="n")
    start = datetime.fromtimestamp(start_s, UTC).isoformat()
    async with open_lane(spec(rabbit, queue, start=start)) as lane:
        assert await read(lane, 3) == numbers(3, 3)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
async def test_a_queue_of_the_other_kind_is_refused(rabbit: RabbitServer, kind: str) -> None:
    queue = rabbit.queue(kind)
    if kind != "stream":
        rabbit.send(queue, numbers(0, 3), ids="m")
        with raises(codes.TARGET_UNFIT, "is not a stream"):
            async with open_lane(spec(rabbit, queue)):
                pass
        rabbit.until_left(queue, 3)
        return
    with raises(codes.TARGET_UNFIT, "add `stream: true`"):
        async with open_lane(spec(rabbit, queue, stream=False)) as lane:
            rabbit.send(queue, numbers(0, 3), ids="m")
            await read(lane, 1)


@pytest.mark.sweep
async def test_a_stream_that_is_missing_is_said(rabbit: RabbitServer) -> None:
    with raises(codes.TARGET_UNFIT, "no queue 'no-such'"):
        async with open_lane(spec(rabbit, "no-such")):
            pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stream": True, "start": "latest"}, "is not a place in a stream"),
        ({"start": "2026-01-01T00:00:00Z"}, "has no effect without `stream`"),
    ],
)
def test_a_start_that_cannot_be_meant_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Source.model_validate({"rabbitmq": {"url": "amqp://127.0.0.1", "queue": "q", **settings}})
