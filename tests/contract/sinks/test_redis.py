"""The Redis sink on a real server: what of a record goes where, and that each counts once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.errors import FencedError, RetryLaterError
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.redis_streams.sink.script import COMMIT
from millstream_runner.chaos.lossy_path import LossyPath, open_lossy_path
from millstream_runner.cli.main import main
from millstream_writer.connector import SinkOwner
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.sink_targets import redis_numbers, redis_spec
from tests.contract.sinks.table_lanes import again
from tests.contract.sinks.wires import REDIS
from tests.support.errors import raises
from tests.support.redis_server import RedisServer, open_redis
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "redis.md"


@pytest.fixture
def stream() -> str:
    return f"stream-{uuid4()}"


@pytest.fixture
async def path(redis: RedisServer) -> AsyncIterator[LossyPath]:
    # A script that the server does not have is sent twice.
    redis.client.script_load(COMMIT.text)
    async with open_lossy_path(redis.port, REDIS) as path:
        yield path


def numbers(sequence: int, count: int = 10, *, name: str = "") -> SinkFrame:
    """`count` numbers from `sequence` * 10 on."""
    return sink_frame([value_of(n) for n in range(sequence * 10, sequence * 10 + count)], sequence, name=name)


@asynccontextmanager
async def opened(spec: FallbackSink, owner: SinkOwner | None = None) -> AsyncIterator[SinkLane]:
    async with asyncio.timeout(60), open_sink(spec, owner or sink_owner(1)) as lane:
        yield lane


# What goes where


async def test_an_entry_has_the_whole_record_or_its_members(redis: RedisServer, stream: str) -> None:
    whole = sink_frame([b"\xff", b"x"], 1, keys=[[b"a"], [b"b", b"c"]], headers=[{"h": b"1"}, {}])
    async with opened(redis_spec(redis, "stream", stream)) as lane:
        assert not (await lane.write([whole], Position(1))).failures
    assert redis.entries(stream) == [
        {"value": b"\xff", "key": b"a", "eventTime": b"1000", "header.h": b"1"},
        {"value": b"x", "key": b'["b","c"]', "eventTime": b"2000"},
    ]
    objects = [{"n": 1, "text": "é", "none": None, "list": [1, "a"]}, [], {}, {"n": 2.5}]
    values = [*(json.dumps(one).encode() for one in objects), b"{"]
    async with opened(redis_spec(redis, "stream", f"{stream}-fields", format="fields")) as lane:
        result = await lane.write([sink_frame(values, 1)], Position(1))
        await lane.flush()
    assert [(failure.index, failure.reason) for failure in result.failures[0]] == [
        (1, "value is not a JSON object"), (2, "object has no members"), (4, "value is not JSON"),
    ]  # fmt: skip
    assert redis.entries(f"{stream}-fields") == [
        {"n": b"1", "text": "é".encode(), "list": b'[1,"a"]'},
        {"n": b"2.5"},
    ]


async def test_hashes_and_values_by_key(redis: RedisServer, stream: str) -> None:
    values = [b'{"a": 1, "b": "x"}', b'{"a": 2}', b'{"a": 3}']
    frame = sink_frame(values, 1, keys=[[b"k"], [b"k"], []])
    for mode in ("hash", "set"):
        async with opened(redis_spec(redis, mode, f"{stream}-{mode}:", expire="1h")) as lane:
            result = await lane.write([frame], Position(1))
            await lane.flush()
        assert [(failure.index, failure.reason) for failure in result.failures[0]] == [(2, "record has no key")]
        assert 3500 < redis.client.ttl(f"{stream}-{mode}:k") <= 3600
    assert redis.client.hgetall(f"{stream}-hash:k") == {b"a": b"2", b"b": b"x"}
    # Null is a value: the field is removed. What is absent stays.
    for sequence, value in ((2, b'{"b": null, "c": ""}'), (3, b'{"a": null, "c": null}')):
        async with opened(redis_spec(redis, "hash", f"{stream}-hash:"), sink_owner(sequence)) as lane:
            await lane.write([sink_frame([value], sequence, keys=[[b"k"]])], Position(sequence))
        expected = {b"a": b"2", b"c": b""} if sequence == 2 else {}
        assert redis.client.hgetall(f"{stream}-hash:k") == expected
    assert redis.client.get(f"{stream}-set:k") == b'{"a": 2}'


async def test_a_large_write_is_cut_and_a_stream_may_have_a_length(redis: RedisServer, stream: str) -> None:
    async with opened(redis_spec(redis, "stream", stream, maxLength=1000)) as lane:
        await lane.write([sink_frame([b"%d" % n for n in range(9000)], 1)], Position(1))
        assert lane.durable == Position(1)
    found = [int(entry["value"]) for entry in redis.entries(stream)]
    assert 1000 <= len(found) < 2000
    assert found == list(range(9000 - len(found), 9000))


# Owners


@pytest.mark.guarantee("I1")
async def test_of_two_owners_the_older_has_no_effect(redis: RedisServer, stream: str) -> None:
    spec = redis_spec(redis, "stream", stream)
    async with opened(spec, sink_owner(1)) as older:
        await older.write([numbers(1)], Position(1))
        async with opened(spec, sink_owner(2)) as newer:
            assert newer.durable == Position(1)
            with pytest.raises(FencedError):
                await older.write([numbers(2)], Position(2))
            await newer.write([numbers(2)], Position(2))
            with pytest.raises(FencedError):
                await older.write([numbers(3)], Position(3))
        with pytest.raises(FencedError):
            async with opened(spec, sink_owner(1)):
                pass
    assert redis_numbers(redis, stream) == [*range(10, 30)]


async def test_a_target_that_does_not_fit_the_mark_stops_the_lane_with_what_to_do(
    redis: RedisServer, stream: str
) -> None:
    spec = redis_spec(redis, "stream", stream)
    async with opened(spec) as lane:
        await lane.write([numbers(1, name="one"), numbers(2, name="two")], Position(2))

    async def other(sequence: int, name: str) -> str | None:
        return f"another frame than {name}" if sequence == 2 else None

    stops = [
        (sink_owner(1, ledger_id="second"), codes.SINK_AHEAD, "another run of the pipeline wrote to"),
        (sink_owner(2, start=Position(1), held_instead=other), codes.SINK_AHEAD, "records of frame two at sequence 2"),
        (sink_owner(2, start=Position(3)), codes.SINK_BEHIND, "had confirmed sequence 3"),
    ]
    for owner, code, said in stops:
        with raises(code, said):
            async with opened(spec, owner):
                pass
    (key,) = redis.client.keys(f"millstream:{{{stream}}}*")
    redis.client.delete(key)
    lost = sink_owner(2, start=Position(2), ledger_id="second")
    with raises(codes.TARGET_POSITION_LOST, "that records this is missing") as stopped:
        async with opened(spec, lost):
            pass
    found = re.search(r"`HSET '(.*?)' (.*)`", str(stopped.value))
    assert found is not None
    redis.command("HSET", found[1], *(word.strip("'") for word in found[2].split(" ")))
    async with opened(spec, lost) as lane:
        await lane.write([numbers(2), numbers(3)], Position(3))
    assert redis_numbers(redis, stream) == [*range(10, 40)]


async def test_a_position_that_is_lost_while_it_runs_stops_the_lane(redis: RedisServer, stream: str) -> None:
    async with opened(redis_spec(redis, "stream", stream)) as lane:
        await lane.write([numbers(1)], Position(1))
        redis.client.delete(*redis.client.keys(f"millstream:{{{stream}}}*"))
        with raises(codes.TARGET_POSITION_LOST, "up to sequence 1"):
            await lane.write([numbers(2)], Position(2))
    assert redis_numbers(redis, stream) == [*range(10, 20)]


# Records that cannot be written


def delivery(lane: SinkLane, on_failure: OnFailure) -> Delivery:
    policy = RetryPolicy(Backoff(0.001), on_failure)
    return Delivery(lane, None, policy, DeliveryLimits(10**9, 10**12), where="p/out/in-out.0", rng=random.Random(1))


@pytest.mark.guarantee("I4")
async def test_where_the_lane_stops_over_a_record_nothing_behind_it_is_written(redis: RedisServer, stream: str) -> None:
    spec = redis_spec(redis, "stream", stream, format="fields")
    values = [b"{}" if n == 14 else b'{"n": %d}' % n for n in range(30)]
    frames = [sink_frame(values[first : first + 10], 1 + first // 10) for first in (0, 10, 20)]
    async with opened(spec) as lane:
        with raises(codes.SINK_REFUSED, "object has no members"):
            await delivery(lane, OnFailure.STOP).write(frames, Position(3))
    assert [int(entry["n"]) for entry in redis.entries(stream)] == [*range(14)]
    async with opened(spec, sink_owner(2)) as lane:
        deliver = delivery(lane, OnFailure.DROP)
        account = await deliver.write(frames, Position(3))
        await deliver.flush()
        settled = deliver.take_settled()
        assert settled is not None
        assert settled.position == Position(3)
    assert (account.processed, account.dropped) == (29, {"object has no members": 1})
    assert [int(entry["n"]) for entry in redis.entries(stream)] == [*range(14), *range(15, 30)]


async def test_a_key_of_another_kind_stops_the_lane_before_anything_is_written(redis: RedisServer, stream: str) -> None:
    redis.client.set(f"{stream}:3", "text")
    values = [b'{"a": %d}' % n for n in range(5)]
    frame = sink_frame(values, 1, keys=[[b"%d" % n] for n in range(5)])
    with raises(codes.TARGET_UNFIT, "is a string, and `mode: hash` needs a hash"):
        async with opened(redis_spec(redis, "hash", f"{stream}:")) as lane:
            await lane.write([frame], Position(1))
    assert redis.client.keys(f"{stream}:*") == [f"{stream}:3".encode()]


# Faults


@pytest.mark.guarantee("I1")
async def test_a_script_that_comes_late_has_no_effect(redis: RedisServer, path: LossyPath, stream: str) -> None:
    """The connection was given up, and the same owner has come back on another one."""
    spec = redis_spec(redis, "stream", stream, url=path.url, timeout="200ms")
    stalled = asyncio.Event()

    async def stall() -> None:
        path.stall()
        stalled.set()

    async with opened(spec) as lane:
        path.before_next_commit(stall)
        with raises(codes.TARGET_AWAY):
            await lane.write([numbers(1)], Position(1))
        assert stalled.is_set()
        path.flow()
        await again(lambda: lane.write([numbers(1)], Position(1)))
    assert redis_numbers(redis, stream) == [*range(10, 20)]


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_killed_is_waited_for(stream: str) -> None:
    with open_redis() as server:
        spec = redis_spec(server, "stream", stream)
        async with opened(spec) as lane:
            await lane.write([numbers(1)], Position(1))
            server.kill()
            with raises(codes.TARGET_AWAY, "cannot be used now"):
                await lane.write([numbers(2)], Position(2))
            # One that opens meanwhile waits too.
            async with opened(spec, sink_owner(2)) as newer:
                with pytest.raises(RetryLaterError):
                    await newer.write([numbers(2)], Position(2))
                server.start()
                await again(lambda: newer.write([numbers(2)], Position(2)))
        assert redis_numbers(server, stream) == [*range(10, 30)]


async def test_a_server_that_is_full_is_waited_for(stream: str) -> None:
    with open_redis() as server:
        async with opened(redis_spec(server, "stream", stream)) as lane:
            await lane.write([numbers(1)], Position(1))
            server.client.config_set("maxmemory", "1mb")
            with raises(codes.TARGET_AWAY, "cannot be used now"):
                await lane.write([numbers(2)], Position(2))
            server.client.config_set("maxmemory", "0")
            await lane.write([numbers(2)], Position(2))
        assert redis_numbers(server, stream) == [*range(10, 30)]


@pytest.fixture
def cluster() -> Iterator[RedisServer]:
    with open_redis(cluster=True) as server:
        yield server


async def test_in_a_cluster_position_and_records_are_in_one_slot(cluster: RedisServer, stream: str) -> None:
    """One of two servers, that is; the other one's slots are not there."""
    async with opened(redis_spec(cluster, "stream", stream)) as lane:
        await lane.write([numbers(1)], Position(1))
    frame = sink_frame([b"a", b"b"], 1, keys=[[b"a"], [b"b"]])
    async with opened(redis_spec(cluster, "set", "{orders}:")) as lane:
        await lane.write([frame], Position(1))
    assert cluster.client.get("{orders}:b") == b"b"
    with raises(codes.TARGET_UNFIT, "hash tag"):
        async with opened(redis_spec(cluster, "set", "orders:")) as lane:
            await lane.write([frame], Position(1))
    assert redis_numbers(cluster, stream) == [*range(10, 20)]


# What the user has to change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"password": "wrong"}, codes.TARGET_REFUSES, "refuses the default user"),
        ({"user": "stranger"}, codes.TARGET_REFUSES, "refuses user stranger"),
        ({"user": "reader", "password": "r"}, codes.TARGET_REFUSES, "refuses user reader"),
        ({"stream": "a-string"}, codes.TARGET_UNFIT, "is a string \\(expected: a stream"),
    ],
)
async def test_what_does_not_fit_is_said(
    redis: RedisServer, stream: str, change: dict[str, str], code: Code, said: str
) -> None:
    redis.command("ACL", "SETUSER", "reader", "on", ">r", "~*", "+@read", "+@connection")
    redis.client.set("a-string", "x")
    with raises(code, said) as stopped:
        async with opened(redis_spec(redis, "stream", stream, **change)) as lane:
            await lane.write([numbers(1)], Position(1))
    assert "wrong" not in str(stopped.value)


async def test_the_rights_on_the_page_are_enough(redis: RedisServer, stream: str) -> None:
    rights = re.search(r"```text\n(ACL SETUSER writer .*?)```", PAGE.read_text(), re.DOTALL)
    assert rights is not None
    redis.command(*rights[1].replace("orders", stream).split())
    async with opened(redis_spec(redis, "stream", stream, user="writer", password="secret")) as lane:
        await lane.write([numbers(1)], Position(1))
    assert redis_numbers(redis, stream) == [*range(10, 20)]


def online(path: Path, settings: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        "  - name: in\n    source: {generator: {records: 1}}\n  - name: out\n"
        f"    sink: {{redisStreams: {json.dumps(settings)}}}\n  edges:\n  - {{from: in, to: out}}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    redis: RedisServer, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redis.client.set(stream, "x")
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, {**redis.settings, "stream": stream}) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[1].sink.redisStreams.stream")
    assert await asyncio.to_thread(online, tmp_path, {**redis.settings, "stream": f"{stream}-new"}) == 0


async def test_the_page_shows_what_runs(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    monkeypatch.setenv("REDIS_PASSWORD", redis.password)
    sinks = [vertex["sink"]["redisStreams"] for (vertex,) in blocks if "sink" in vertex]
    assert len(sinks) == 2
    frame = sink_frame([b'{"id": 7}'], 1, keys=[[b"7"]])
    for settings in sinks:
        spec = FallbackSink.model_validate({"redisStreams": {**settings, "url": redis.settings["url"]}})
        async with opened(spec) as lane:
            assert not (await lane.write([frame], Position(1))).failures
    assert redis.client.hgetall("order:7") == {b"id": b"7"}
