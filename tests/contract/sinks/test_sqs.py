"""The `sqs` sink on an emulated service: what a message carries, and which records SQS cannot have."""

from __future__ import annotations

import pytest

from millstream import codes
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.shared.carried import HEADER
from millstream_connectors.sqs.sink.messages import BYTES_MAX, NOT_TEXT, TOO_LARGE
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises
from tests.support.sqs_server import SqsServer
from tests.unit.writer.sink_frames import sink_frame


async def test_what_a_message_carries_and_a_fifo_queue_leaves_out_what_comes_again(sqs: SqsServer) -> None:
    queue = sqs.queue(fifo=True)
    frame = sink_frame(
        ["é".encode(), b"b"], 1, keys=[[b"a", "ü".encode()], []], headers=[{"h": b"1", "raw": b"\xfe"}, {}]
    )
    async with open_sink(FallbackSink.model_validate({"sqs": sqs.settings(queue)}), sink_owner(1)) as sink:
        for _ in range(2):
            assert not (await sink.write([frame], Position(1))).failures
    first, second = sqs.taken(queue)
    assert (first["Body"], second["Body"]) == ("é", "b")
    attributes = first["MessageAttributes"]
    assert attributes["h"]["StringValue"] == "1"
    assert attributes["raw"]["BinaryValue"] == b"\xfe"
    assert attributes["Millstream-Keys"]["StringValue"] == '["a", "\\u00fc"]'
    assert attributes["Millstream-Event-Time"]["StringValue"] == str(frame.frame.event_times_us()[0] // 1000)
    assert attributes["Millstream-Id"]["StringValue"] == first["Attributes"]["MessageDeduplicationId"]
    assert first["Attributes"]["MessageGroupId"] != second["Attributes"]["MessageGroupId"]


async def test_records_that_sqs_cannot_have_fail_alone(sqs: SqsServer) -> None:
    queue = sqs.queue()
    values = [b"", b"\xff", b"\x01", b"x" * BYTES_MAX, b"h", b"e", b"n", b"many", *([b"y" * 100_000] * 3)]
    headers: list[dict[str, bytes]] = [{} for _ in values]
    headers[4], headers[5], headers[6] = {"a b": b"1"}, {"a": b""}, {"ü": b"1"}
    headers[7] = {f"h{n}": b"1" for n in range(9)}
    async with open_sink(FallbackSink.model_validate({"sqs": sqs.settings(queue)}), sink_owner(1)) as sink:
        (failures,) = (await sink.write([sink_frame(values, 1, headers=headers)], Position(1))).failures
    reasons = [NOT_TEXT, NOT_TEXT, NOT_TEXT, TOO_LARGE, HEADER, HEADER, HEADER, HEADER]
    assert [(failure.index, failure.reason) for failure in failures] == [*enumerate(reasons)]
    assert not any(failure.retryable for failure in failures)
    assert [len(message["Body"]) for message in sqs.taken(queue)] == [100_000] * 3


@pytest.mark.parametrize("absent", [True, False])
async def test_what_does_not_fit_is_said(sqs: SqsServer, absent: bool) -> None:
    queue = f"{sqs.url}/123456789012/no-such" if absent else sqs.queue()
    settings = sqs.settings(queue) if absent else {**sqs.settings(queue), "secretKey": "wr0ng"}
    code, said = (codes.TARGET_UNFIT, "there is no queue") if absent else (codes.TARGET_REFUSES, "refuses the request")
    with raises(code, said) as stopped:
        async with open_sink(FallbackSink.model_validate({"sqs": settings}), sink_owner(1)):
            pass
    assert "wr0ng" not in str(stopped.value)
