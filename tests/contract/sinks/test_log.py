"""The log sink prints a line for each record that says all there is to say."""

from __future__ import annotations

import io
import json
import os
from array import array

import pytest

from millstream import codes
from millstream.dead_letter import time_text
from millstream.frame import build_frame
from millstream.record import Position
from millstream_connectors.blackhole.sink import open_blackhole_sink
from millstream_connectors.log.sink import open_log_sink
from millstream_writer.sink import Guarantee, SinkFrame
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame


async def test_a_line_has_time_keys_headers_and_value() -> None:
    frame = build_frame(
        ["grüße\n".encode(), b"\xff\x00"],
        array("q", [0, 1_700_000_000_123_456]),
        ingest_time_us=1,
        keys=[[b"a", b"b"], []],
        headers=[{"h": b"x", "raw": b"\xff"}, {}],
    )
    stream = io.BytesIO()
    async with open_log_sink(stream) as lane:
        assert (lane.guarantee, lane.durable) == (Guarantee.AT_LEAST_ONCE, None)
        assert not (await lane.write([SinkFrame(frame, 1, 0, "p/")], Position(1))).failures
    lines = stream.getvalue().decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "id": "p/0",
            "eventTime": "1970-01-01T00:00:00.000000Z",
            "keys": ["a", "b"],
            "headers": {"h": "x"},
            "headersBase64": {"raw": "/w=="},
            "value": "grüße\n",
        },
        {"id": "p/1", "eventTime": "2023-11-14T22:13:20.123456Z", "valueBase64": "/wA="},
    ]


async def test_it_prints_to_standard_output(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    async with open_log_sink() as lane:
        await lane.write([sink_frame([b"a", b"b"], 1), sink_frame([b"c"], 2)], Position(2))
    assert [json.loads(line)["value"] for line in capsysbinary.readouterr().out.splitlines()] == ["a", "b", "c"]


async def test_an_output_that_is_gone_is_an_error_of_the_environment() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as output:
        async with open_log_sink(output) as lane:
            with raises(codes.OUTPUT_CLOSED, match="Broken pipe"):
                await lane.write([sink_frame([b"a"], 1)], Position(1))


def test_times_outside_the_calendar_are_numbers() -> None:
    assert time_text(2**63 - 1) == str(2**63 - 1)
    assert time_text(-(2**63)) == str(-(2**63))
    assert time_text(-1) == "1969-12-31T23:59:59.999999Z"


async def test_a_blackhole_takes_everything() -> None:
    async with open_blackhole_sink() as lane:
        assert not (await lane.write([sink_frame([b"a"], 1)], Position(1))).failures
        await lane.flush()
        await lane.tick()
        assert lane.durable is None
