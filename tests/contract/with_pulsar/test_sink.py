"""The `pulsar` sink on a real server: each record once as long as it deduplicates, and what it says otherwise."""

from __future__ import annotations

import asyncio
import json
import math
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.limits import RESULT_FRAME_RECORDS_MAX
from millstream.record import Position
from millstream.spec.models import FallbackSink, Sink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.pulsar.looking import deduplicates
from millstream_connectors.pulsar.settings import PulsarSink
from millstream_connectors.pulsar.sink.lane import TOO_LARGE
from millstream_connectors.pulsar.sink.messages import PROPERTY, java_hash
from millstream_runner.cli.main import main
from millstream_writer.sink import Guarantee
from tests.contract.sinks.file_target import sink_owner
from tests.recovery.killed_sinks import EXPECTED, kill_at
from tests.support.children import together
from tests.support.errors import raises
from tests.support.pulsar_server import EXACT, PulsarServer
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "pulsar.md"


def spec(server: PulsarServer, topic: str, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"pulsar": {**server.settings, "topic": topic, **settings}})


@pytest.mark.sweep
async def test_what_a_message_carries(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    frame = sink_frame(
        [b"\xff\0", b"", b"x"],
        1,
        keys=[["ü".encode()], [b"a", b"b"], []],
        headers=[{"h": "ö".encode(), "millstream-x": b"2"}, {}, {}],
    )
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as sink:
        assert not (await sink.write([frame], Position(1))).failures
    found = [(m.data(), m.partition_key(), m.properties(), m.event_timestamp()) for m in pulsar.messages(topic)]
    assert found == [(b"\xff\0", "ü", {"h": "ö"}, 1000), (b"", '["a", "b"]', {}, 2000), (b"x", "", {}, 3000)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("partitions", [0, 3])
async def test_what_is_written_again_is_there_once_and_in_order(pulsar: PulsarServer, partitions: int) -> None:
    topic = pulsar.topic(partitions, EXACT)
    frames = [
        sink_frame(
            [b"%d" % n for n in range(10 * sequence, 10 * sequence + 10)],
            sequence,
            keys=[[b"%d" % (n % 5)] for n in range(10)],
        )
        for sequence in range(1, 7)
    ]
    # Each owner begins at its mark, which is before what the ones before it have written.
    for epoch, (start, stop) in enumerate(((0, 3), (2, 5), (1, 6)), 1):
        async with open_sink(spec(pulsar, topic), sink_owner(epoch, start=Position(start))) as sink:
            for frame in frames[start:stop]:
                assert not (await sink.write([frame], Position(frame.sequence))).failures
    found = [int(value) for value in pulsar.values(topic)]
    assert sorted(found) == [*range(10, 70)]
    for key in range(5):
        assert [n for n in found if n % 5 == key] == [*range(10 + key, 70, 5)]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_the_largest_frame_takes_no_number_of_the_next_one(pulsar: PulsarServer) -> None:
    """Windows write the largest frames."""
    topic = pulsar.topic(namespace=EXACT)
    largest = RESULT_FRAME_RECORDS_MAX
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as sink:
        await sink.write([sink_frame([b"%d" % n for n in range(largest)], 1)], Position(1))
        await sink.write([sink_frame([b"%d" % largest], 2)], Position(2))
    assert pulsar.values(topic) == [b"%d" % n for n in range(largest + 1)]


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_newer_waits_and_repeats_nothing(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as older:
        await older.write([sink_frame([b"1"], 1)], Position(1))
        async with open_sink(spec(pulsar, topic, timeout="1s"), sink_owner(2)) as newer:
            with pytest.raises(RetryLaterError, match="ProducerBusy"):
                await newer.write([sink_frame([b"1"], 1)], Position(1))
            await older.write([sink_frame([b"2"], 2)], Position(2))
    async with open_sink(spec(pulsar, topic), sink_owner(2)) as newer:
        for sequence in (1, 2, 3):
            await newer.write([sink_frame([b"%d" % sequence], sequence)], Position(sequence))
    assert pulsar.values(topic) == [b"1", b"2", b"3"]


@pytest.mark.sweep
@pytest.mark.guarantee("I2")
@pytest.mark.parametrize("role", ["whole", "fallback"])
async def test_another_record_at_the_same_place_is_not_taken_for_a_repeated_one(
    pulsar: PulsarServer, role: str
) -> None:
    topic = pulsar.topic(namespace=EXACT)
    owner = replace(sink_owner(1), whole=role == "whole", fallback=role == "fallback")
    async with open_sink(spec(pulsar, topic), owner) as sink:
        await sink.write([sink_frame([b"1", b"2"], 1), sink_frame([b"3"], 2)], Position(2))
        # A chain cuts a repeated delivery differently; a fallback gets records later than the ones after them.
        await sink.write([sink_frame([b"4"], 1), sink_frame([b"5"], 1, first_index=1)], Position(2))
        assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    async with open_sink(spec(pulsar, topic), replace(owner, epoch=2)) as sink:
        await sink.write([sink_frame([b"6"], 1)], Position(1))
    assert pulsar.values(topic) == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I2")
async def test_messages_that_wait_for_a_server_are_not_overtaken(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    first, second = sink_frame([b"0"], 1), sink_frame([b"%d" % n for n in range(1, 1501)], 2)
    async with open_sink(spec(pulsar, topic, timeout="2s"), sink_owner(1)) as sink:
        await sink.write([first], Position(1))
        with pulsar.paused():
            writing = asyncio.create_task(sink.write([second], Position(2)))
            # It goes on after the first messages have waited for too long, and before those that follow them have.
            await asyncio.wait([writing], timeout=2.3)
        with suppress(RetryLaterError):
            await writing
        async with asyncio.timeout(30):
            while True:
                with suppress(RetryLaterError):
                    await sink.write([second], Position(2))
                    break
    assert pulsar.values(topic) == [b"%d" % n for n in range(1501)]


@pytest.mark.sweep
async def test_another_run_writes_again(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    for run in ("first", "second"):
        async with open_sink(spec(pulsar, topic), sink_owner(1, ledger_id=run)) as sink:
            await sink.write([sink_frame([b"1"], 1)], Position(1))
    assert pulsar.values(topic) == [b"1", b"1"]


@pytest.mark.guarantee("I1")
async def test_records_that_cannot_be_sent_fail_alone(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    frame = sink_frame([b"a", b"b", bytes(6 << 20), b"c"], 1, headers=[{}, {"h": b"\xff"}, {}, {}])
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as sink:
        for _ in range(2):
            (failures,) = (await sink.write([frame], Position(1))).failures
            assert [(one.index, one.reason, one.retryable) for one in failures] == [
                (1, PROPERTY, False),
                (2, TOO_LARGE, False),
            ]
    assert pulsar.values(topic) == [b"a", b"c"]


@pytest.mark.sweep
@pytest.mark.guarantee("I10")
async def test_brokers_that_do_not_deduplicate_are_noticed(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    frames = [sink_frame([b"1", b"2"], 1, headers=[{"h": b"\xff"}, {}]), sink_frame([b"3", b"4"], 2)]
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as sink:
        with raises(codes.TARGET_UNFIT, "do not deduplicate messages of"):
            await sink.write(frames, Position(2))
    # Only the record that showed it is there.
    assert pulsar.values(topic) == [b"2"]
    async with open_sink(spec(pulsar, topic, deduplication=False), sink_owner(2)) as sink:
        await sink.write(frames, Position(2))
    assert pulsar.values(topic) == [b"2", b"2", b"3", b"4"]


@pytest.mark.sweep
@pytest.mark.guarantee("I10")
async def test_brokers_that_no_longer_deduplicate_stop_the_lane(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    async with open_sink(spec(pulsar, topic, timeout="2s"), sink_owner(1)) as sink:
        await sink.write([sink_frame([b"1"], 1)], Position(1))
        pulsar.ask("DELETE", f"{topic.replace('://', '/')}?force=true")
        with pytest.raises(RetryLaterError):
            await sink.write([sink_frame([b"2"], 2)], Position(2))
        pulsar.ask("PUT", topic.replace("://", "/"))
        with raises(codes.TARGET_POSITION_LOST, "do not know its last message"):
            await sink.write([sink_frame([b"2"], 2)], Position(2))
    assert pulsar.values(topic) == []


@pytest.mark.guarantee("I10")
async def test_a_lane_that_the_brokers_have_forgotten_stops(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    owner = sink_owner(1, start=Position(5))
    with raises(codes.TARGET_POSITION_LOST, "up to sequence 5, but the brokers do not know its last message"):
        async with open_sink(spec(pulsar, topic), owner):
            pass
    # As the message says.
    async with open_sink(spec(pulsar, topic, deduplication=False), owner) as sink:
        await sink.write([sink_frame([b"6"], 6)], Position(6))
    async with open_sink(spec(pulsar, topic), replace(owner, epoch=2)) as sink:
        await sink.write([sink_frame([b"6"], 6)], Position(6))
    assert pulsar.values(topic) == [b"6"]


@pytest.mark.sweep
async def test_a_record_that_was_overtaken_is_written_as_the_message_says(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=EXACT)
    frames = [sink_frame([b"%d" % n], n) for n in range(1, 6)]
    careless = spec(pulsar, topic, deduplication=False)
    async with open_sink(spec(pulsar, topic), sink_owner(1)) as sink:
        await sink.write([frames[0], frames[2]], Position(3))
    owner = sink_owner(2, start=Position(1))
    async with open_sink(careless, owner) as sink:
        await sink.write(frames[1:3], Position(3))
    assert pulsar.values(topic) == [b"1", b"3"]
    await pulsar.deduplicate(topic, False)
    async with open_sink(careless, replace(owner, epoch=3)) as sink:
        await sink.write(frames[1:3], Position(3))
        await pulsar.deduplicate(topic, True)
        await sink.write([frames[3]], Position(4))
    async with open_sink(spec(pulsar, topic), replace(owner, epoch=4)) as sink:
        await sink.write(frames[3:], Position(5))
    assert pulsar.values(topic) == [b"1", b"3", b"2", b"3", b"4", b"5"]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_sink_is_killed_at_every_durable_step(pulsar: PulsarServer) -> None:
    points = [f"pulsar_sink.send:{side}#{time}" for time in (1, 5) for side in ("before", "after")]
    topics = {point: pulsar.topic(namespace=EXACT) for point in points}
    await together(
        *(kill_at({"pulsar": {**pulsar.settings, "topic": topic}}, point) for point, topic in topics.items())
    )
    for point, topic in topics.items():
        assert [json.loads(value)["n"] for value in pulsar.values(topic)] == EXPECTED, point


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"topic": "no-such"}, codes.TARGET_UNFIT, "TopicNotFound"),
        ({"auth": {"token": {"env": "WRONG_TOKEN"}}}, codes.TARGET_REFUSES, "refuses who connects"),
    ],
)
async def test_what_does_not_fit_is_said(
    pulsar: PulsarServer, change: dict[str, Any], code: Code, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_TOKEN", "wr0ng")
    with raises(code, said) as stopped:
        async with open_sink(spec(pulsar, **{"topic": pulsar.topic(), "timeout": "3s", **change}), sink_owner(1)):
            pass
    assert "wr0ng" not in str(stopped.value)


@pytest.mark.sweep
async def test_validate_online_looks_whether_messages_are_deduplicated(
    pulsar: PulsarServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def online(topic: str, **more: object) -> int:
        settings = {**pulsar.settings, "adminUrl": pulsar.admin_url, "topic": topic, **more}
        (tmp_path / "p.yaml").write_text(
            "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
            "  - name: in\n    source: {generator: {}}\n"
            f"  - name: out\n    sink: {{pulsar: {json.dumps(settings)}}}\n  edges:\n  - {{from: in, to: out}}\n"
        )
        return main(["validate", "--online", "-o", "json", str(tmp_path / "p.yaml")])

    plain = pulsar.topic()
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, plain) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[1].sink.pulsar.deduplication")
    assert await asyncio.to_thread(online, plain, deduplication=False) == 0
    assert await asyncio.to_thread(online, pulsar.topic(2, EXACT)) == 0
    assert await asyncio.to_thread(online, pulsar.topic(namespace=EXACT, ending="%3F?ü#1")) == 0
    capsys.readouterr()
    assert await asyncio.to_thread(online, "no-such") == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == "spec.vertices[1].sink.pulsar.topic"


@pytest.mark.sweep
async def test_a_web_service_that_redirects_elsewhere_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    async def refuse(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(status=401)

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(other.make_url(request.path_qs))

    monkeypatch.setenv("TOKEN", "t0ken")
    asked, other = (TestServer(web.Application()) for _ in range(2))
    asked.app.router.add_get("/{path:.*}", redirect)
    other.app.router.add_get("/{path:.*}", refuse)
    async with asked, other:
        given = {"topic": "t", "adminUrl": str(asked.make_url("")), "auth": {"token": {"env": "TOKEN"}}}
        settings = PulsarSink.model_validate({"serverAddr": "pulsar://h", **given})
        with raises(
            codes.TARGET_REFUSES, f"it redirected to {other.make_url('').origin()}, to which no credentials are sent"
        ):
            await deduplicates(settings, Path(), math.inf)
    assert sent == [None]


@pytest.mark.sweep
async def test_the_page_shows_what_runs(pulsar: PulsarServer, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    monkeypatch.setenv("PULSAR_TOKEN", pulsar.token("everyone"))
    (sink,) = [vertex["sink"] for (vertex,) in blocks if "sink" in vertex]
    Sink.model_validate(sink)
    topic = pulsar.topic(namespace=EXACT)
    settings = FallbackSink.model_validate({"pulsar": {**sink["pulsar"], **pulsar.settings, "topic": topic}})
    async with open_sink(settings, sink_owner(1)) as lane:
        await lane.write([sink_frame([b"1"], 1)], Position(1))
    assert pulsar.values(topic) == [b"1"]


def test_exactly_once_may_be_demanded_only_with_deduplication() -> None:
    settings = {"serverAddr": "pulsar://h", "topic": "t"}
    Sink.model_validate({"pulsar": settings, "guarantee": "exactlyOnce"})
    with pytest.raises(ValueError, match="is not possible here"):
        Sink.model_validate({"pulsar": {**settings, "deduplication": False}, "guarantee": "exactlyOnce"})


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("hello", 99162322), ("ü😀", 2_015_071)])
def test_the_hash_of_a_key_is_that_of_java(text: str, expected: int) -> None:
    assert java_hash(text) == expected
