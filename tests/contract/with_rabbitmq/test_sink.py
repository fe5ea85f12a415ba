"""The `rabbitmq` sink on a real server: what a message carries, and what becomes of those that no queue takes."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from aiormq.abc import AbstractChannel

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.rabbitmq.sink import UNROUTED
from millstream_connectors.shared.carried import HEADER
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sources.lanes import open_lane, read_until
from tests.support.errors import raises
from tests.support.rabbit_server import PASSWORD, USER, RabbitServer
from tests.unit.writer.sink_frames import sink_frame


def spec(server: RabbitServer, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"rabbitmq": {**server.settings, **settings}})


async def test_what_a_message_carries(rabbit: RabbitServer) -> None:
    queue = rabbit.queue()
    frame = sink_frame(
        [b"\xff\0", b""],
        1,
        keys=[[b"a", "ü".encode()], []],
        headers=[{"h": b"1", "raw": b"\xfe", "millstream-x": b"2"}, {}],
    )
    async with open_sink(spec(rabbit, routingKey=queue), sink_owner(1)) as sink:
        assert not (await sink.write([frame], Position(1))).failures
        first, second = rabbit.taken(queue)
        # Once more, as after a failure: the ids are the same.
        await sink.write([frame], Position(1))
    again = rabbit.taken(queue)
    found = first.header.properties
    assert (first.body, found.delivery_mode, found.headers["h"], bytes(found.headers["raw"])) == (
        b"\xff\0",
        2,
        "1",
        b"\xfe",
    )
    assert json.loads(found.headers["Millstream-Keys"]) == ["a", "ü"]
    assert found.headers["Millstream-Event-Time"] == str(frame.frame.event_times_us()[0] // 1000)
    assert "millstream-x" not in found.headers
    assert second.body == b""
    ids = [message.header.properties.message_id for message in (first, second)]
    assert [message.header.properties.message_id for message in again] == ids
    assert len(set(ids)) == 2


@pytest.mark.guarantee("I1")
async def test_what_is_sent_again_is_left_out_by_the_source(rabbit: RabbitServer) -> None:
    queue = rabbit.queue()
    frame = sink_frame([b"a", b"b"], 1)
    async with open_sink(spec(rabbit, routingKey=queue), sink_owner(1)) as sink:
        for _ in range(2):
            await sink.write([frame], Position(1))
    async with open_lane({"rabbitmq": {**rabbit.settings, "queue": queue}}) as lane:
        records = await read_until(lane, lambda records: len(records) == 4)
    assert {record.id: record.value for record in records} == {records[0].id: b"a", records[1].id: b"b"}


async def test_records_that_cannot_be_sent_fail_alone(rabbit: RabbitServer) -> None:
    queue = rabbit.queue()
    frame = sink_frame([b"a", b"b", b"c"], 1, headers=[{}, {"n" * 300: b"x"}, {}])
    async with open_sink(spec(rabbit, routingKey=queue), sink_owner(1)) as sink:
        ((failure,),) = (await sink.write([frame], Position(1))).failures
    assert (failure.index, failure.reason, failure.retryable) == (1, HEADER, False)
    assert [message.body for message in rabbit.taken(queue)] == [b"a", b"c"]


async def test_a_message_that_no_queue_takes_is_refused(rabbit: RabbitServer) -> None:
    async with open_sink(spec(rabbit, exchange="amq.direct", routingKey=f"{uuid4()}"), sink_owner(1)) as sink:
        (failures,) = (await sink.write([sink_frame([b"a", b"b"], 1)], Position(1))).failures
    assert [(failure.index, failure.reason, failure.retryable) for failure in failures] == [
        (0, UNROUTED, False),
        (1, UNROUTED, False),
    ]


async def test_a_queue_that_is_full_is_waited_for(rabbit: RabbitServer) -> None:
    queue = f"full-{uuid4()}"

    async def declare(channel: AbstractChannel) -> None:
        await channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})

    rabbit.do(declare)
    async with open_sink(spec(rabbit, routingKey=queue), sink_owner(1)) as sink:
        await sink.write([sink_frame([b"a"], 1)], Position(1))
        with pytest.raises(RetryLaterError, match="queue is full"):
            await sink.write([sink_frame([b"b"], 2)], Position(2))
        rabbit.taken(queue)
        await sink.write([sink_frame([b"b"], 2)], Position(2))
    assert [message.body for message in rabbit.taken(queue)] == [b"b"]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"routingKey": "no-such"}, codes.TARGET_UNFIT, "no queue 'no-such'"),
        ({"routingKey": "r", "exchange": "no-such"}, codes.TARGET_UNFIT, "no exchange 'no-such'"),
        ({"routingKey": "r", "user": USER, "password": "wrong"}, codes.TARGET_REFUSES, f"refuses user {USER}"),
        ({"routingKey": "r", "user": USER, "password": PASSWORD}, codes.TARGET_REFUSES, f"refuses user {USER}"),
    ],
)
async def test_what_does_not_fit_is_said(rabbit: RabbitServer, change: dict[str, str], code: Code, said: str) -> None:
    with raises(code, said) as stopped:
        async with open_sink(spec(rabbit, **change), sink_owner(1)):
            pass
    assert "wrong" not in str(stopped.value)
    assert PASSWORD not in str(stopped.value)
