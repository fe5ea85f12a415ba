"""The `pulsar` source on a real server: every message once from any position, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from pulsar import exceptions as pulsar_exceptions
from pydantic import ValidationError
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.errors import RetryLaterError
from millstream.spec.models import Source
from millstream_connectors.pulsar.client import open_link
from millstream_connectors.pulsar.settings import PulsarCluster
from millstream_connectors.pulsar.source.lane import PulsarSourceLane
from millstream_connectors.pulsar.source.messages import MessagePlace
from millstream_reader.source import SourceBatch, SourceLane, is_held_up
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import WAIT_S, open_lane, read_to_end, read_until, records_of, values
from tests.support.errors import raises
from tests.support.pulsar_server import BRIEF, PASSWORD, USER, PulsarServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "pulsar.md"


def spec(server: PulsarServer, topic: str, **settings: Any) -> dict[str, Any]:
    return {"pulsar": {**server.settings, "topic": topic, "subscriptionName": "shop", **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def read(lane: SourceLane, count: int, batches: list[SourceBatch] | None = None) -> list[bytes]:
    return values(await read_until(lane, lambda records: len(records) >= count, batches))


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("batched", [False, True])
async def test_from_any_position_each_message_comes_once_and_in_order(pulsar: PulsarServer, batched: bool) -> None:
    topic = pulsar.topic()
    if batched:
        for first in range(0, 60, 7):
            pulsar.send_batch(topic, numbers(first, min(7, 60 - first)))
    else:
        # More than one ledger.
        pulsar.send(topic, numbers(0, 60))
    ending = spec(pulsar, topic, stopAtEnd=True)
    async with open_lane(ending) as lane:
        assert lane.replayable
        records, invalid, batches = await read_to_end(lane, records_max=11)
    assert (values(records), invalid) == (numbers(0, 60), [])
    # What comes later is not part of it.
    pulsar.send(topic, numbers(60, 5))
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(ending, batch.position) as lane:
            rest, _, _ = await read_to_end(lane)
        assert values(rest) == numbers(done, 60 - done)
    async with open_lane(spec(pulsar, topic), batches[-1].position) as lane:
        assert await read(lane, 5) == numbers(60, 5)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_lanes_share_partitions_in_order(pulsar: PulsarServer) -> None:
    topics = [pulsar.topic(3), pulsar.topic()]
    for index, topic in enumerate(topics):
        pulsar.send(topic, numbers(100 * index, 30))
    found: list[bytes] = []
    for partition in range(2):
        settings = spec(pulsar, ", ".join([*topics, topics[0]]), stopAtEnd=True)
        async with open_lane(settings, partition=partition, partitions=2) as lane:
            records, _, _ = await read_to_end(lane, records_max=7)
        found += values(records)
    assert sorted(found) == sorted([*numbers(0, 30), *numbers(100, 30)])


@pytest.mark.sweep
async def test_what_a_record_has(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, [b"\xff\0"], properties={"a": "ü"}, partition_key="k", event_timestamp=1_700_000_000_123)
    before_us = SystemClock().now_us()
    # A producer may give any number.
    pulsar.send(topic, [b"far"], event_timestamp=2**63)
    pulsar.send(topic, [b""])
    async with open_lane(spec(pulsar, topic, stopAtEnd=True)) as lane:
        records, (invalid,), _ = await read_to_end(lane)
    assert (invalid.value, str(2**63) in invalid.reason) == (b"far", True)
    assert invalid.reason.startswith(f"{invalid.place}: event time: ")
    assert [(record.value, record.keys, dict(record.headers)) for record in records] == [
        (b"\xff\0", ("k",), {"a": "ü".encode()}),
        (b"", (), {}),
    ]
    assert records[0].event_time_us == 1_700_000_000_123_000
    assert before_us - 1000 <= records[1].event_time_us <= SystemClock().now_us()


@pytest.mark.sweep
async def test_where_a_first_run_begins(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 30))
    since = datetime.fromtimestamp(SystemClock().now_us() / 1e6, UTC).isoformat()
    async with open_lane(spec(pulsar, topic, start="latest")) as latest, open_lane(spec(pulsar, topic)) as earliest:
        pulsar.send(topic, numbers(30, 5))
        assert await read(latest, 5) == numbers(30, 5)
        assert await read(earliest, 35) == numbers(0, 35)
    async with open_lane(spec(pulsar, topic, start=since)) as lane:
        assert await read(lane, 5) == numbers(30, 5)
    # At the end of a topic that has nothing.
    topic = pulsar.topic()
    async with open_lane(spec(pulsar, topic, start="latest")) as lane:
        position = (await lane.read(10, 1 << 20, 0.01)).position
    pulsar.send(topic, numbers(0, 3))
    async with open_lane(spec(pulsar, topic, start="latest"), position) as lane:
        assert await read(lane, 3) == numbers(0, 3)
    async with open_lane(spec(pulsar, pulsar.topic(), stopAtEnd=True)) as lane:
        assert await read_to_end(lane) == ([], [], [await lane.read(1, 1, 0.01)])


@pytest.mark.guarantee("I1")
async def test_the_subscription_keeps_what_is_not_committed_and_the_last_entry(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(namespace=BRIEF)
    pulsar.send(topic, numbers(0, 10))
    async with open_lane(spec(pulsar, topic)) as lane:
        batches: list[SourceBatch] = []
        await read(lane, 10, batches)
        assert pulsar.backlog(topic, "shop") == 10
        await lane.committed(batches[-1].position)
        async with asyncio.timeout(30):
            while pulsar.backlog(topic, "shop") != 1:  # noqa: ASYNC110 - the server sends no event of it
                await asyncio.sleep(0.05)
    pulsar.forget_read(topic)
    async with open_lane(spec(pulsar, topic), batches[-1].position) as lane:
        assert await read(lane, 1) == [b"after the rest"]


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("while_open", [False, True])
async def test_messages_that_were_removed_before_they_were_read_stop_the_lane(
    pulsar: PulsarServer, while_open: bool
) -> None:
    topic = pulsar.topic(namespace=BRIEF)
    pulsar.send(topic, numbers(0, 60))
    settings = spec(pulsar, topic, receiverQueueSize=1)
    batches: list[SourceBatch] = []
    async with open_lane(settings) as lane:
        batches.append(await lane.read(5, 1 << 20, 10.0))
        if while_open:
            pulsar.remove_unread(topic, "shop")
            with raises(codes.SOURCE_RECORDS_REMOVED, "is gone, and the next one is at"):
                await read(lane, 60)
            return
    pulsar.remove_unread(topic, "shop")
    with raises(codes.SOURCE_RECORDS_REMOVED, "is gone, and the next one is at"):
        async with open_lane(settings, batches[-1].position) as lane:
            await read(lane, 1)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_reader_that_is_moved_over_messages_that_still_exist_reads_them(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 20))
    batches: list[SourceBatch] = []
    async with open_lane(spec(pulsar, topic, receiverQueueSize=1)) as lane:
        batches.append(await lane.read(3, 1 << 20, 10.0))
        # As an expiry does, which counts for readers, too.
        assert pulsar.skip_of_readers(topic, 8) == 1
        with pytest.raises(RetryLaterError, match=r"still exists .*: it is read again"):
            await read(lane, 20, batches)
        await read(lane, 20, batches)
    assert values(records_of(batches)) == numbers(0, 20)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_message_in_chunks_is_followed_by_the_next_one(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    large = bytes(6 << 20)
    pulsar.send(topic, [b"before"])
    pulsar.send_in_chunks(topic, large)
    pulsar.send(topic, [b"same ledger"])
    pulsar.send_in_chunks(topic, large)
    pulsar.new_ledger(topic)
    pulsar.send(topic, [b"next ledger"])
    expected = [b"before", large, b"same ledger", large, b"next ledger"]
    ending = spec(pulsar, topic, stopAtEnd=True)
    async with open_lane(ending) as lane:
        records, _, batches = await read_to_end(lane, 1, 8 << 20)
    assert values(records) == expected
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(ending, batch.position) as lane:
            assert values((await read_to_end(lane, 1, 8 << 20))[0]) == expected[done:]


@pytest.mark.sweep
async def test_a_source_ends_though_the_last_message_does_not_come(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 5))
    ending = spec(pulsar, topic, stopAtEnd=True)
    since = datetime.fromtimestamp(SystemClock().now_us() / 1e6 + 1, UTC).isoformat()
    async with open_lane(spec(pulsar, topic, stopAtEnd=True, start=since)) as lane:
        assert values((await read_to_end(lane))[0]) == []
    async with open_lane(ending) as lane:
        position = (await lane.read(1, 1 << 20, 10.0)).position
    body = json.loads(position)
    (name,) = body["at"]
    at, digest, _ = body["at"][name]
    # The end is between the third message and the fourth.
    body["at"][name] = [at, digest, [at[0], at[1] + 2, 0]]
    async with open_lane(ending, json.dumps(body).encode()) as lane:
        assert values((await read_to_end(lane))[0]) == numbers(1, 2)


@pytest.mark.sweep
async def test_partitions_that_have_much_do_not_keep_others_waiting(pulsar: PulsarServer) -> None:
    topic = pulsar.topic(2)
    for partition in range(2):
        pulsar.send(f"{topic}-partition-{partition}", [b"%d" % partition] * 200)
    for records_max in (1, 20):
        async with open_lane(spec(pulsar, topic)) as lane:
            found: list[bytes] = []
            while len(found) < 100:
                found += values(records_of([await lane.read(records_max, 1 << 20, 10.0)]))
        # One of them may have arrived first.
        assert min(found.count(b"0"), found.count(b"1")) >= 20


@pytest.mark.guarantee("I1")
# A server that was killed may refuse new topics for half a minute ("Not enough non-faulty bookies"), which others need.
@pytest.mark.sweep
async def test_what_left_a_reader_before_it_failed_is_read(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 60))
    batches: list[SourceBatch] = []
    async with open_lane(spec(pulsar, topic, timeout="2s")) as lane:
        batches.append(await lane.read(3, 1 << 20, 10.0))
        # The rest has been received, too, and the first message of another ledger needs the brokers.
        pulsar.kill()
        with pytest.raises(RetryLaterError):
            await read(lane, 60, batches)
        pulsar.start()
        async with asyncio.timeout(WAIT_S):
            while len(records_of(batches)) < 60:
                # It may take longer for the topic than for the first answer; a vertex tries again, too.
                with suppress(RetryLaterError):
                    batches.append(await lane.read(4096, 1 << 20, 0.05))
    assert values(records_of(batches)) == numbers(0, 60)


def connected(server: PulsarServer, topic: str) -> list[str]:
    """The subscriptions of a topic that have a consumer; none while the topic is closed."""
    try:
        found = server.ask("GET", f"{topic.replace('://', '/')}/stats")["subscriptions"]
    except HTTPError:
        return []
    return [name for name, one in found.items() if one["consumers"]]


@pytest.mark.sweep
async def test_a_partition_that_has_no_connection_does_not_keep_the_others_waiting(
    pulsar: PulsarServer, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = "public/narrow"
    pulsar.ask("PUT", f"namespaces/{namespace}")
    topic = pulsar.topic(2, namespace=namespace)
    lost, other = (f"{topic}-partition-{partition}" for partition in range(2))
    async with open_lane(spec(pulsar, topic, timeout="4s")) as lane, asyncio.timeout(3 * WAIT_S):
        assert isinstance(lane, PulsarSourceLane)
        link = lane._link
        # The lane has two consumers of each partition. One of them stays out when they connect again.
        pulsar.ask("POST", f"namespaces/{namespace}/maxConsumersPerTopic", 1)
        staying: list[str] = []
        while staying != ["shop"]:
            pulsar.new_ledger(lost)
            while not (staying := connected(pulsar, lost)):  # noqa: ASYNC110 - the server sends no event of it
                await asyncio.sleep(0.05)
        while not any("is not read now" in message for message in caplog.messages):
            assert values(records_of([await lane.read(1, 1 << 20, 0.05)])) == []
        pulsar.send(other, [b"other"])
        assert await read(lane, 1) == [b"other"]
        assert lane._link is link
        assert is_held_up(lane)
        pulsar.ask("POST", f"namespaces/{namespace}/maxConsumersPerTopic", 0)
        pulsar.send(lost, [b"lost"])
        found: list[bytes] = []
        while not found:
            # Its own client connects again, or a new one does.
            with suppress(RetryLaterError):
                found = values(records_of([await lane.read(1, 1 << 20, 0.05)]))
        assert found == [b"lost"]


@pytest.mark.sweep
async def test_a_comparison_that_fails_does_not_hold_the_lane_up(
    pulsar: PulsarServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise pulsar_exceptions.Timeout("no reader")

    async with open_lane(spec(pulsar, pulsar.topic())) as lane:
        assert isinstance(lane, PulsarSourceLane)
        monkeypatch.setattr(lane, "_reader", refused)
        with pytest.raises(pulsar_exceptions.Timeout):
            await lane._thread.run(lane._look, "t", MessagePlace(1, 1, -1))
        assert not is_held_up(lane)


@pytest.mark.sweep
@pytest.mark.guarantee("I10", "I15")
async def test_a_past_that_was_replaced_stops_the_lane(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 3))
    batches: list[SourceBatch] = []
    async with open_lane(spec(pulsar, topic)) as lane:
        await read(lane, 3, batches)
    position = batches[-1].position
    body = json.loads(position)
    (name,) = body["at"]
    at, digest, end = body["at"][name]
    body["at"][name] = [at, "0" * len(digest), end]
    with raises(codes.SOURCE_PAST_REPLACED, f"at {at[0]}:{at[1]} is not the one that was read"):
        async with open_lane(spec(pulsar, topic), json.dumps(body).encode()) as lane:
            await lane.read(1, 1 << 20, 10.0)
    body["at"][name] = [[at[0], at[1] + 1, -1], digest, end]
    with raises(codes.SOURCE_RECORDS_REMOVED, "but ends at"):
        async with open_lane(spec(pulsar, topic), json.dumps(body).encode()):
            pass
    pulsar.ask("DELETE", f"{topic.replace('://', '/')}?force=true")
    pulsar.ask("PUT", topic.replace("://", "/"))
    with raises(codes.SOURCE_RECORDS_REMOVED, "but has no messages"):
        async with open_lane(spec(pulsar, topic), position):
            pass
    pulsar.send(topic, numbers(0, 5))
    with raises(codes.SOURCE_RECORDS_REMOVED, "is gone"):
        async with open_lane(spec(pulsar, topic), position) as lane:
            await read(lane, 1)


@pytest.mark.sweep
async def test_a_topic_that_is_not_named_any_more_is_said(pulsar: PulsarServer) -> None:
    topic, other = pulsar.topic(), pulsar.topic()
    async with open_lane(spec(pulsar, f"{topic},{other}")) as lane:
        position = (await lane.read(1, 1, 0.01)).position
    with raises(codes.SOURCE_CHANGED, f"earlier runs read {other}"):
        async with open_lane(spec(pulsar, topic), position):
            pass


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"topic": "no-such"}, codes.TARGET_UNFIT, "TopicNotFound"),
        ({"topic": "no/such/topic"}, codes.TARGET_UNFIT, "not found|NotFound"),
        ({"serverAddr": "pulsar://127.0.0.1:1"}, codes.TARGET_AWAY, "Connection refused"),
    ],
)
async def test_what_does_not_fit_is_said(pulsar: PulsarServer, change: dict[str, str], code: Code, said: str) -> None:
    settings = spec(pulsar, pulsar.topic())["pulsar"]
    with raises(code, said):
        async with open_lane({"pulsar": {**settings, **change, "timeout": "3s"}}):
            pass


@pytest.mark.sweep
async def test_who_may_read_is_asked(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 3))
    token = tmp_path / "token"
    settings = spec(pulsar, topic, auth={"token": {"file": "token"}}, timeout="5s", **pulsar.tls_settings)
    for written, said in ((pulsar.token("stranger"), "AuthorizationError"), ("wr0ng", "refuses who connects")):
        token.write_text(written)
        with raises(codes.TARGET_REFUSES, said) as stopped:
            async with open_lane(settings, base_dir=tmp_path):
                pass
        assert written not in str(stopped.value)
    token.write_text(pulsar.token("shop"))
    pulsar.ask("POST", f"{topic.replace('://', '/')}/permissions/shop", ["consume"])
    async with open_lane(settings, base_dir=tmp_path) as lane:
        assert await read(lane, 3) == numbers(0, 3)
    # A certificate that no authority of the system has signed.
    with raises(codes.TARGET_REFUSES, "no encrypted connection: .*certificate verify failed"):
        async with open_lane(spec(pulsar, topic, serverAddr=pulsar.tls_settings["serverAddr"])):
            pass


@pytest.mark.sweep
async def test_a_user_and_a_password_are_asked(pulsar: PulsarServer, tmp_path: Path) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 3))
    pulsar.ask("POST", f"{topic.replace('://', '/')}/permissions/{USER}", ["consume"])
    password = tmp_path / "password"
    auth = {"basic": {"user": USER, "password": {"file": "password"}}}
    settings = spec(pulsar, topic, auth=auth, timeout="5s", **pulsar.tls_settings)
    password.write_text("wr0ng")
    with raises(codes.TARGET_REFUSES, "refuses who connects") as stopped:
        async with open_lane(settings, base_dir=tmp_path):
            pass
    assert "wr0ng" not in str(stopped.value)
    password.write_text(PASSWORD)
    async with open_lane(settings, base_dir=tmp_path) as lane:
        assert await read(lane, 3) == numbers(0, 3)


@pytest.mark.sweep
async def test_of_several_addresses_one_is_enough(pulsar: PulsarServer) -> None:
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 3))
    at = pulsar.settings["serverAddr"].partition("://")[2]
    for addresses in (f"pulsar://127.0.0.1:1,{at}", f"pulsar://{at}, 127.0.0.1:1"):
        async with open_lane(spec(pulsar, topic, serverAddr=addresses)) as lane:
            assert await read(lane, 3) == numbers(0, 3)


def test_several_addresses_share_the_timeout_and_all_that_fail_are_named() -> None:
    with silent_addresses(4) as silent:
        settings = {"serverAddr": f"pulsar://{','.join(silent)},127.0.0.1:1", "timeout": "2s"}
        begun_s = time.monotonic()
        with raises(codes.TARGET_AWAY) as stopped:
            open_link(PulsarCluster.model_validate(settings), Path(), "here")
        # Each of the silent ones could take the whole of it.
        assert time.monotonic() - begun_s < 8
    said = str(stopped.value)
    assert said.startswith("here: Pulsar at 127.0.0.1:")
    for at in silent:
        assert f"Pulsar at {at} cannot be used now: it did not answer in time; " in said
    # It was tried: the silent ones have left it some of the time.
    assert re.search(r"Pulsar at 127\.0\.0\.1:1 cannot be used now: .*refused", said)


@contextmanager
def silent_addresses(count: int) -> Iterator[list[str]]:
    """Addresses at which connections are accepted and nothing is answered."""
    with ExitStack() as life:
        sockets = [life.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def online(path: Path, settings: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {json.dumps(settings)}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    pulsar: PulsarServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in (pulsar.topic(), pulsar.topic(2)):
        assert await asyncio.to_thread(online, tmp_path, spec(pulsar, topic)) == 0
    capsys.readouterr()
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, spec(pulsar, "no-such")) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[0].source.pulsar.topic")


@pytest.mark.sweep
async def test_the_page_shows_what_runs(pulsar: PulsarServer, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    monkeypatch.setenv("PULSAR_TOKEN", pulsar.token("everyone"))
    (source,) = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    Source.model_validate(source)
    topic = pulsar.topic()
    pulsar.send(topic, numbers(0, 3))
    settings = {**source["pulsar"], **pulsar.settings, "topic": topic}
    async with open_lane({**source, "pulsar": settings}) as lane:
        assert await read(lane, 3) == numbers(0, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "non-persistent://public/default/t"},
        {"topic": "a,b/c"},
        {"serverAddr": "http://h:8080"},
        {"serverAddr": "pulsar://token@h:6650"},
        {"serverAddr": "pulsar://h:6650,"},
        {"serverAddr": "pulsar://h:6650,http://h:8080"},
        {"auth": {}},
        {"auth": {"token": {"env": "T"}, "basic": {"user": "u", "password": {"env": "P"}}}},
        {"tls": {"ca": {"env": "CA"}}},
        {"start": "yesterday"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(change: dict[str, Any]) -> None:
    settings = {"serverAddr": "pulsar://h", "topic": "t", "subscriptionName": "s"}
    Source.model_validate({"pulsar": settings})
    with pytest.raises(ValidationError):
        Source.model_validate({"pulsar": {**settings, **change}})


@pytest.mark.parametrize(
    "address", ["pulsar://user:wr0ng,wr0ng@h:6650", "pulsar://h:6650,user:wr0ng@h", "pulsar://h?t=wr0ng,wr0ng"]
)
def test_what_may_be_a_secret_in_an_address_is_not_shown(address: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Source.model_validate({"pulsar": {"serverAddr": address, "topic": "t", "subscriptionName": "s"}})
    assert all("wr0ng" not in one["msg"] for one in refused.value.errors())
