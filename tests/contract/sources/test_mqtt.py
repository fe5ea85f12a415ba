"""The `mqtt` source on a real broker: what it takes, when it acknowledges, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.spec.models import FallbackSink, Source
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch, SourceLane
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.mqtt_broker import PASSWORD, USER, MqttServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "mqtt.md"


def spec(server: MqttServer, topic: str, **settings: Any) -> dict[str, Any]:
    return {"mqtt": {**server.settings, "topic": topic, "session": f"s-{topic}", **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read_all(lane: SourceLane, count: int, *, commit: bool = True) -> list[SourceBatch]:
    batches: list[SourceBatch] = []
    while len(records_of(batches)) < count:
        found: list[SourceBatch] = []
        await read_until(lane, bool, found)
        batches += found
        if commit:
            await lane.committed(batches[-1].position)
    return batches


@pytest.mark.guarantee("I1")
async def test_messages_come_in_order_and_once_when_they_are_committed(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic)) as lane:
        mqtt.send(topic, numbers(0, 250), ids="m")
        batches = await read_all(lane, 250)
    records = records_of(batches)
    assert values(records) == numbers(0, 250)
    assert [record.id for record in records] == [f"m{n}" for n in range(250)]
    # What comes while nothing is connected is kept by the session.
    mqtt.send(topic, numbers(250, 20), ids="n")
    async with open_lane(spec(mqtt, topic), batches[-1].position) as lane:
        assert values(records_of(await read_all(lane, 20))) == numbers(250, 20)


@pytest.mark.guarantee("I1")
async def test_what_was_committed_and_not_acknowledged_is_known_by_its_id(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    async with open_lane(spec(mqtt, topic)) as lane:
        mqtt.send(topic, numbers(0, 20), ids="m")
        # Committed, and the process dies before it acknowledges.
        batches = await read_all(lane, 20, commit=False)
    assert sum(len(seen.admit(batch.frame).digests) for batch in batches if batch.frame is not None) > 0
    async with open_lane(spec(mqtt, topic), batches[-1].position) as lane:
        again = await read_all(lane, 20)
    assert all(seen.admit(batch.frame).frame is None for batch in again if batch.frame is not None)


@pytest.mark.sweep
async def test_messages_without_an_id_get_ones_that_are_made_up(
    mqtt: MqttServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = mqtt.topic()
    for again in (False, True):
        async with open_lane(spec(mqtt, topic)) as lane:
            if not again:
                mqtt.send(topic, numbers(0, 3))
            batches = await read_all(lane, 3, commit=again)
        assert b"".join(batch.made_up for batch in batches) == b"\1\1\1"
        assert ("redelivers messages that have no id" in caplog.text) == again


@pytest.mark.sweep
async def test_what_a_message_carries(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, f"{topic}/+", idProperty="order")) as lane:
        mqtt.send(f"{topic}/a", [b"\xff"], order="7", colour="é")
        mqtt.send(f"{topic}/b", [b""], qos=0)
        first, second = records_of(await read_all(lane, 2))
    assert (first.value, first.id, dict(first.headers)) == (
        b"\xff",
        "7",
        {"colour": "é".encode(), "MQTT-Topic": f"{topic}/a".encode()},
    )
    assert second.value == b""


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_no_more_is_held_than_was_said(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic, prefetch=10)) as lane:
        mqtt.send(topic, numbers(0, 30), ids="m")
        batches = await read_all(lane, 10, commit=False)
        batches += [await lane.read(100, 1 << 20, 0.2) for _ in range(3)]
        assert len(records_of(batches)) == 10
        await lane.committed(batches[-1].position)
        assert values(records_of(await read_all(lane, 20))) == numbers(10, 20)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I9")
async def test_a_broker_that_is_started_again_is_waited_for(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    found: list[bytes] = []

    async def read(lane: SourceLane) -> None:
        batch = await lane.read(30, 1 << 20, 0.1)
        new = seen.admit(batch.frame).frame if batch.frame is not None else None
        found.extend(new.values() if new is not None else ())

    async with asyncio.timeout(60), open_lane(spec(mqtt, topic, timeout="2s")) as lane:
        mqtt.send(topic, numbers(0, 50), ids="m")
        while len(found) < 20:
            await read(lane)
        mqtt.stop()
        for _ in range(3):
            await read(lane)
        mqtt.start()
        mqtt.send(topic, numbers(50, 20), ids="n")
        while len(found) < 70:
            await read(lane)
    assert sorted(found) == sorted(numbers(0, 70))


async def test_a_session_that_the_broker_has_lost_is_reported(
    mqtt: MqttServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic)) as lane:
        mqtt.send(topic, numbers(0, 3), ids="m")
        position = (await read_all(lane, 3))[-1].position
    async with open_lane(spec(mqtt, topic), position):
        assert "no longer has the session" not in caplog.text
    async with open_lane(spec(mqtt, topic, session=f"other-{topic}"), position):
        assert f"no longer has the session other-{topic}" in caplog.text


@pytest.mark.sweep
async def test_a_drained_lane_gives_back_what_it_has_not_given(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic)) as lane:
        mqtt.send(topic, numbers(0, 50), ids="m")
        batch = await lane.read(10, 1 << 20, 5.0)
        await lane.drain()
        assert (await lane.read(10, 1 << 20, 0.1)).frame is None
        # What it has given is still committed.
        await lane.committed(batch.position)
    done = len(records_of([batch]))
    async with open_lane(spec(mqtt, topic), batch.position) as lane:
        assert values(records_of(await read_all(lane, 50 - done))) == numbers(done, 50 - done)


@pytest.mark.sweep
async def test_large_messages_make_the_source_ask_for_fewer(mqtt: MqttServer, caplog: pytest.LogCaptureFixture) -> None:
    """How many Mosquitto then sends is its own affair: 2.0.11 keeps to the smaller number only at times."""
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic)):
        # The session is there.
        pass
    mqtt.send(topic, [b"x" * 1_000_000] * 60, ids="m")
    async with asyncio.timeout(60), open_lane(spec(mqtt, topic)) as lane:
        while "takes 33 at a time from now on" not in caplog.text:
            await lane.read(100, 1 << 26, 0.1)
        await asyncio.to_thread(mqtt.send, topic, [b"x" * 1_000_000] * 40, ids="n")
        batches: list[SourceBatch] = []
        # Mosquitto sends everything again that was in flight, whatever the source asks for.
        while len({record.id for record in records_of(batches)}) < 100:
            batches.append(await lane.read(100, 1 << 26, 0.1))
            await lane.committed(batches[-1].position)


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_messages_that_the_broker_does_not_count_are_limited(
    mqtt: MqttServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, topic, prefetch=10)) as lane:
        mqtt.send(topic, numbers(0, 200), qos=0)
        mqtt.send(topic, [b"last"])
        batches = [await lane.read(1, 1 << 20, 0.1) for _ in range(20)]
        while b"last" not in values(records_of(batches)):
            await lane.committed(batches[-1].position)
            batches.append(await lane.read(100, 1 << 20, 0.1))
    assert len(records_of(batches)) < 200
    assert "messages of QoS 0 arrive faster" in caplog.text


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I9")
async def test_a_broker_that_stands_still_is_waited_for(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with asyncio.timeout(60), open_lane(spec(mqtt, topic, timeout="1s")) as lane:
        mqtt.send(topic, numbers(0, 5), ids="m")
        batches = await read_all(lane, 5)
        mqtt.pause()
        try:
            assert (await lane.read(10, 1 << 20, 0.1)).frame is None
        finally:
            mqtt.go_on()
        mqtt.send(topic, numbers(5, 5), ids="n")
        batches += await read_all(lane, 5)
    assert values(records_of(batches)) == numbers(0, 10)


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_tls_is_spoken_where_the_certificate_counts(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    url, tls = f"mqtts://localhost:{mqtt.tls_port}", {"ca": {"file": str(mqtt.certificate)}}
    async with open_lane(spec(mqtt, topic, url=url, tls=tls)) as lane:
        mqtt.send(topic, numbers(0, 3), ids="m")
        assert values(records_of(await read_all(lane, 3))) == numbers(0, 3)
    with raises(codes.TARGET_REFUSES, "no encrypted connection"):
        async with open_lane(spec(mqtt, topic, url=url)):
            pass


@pytest.mark.sweep
async def test_a_member_of_a_group_reads_its_share(mqtt: MqttServer) -> None:
    topic = mqtt.topic()
    async with open_lane(spec(mqtt, f"$share/g/{topic}")) as lane:
        mqtt.send(topic, numbers(0, 5), ids="m")
        assert values(records_of(await read_all(lane, 5))) == numbers(0, 5)


def online(path: Path, settings: dict[str, Any], sink: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{mqtt: {json.dumps(settings)}}}\n"
        f"  - name: out\n    sink: {{mqtt: {json.dumps(sink)}}}\n  edges:\n  - {{from: in, to: out}}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    mqtt: MqttServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = mqtt.topic()
    source, sink = {**mqtt.settings, "topic": topic, "session": "s"}, {**mqtt.settings, "topic": topic}
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, source, sink) == 0, capsys.readouterr()
    capsys.readouterr()
    wrong = {"password": "wrong"}
    assert await asyncio.to_thread(online, tmp_path, source | wrong, sink | wrong) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["code"] for problem in problems] == ["MS-2514", "MS-2514"]


@pytest.mark.parametrize("topic", ["a/#/b", "a/b+", "$share/a+/b", "$share/g", "a/b#"])
def test_what_is_not_a_filter_is_said(topic: str) -> None:
    with pytest.raises(ValueError, match="not a topic filter"):
        Source.model_validate({"mqtt": {"url": "mqtt://127.0.0.1", "topic": topic, "session": "s"}})


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"password": "wrong"}, codes.TARGET_REFUSES, f"refuses user {USER}"),
        ({"url": "mqtt://127.0.0.1:1"}, codes.TARGET_AWAY, "cannot be used now"),
    ],
)
async def test_what_does_not_fit_is_said(mqtt: MqttServer, change: dict[str, str], code: Code, said: str) -> None:
    with raises(code, said) as stopped:
        async with open_lane({"mqtt": {**spec(mqtt, f"t{uuid4()}")["mqtt"], **change}}):
            pass
    assert "wrong" not in str(stopped.value)
    assert PASSWORD not in str(stopped.value)


@pytest.mark.sweep
async def test_the_page_shows_what_runs(mqtt: MqttServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTT_PASSWORD", PASSWORD)
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    (source,) = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    (sink,) = [vertex["sink"] for (vertex,) in blocks if "sink" in vertex]
    Source.model_validate(source)
    FallbackSink.model_validate(sink)
    topic = mqtt.topic()
    here = {**mqtt.settings, "topic": topic, "session": f"page-{topic}"}
    async with open_lane({**source, "mqtt": {**source["mqtt"], **here}}) as lane:
        mqtt.send(topic, numbers(0, 3), ids="m")
        assert len(await read_until(lane, lambda records: len(records) == 3)) == 3
