"""The `nats` sink on a real server: what a message carries, and what becomes of those that the server does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.nats.client import Msg
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.nats.messages import HEADER, TOO_LARGE
from millstream_connectors.opening_sinks import open_sink
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.validating import validate_sink
from tests.support.errors import raises
from tests.support.nats_outside import OutsideNats, open_outside_nats
from tests.unit.writer.sink_frames import sink_frame


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    async with open_outside_nats(tmp_path / "nats") as nats:
        yield nats


def spec(nats: OutsideNats, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"nats": {**nats.settings, "subject": "alerts", **settings}})


async def subscribed(nats: OutsideNats) -> asyncio.Queue[Msg]:
    arrived: asyncio.Queue[Msg] = asyncio.Queue()
    await nats.connection.client.subscribe("alerts", cb=arrived.put)
    await nats.connection.client.flush()
    return arrived


async def test_what_a_message_carries_and_what_fails_alone(nats: OutsideNats) -> None:
    arrived = await subscribed(nats)
    frame = sink_frame(
        [b"a", b"x" * (2 << 20), b"b", b"c"],
        1,
        keys=[[b"k"], [], [], []],
        headers=[{"h": b"1"}, {}, {"h": b"two\nlines"}, {}],
    )
    async with open_sink(spec(nats), sink_owner(1)) as sink:
        failures = (await sink.write([frame], Position(1))).failures
    messages = [await asyncio.wait_for(arrived.get(), 20) for _ in range(4 - len(failures[0]))]
    assert [(failure.index, failure.reason) for failure in failures[0] if failure.reason == HEADER] == [(2, HEADER)]
    assert all(failure.reason in (HEADER, TOO_LARGE) for failure in failures[0])
    assert [message.data for message in messages if len(message.data) == 1] == [b"a", b"c"]
    assert messages[0].headers is not None
    assert (messages[0].headers["h"], messages[0].headers["Millstream-Keys"]) == ("1", '["k"]')


async def test_a_server_that_is_killed_is_waited_for(nats: OutsideNats) -> None:
    frame = sink_frame([b"a"], 1)
    async with open_sink(spec(nats, timeout="1s"), sink_owner(1)) as sink:
        await sink.write([frame], Position(1))
        await nats.server.kill()
        with pytest.raises(RetryLaterError):
            await sink.write([frame], Position(1))
        await nats.server.start()
        await nats.connection.connected()
        arrived = await subscribed(nats)
        async with asyncio.timeout(60):
            while True:
                try:
                    await sink.write([frame], Position(1))
                    break
                except RetryLaterError:
                    pass
        assert (await asyncio.wait_for(arrived.get(), 20)).data == b"a"


async def test_what_does_not_fit_is_said(nats: OutsideNats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "wr0ng")
    auth = {"basic": {"user": "stranger", "password": {"env": "WRONG"}}}
    with raises(codes.TARGET_REFUSES, match="stranger") as refused:
        async with open_sink(spec(nats, auth=auth), sink_owner(1)):
            pass
    assert "wr0ng" not in str(refused.value)
    async with open_sink(spec(nats, url="nats://127.0.0.1:1", timeout="200ms"), sink_owner(1)) as sink:
        with pytest.raises(RetryLaterError, match=r"127\.0\.0\.1:1"):
            await sink.write([sink_frame([b"a"], 1)], Position(1))


async def test_validate_online(nats: OutsideNats, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**nats.settings, "subject": "alerts"}
    assert await asyncio.to_thread(validate_sink, "nats", settings, tmp_path) == 0
    assert "more than once after a failure" in capsys.readouterr().out
    settings["auth"] = {"token": {"file": str(nats.password)}}
    assert await asyncio.to_thread(validate_sink, "nats", settings, tmp_path) == 2
    assert "MS-2514" in capsys.readouterr().err
