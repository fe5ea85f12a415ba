"""The `redisStreams` source on a real server: every entry once from any position, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.limits import RECORD_BYTES_MAX
from millstream.record import Position, Record
from millstream.spec.models import Source
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.redis_streams.source import lane as lane_module
from millstream_reader.source import SourceBatch
from millstream_runner.cli.main import main
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sinks.sink_targets import redis_spec
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, values
from tests.support.errors import raises
from tests.support.redis_server import RedisServer, open_redis
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "redis.md"


def spec(server: RedisServer, stream: str, **settings: Any) -> dict[str, Any]:
    return {"redisStreams": {**server.settings, "stream": stream, **settings}}


def fill(server: RedisServer, stream: str, first: int, count: int) -> None:
    """Entries `first` and on, with ids that begin with theirs."""
    with server.client.pipeline(transaction=False) as pipeline:
        for n in range(first, first + count):
            pipeline.xadd(stream, {"n": n}, id=f"{1_700_000_000_000 + n // 3}-{n % 3}")
        pipeline.execute()


@pytest.fixture
def stream(redis: RedisServer) -> str:
    """With a hundred entries, three a millisecond."""
    name = f"stream-{uuid4()}"
    fill(redis, name, 1, 100)
    return name


def numbers(records: list[Record]) -> list[int]:
    return [int(json.loads(value)["n"]) for value in values(records)]


@pytest.mark.guarantee("I1")
async def test_reading_again_from_any_position_gives_the_rest_once(
    redis: RedisServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "REDIS_COUNT_ENTRIES", 7)
    ending = spec(redis, stream, stopAtEnd=True)
    async with open_lane(ending) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=23)
    assert values(records)[:2] == [b'{"n":"1"}', b'{"n":"2"}']
    assert numbers(records) == [*range(1, 101)]
    assert [record.event_time_us for record in records] == [(1_700_000_000_000 + n // 3) * 1000 for n in range(1, 101)]
    # What comes later is not part of it.
    fill(redis, stream, 101, 5)
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(ending, batch.position) as lane:
            rest, _, _ = await read_to_end(lane, 31, 300)
            assert numbers(rest) == [*range(done + 1, 101)]
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.ended) == (None, True)


@pytest.mark.guarantee("I1")
async def test_an_ended_lane_asks_no_more_of_its_stream(redis: RedisServer, stream: str) -> None:
    ending = spec(redis, stream, stopAtEnd=True)
    # The last entry is gone before the first run, so the lane ends behind what it has given.
    redis.command("XDEL", stream, f"{1_700_000_000_000 + 100 // 3}-{100 % 3}")
    async with open_lane(ending) as lane:
        records, _, batches = await read_to_end(lane)
        assert numbers(records) == [*range(1, 100)]
        assert lane.pending() == 0
    fill(redis, stream, 101, 5)
    redis.command("XTRIM", stream, "MAXLEN", 2)
    async with open_lane(ending, batches[-1].position) as lane:
        assert (await read_to_end(lane))[0] == []
    # Read on without an end, what was taken away behind it is missed.
    with raises(codes.SOURCE_RECORDS_REMOVED, "3 entries after"):
        async with open_lane(spec(redis, stream), batches[-1].position):
            pass


@pytest.mark.guarantee("I1")
async def test_entries_removed_in_front_of_the_end_are_missed(redis: RedisServer, stream: str) -> None:
    async with open_lane(spec(redis, stream, stopAtEnd=True)) as lane:
        await lane.read(10, 1 << 20, 1.0)
        redis.command("XDEL", stream, *(f"{1_700_000_000_000 + n // 3}-{n % 3}" for n in range(96, 101)))
        with raises(codes.SOURCE_RECORDS_REMOVED, "5 entries after"):
            await read_to_end(lane)


async def test_new_entries_come_while_it_waits_for_them(redis: RedisServer, stream: str) -> None:
    async with open_lane(spec(redis, stream)) as lane:
        await read_until(lane, lambda records: len(records) == 100)
        waiting = asyncio.ensure_future(lane.read(10, 1 << 20, 30.0))
        await asyncio.sleep(0)
        while not redis.client.info("clients")["blocked_clients"]:  # noqa: ASYNC110 - the server sends no event of it
            await asyncio.sleep(0.01)
        fill(redis, stream, 101, 1)
        batch = await waiting
    assert batch.frame is not None
    assert numbers(list(batch.frame.to_records())) == [101]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 1),
        ("latest", 101),
        (datetime.fromtimestamp(1_700_000_000.010, UTC).isoformat(), 30),
        ("2100-01-01T00:00:00Z", 101),
    ],
)
async def test_where_a_first_run_begins(redis: RedisServer, stream: str, start: str, first: int) -> None:
    async with open_lane(spec(redis, stream, start=start)) as lane:
        fill(redis, stream, 101, 1)
        batches: list[SourceBatch] = []
        assert numbers(await read_until(lane, lambda records: len(records) == 102 - first, batches)) == [
            *range(first, 102)
        ]
        assert lane.pending() == 0
    # The count behind it is right: nothing is taken for removed, whatever the stream forgets of what was read.
    redis.command("XTRIM", stream, "MAXLEN", 0)
    fill(redis, stream, 102, 3)
    async with open_lane(spec(redis, stream, start=start), batches[-1].position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 3)) == [102, 103, 104]


async def test_a_stream_that_is_not_there_yet(redis: RedisServer) -> None:
    name = f"later-{uuid4()}"
    async with open_lane(spec(redis, name)) as lane:
        batch = await lane.read(10, 1 << 20, 0.01)
        fill(redis, name, 1, 2)
        assert numbers(await read_until(lane, lambda records: len(records) == 2)) == [1, 2]
    async with open_lane(spec(redis, name), batch.position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 2)) == [1, 2]
    async with open_lane(spec(redis, f"{name}-other", stopAtEnd=True)) as lane:
        assert (await read_to_end(lane))[0] == []


@pytest.mark.guarantee("I1")
async def test_lanes_share_streams(redis: RedisServer) -> None:
    names = [f"shared-{uuid4()}" for _ in range(5)]
    for index, name in enumerate(names):
        fill(redis, name, 100 * index, 10)
    found: list[int] = []
    for partition in range(3):
        settings = spec(redis, ", ".join([*names, names[0]]), stopAtEnd=True)
        async with open_lane(settings, partition=partition, partitions=3) as lane:
            found += numbers((await read_to_end(lane, records_max=7))[0])
    assert sorted(found) == [100 * index + n for index in range(5) for n in range(10)]


@pytest.mark.guarantee("I1")
async def test_what_the_sink_writes_comes_back(redis: RedisServer) -> None:
    name = f"written-{uuid4()}"
    keys = [[rb"\x00ff"], [b"b", "ü".encode()], []]
    written = sink_frame([b"\xff\x00", b"x", b""], 1, keys=keys, headers=[{"h": b"1"}, {}, {"g": b"\xfe"}])
    async with open_sink(redis_spec(redis, "stream", name), sink_owner(1)) as sink:
        assert not (await sink.write([written], Position(1))).failures
    # A key has the bytes that it had at its source.
    assert b"\x00\xff" in redis.command("XRANGE", name, "-", "+")[0][1].values()
    async with open_lane(spec(redis, name, format="record", stopAtEnd=True)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert not invalid
    found = [(r.value, r.keys, r.event_time_us, dict(r.headers)) for r in records]
    wanted = [(r.value, r.keys, r.event_time_us, dict(r.headers)) for r in written.frame.to_records()]
    assert found == wanted


async def test_entries_that_become_no_record_are_named(redis: RedisServer) -> None:
    name = f"odd-{uuid4()}"
    for words in (
        ("a", b"\xff"),
        ("big", b"x" * RECORD_BYTES_MAX),
        ("value", "v", "eventTime", "soon"),
        ("value", "w"),
    ):
        redis.command("XADD", name, "*", *words)
    # A server takes any id that is larger than the last one, for example one in nanoseconds.
    far = "18446744073709551000-1"
    redis.command("XADD", name, far, "value", "f", "key", "[" * 100_000)
    async with open_lane(spec(redis, name, stopAtEnd=True)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert [json.loads(value) for value in values(records)] == [{"value": "v", "eventTime": "soon"}, {"value": "w"}]
    assert [re.sub(r"^entry [\d-]+", "entry ID", item.place) for item in invalid] == [f"entry ID of {name}"] * 3
    assert invalid[2].place == f"entry {far} of {name}"
    assert "is the unit right?" in invalid[2].reason
    assert "not UTF-8 text" in invalid[0].reason
    assert len(invalid[1].value) < 2000
    async with open_lane(spec(redis, name, stopAtEnd=True, format="record")) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert values(records) == [b"w"]
    reasons = ("`value`", "bytes", "'soon' is not milliseconds", far.partition("-")[0])
    assert [what in item.reason for what, item in zip(reasons, invalid, strict=True)] == [True] * 4


# What is gone


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("while_open", [True, False])
@pytest.mark.parametrize("removal", [("XTRIM", "MAXLEN", 10), ("XDEL", 50), ("DEL",)])
async def test_what_was_removed_before_it_was_read_stops_the_lane(
    redis: RedisServer, stream: str, removal: tuple[Any, ...], while_open: bool
) -> None:
    command, *words = removal
    if command == "XDEL":
        words = [f"{1_700_000_000_000 + 50 // 3}-{50 % 3}"]

    async with open_lane(spec(redis, stream)) as lane:
        batch = await lane.read(20, 1 << 20, 1.0)
        while lane._streams[0].waiting:  # type: ignore[attr-defined]
            batch = await lane.read(20, 1 << 20, 1.0)
        redis.command(command, stream, *words)
        if while_open and command != "XDEL":
            with raises(codes.SOURCE_RECORDS_REMOVED, match=stream):
                await lane.read(20, 1 << 20, 1.0)
            return
    with raises(codes.SOURCE_RECORDS_REMOVED, match=stream):
        async with open_lane(spec(redis, stream), batch.position):
            pass


async def test_what_was_removed_after_it_was_read_is_not_missed(redis: RedisServer, stream: str) -> None:
    async with open_lane(spec(redis, stream)) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
        redis.command("XTRIM", stream, "MAXLEN", 0)
        fill(redis, stream, 101, 5)
        assert numbers(await read_until(lane, lambda records: len(records) == 5)) == [*range(101, 106)]
    redis.command("XTRIM", stream, "MAXLEN", 5)
    async with open_lane(spec(redis, stream), batches[-1].position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 5)) == [*range(101, 106)]


@pytest.mark.guarantee("I15")
@pytest.mark.parametrize("again", [0, 50, 100, 120])
async def test_a_stream_that_was_made_again_is_noticed(redis: RedisServer, stream: str, again: int) -> None:
    async with open_lane(spec(redis, stream)) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
    redis.client.delete(stream)
    for n in range(1, again + 1):
        redis.client.xadd(stream, {"n": -n}, id=f"{1_700_000_000_000 + n // 3}-{n % 3}")
    with raises(codes.SOURCE_RECORDS_REMOVED, match=stream):
        async with open_lane(spec(redis, stream), batches[-1].position):
            pass


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_killed_is_waited_for(stream: str) -> None:
    with open_redis() as server:
        fill(server, stream, 1, 100)
        async with open_lane(spec(server, stream)) as lane:
            batches: list[SourceBatch] = []
            await read_until(lane, lambda records: len(records) >= 50, batches)
            server.kill()
            await held_up(lane, True, batches)
            server.start()
            await held_up(lane, False, batches)
            fill(server, stream, 101, 20)
            records = await read_until(lane, lambda records: len(records) >= 120, batches)
        assert numbers(records) == [*range(1, 121)]


# Groups, for tools


async def test_a_group_shows_how_far_the_lane_is(redis: RedisServer, stream: str) -> None:
    async with open_lane(spec(redis, stream, consumerGroup="shop")) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
        fill(redis, stream, 101, 7)
        await lane.committed(batches[-1].position)
    (group,) = redis.client.xinfo_groups(stream)
    assert (group["name"], group["lag"], group["entries-read"]) == (b"shop", 7, 100)
    # It decides nothing.
    redis.command("XGROUP", "SETID", stream, "shop", "$")
    async with open_lane(spec(redis, stream, consumerGroup="shop"), batches[-1].position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 7)) == [*range(101, 108)]


# What the user has to change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"password": "wrong"}, codes.TARGET_REFUSES, "refuses the default user"),
        ({"user": "writer-alone", "password": "w"}, codes.TARGET_REFUSES, "refuses user writer-alone"),
        ({"stream": "a-string"}, codes.TARGET_UNFIT, "is a string \\(expected: a stream"),
        ({"url": "redis://127.0.0.1:1"}, codes.TARGET_AWAY, "cannot be used now"),
    ],
)
async def test_what_does_not_fit_is_said(
    redis: RedisServer, stream: str, change: dict[str, str], code: Code, said: str
) -> None:
    redis.command("ACL", "SETUSER", "writer-alone", "on", ">w", "~*", "+xadd", "+@connection")
    redis.client.set("a-string", "x")
    with raises(code, said) as stopped:
        async with open_lane({"redisStreams": {**spec(redis, stream)["redisStreams"], **change}}) as lane:
            await lane.read(1, 1000, 0.01)
    assert "wrong" not in str(stopped.value)


async def test_a_stream_that_is_not_named_any_more_is_said(redis: RedisServer, stream: str) -> None:
    async with open_lane(spec(redis, f"{stream},{stream}-other")) as lane:
        batch = await lane.read(10, 1 << 20, 1.0)
    with raises(codes.SOURCE_CHANGED, match=f"earlier runs read {stream}-other"):
        async with open_lane(spec(redis, stream), batch.position):
            pass


async def test_the_rights_on_the_page_are_enough(redis: RedisServer, stream: str) -> None:
    rights = re.search(r"```text\n(ACL SETUSER shop .*?)```", PAGE.read_text(), re.DOTALL)
    assert rights is not None
    redis.command(*rights[1].replace("orders", stream).split())
    settings = {"user": "shop", "password": "secret", "consumerGroup": "shop", "stopAtEnd": True}
    async with open_lane(spec(redis, stream, **settings)) as lane:
        records, _, batches = await read_to_end(lane)
        await lane.committed(batches[-1].position)
    assert numbers(records) == [*range(1, 101)]
    assert redis.client.xinfo_groups(stream)[0]["lag"] == 0


async def test_in_a_cluster_streams_are_in_one_slot(stream: str) -> None:
    """One of two servers, that is; the other one's slots are not there."""
    with open_redis(cluster=True) as cluster:
        fill(cluster, "{a}:1", 1, 3)
        fill(cluster, "{a}:2", 11, 3)
        async with open_lane(spec(cluster, "{a}:1,{a}:2", stopAtEnd=True)) as lane:
            assert sorted(numbers((await read_to_end(lane))[0])) == [1, 2, 3, 11, 12, 13]
        with raises(codes.TARGET_UNFIT, match="hash tag"):
            async with open_lane(spec(cluster, "a,b")):
                pass


def online(path: Path, settings: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{redisStreams: {json.dumps(settings)}}}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    redis: RedisServer, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redis.client.set("a-string", "x")
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, {**redis.settings, "stream": "a-string"}) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[0].source.redisStreams.stream")
    assert await asyncio.to_thread(online, tmp_path, {**redis.settings, "stream": stream}) == 0


async def test_the_page_shows_what_runs(redis: RedisServer, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    monkeypatch.setenv("REDIS_PASSWORD", redis.password)
    (source,) = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    settings = {**source["redisStreams"], "url": redis.settings["url"], "stream": stream}
    Source.model_validate(source)
    async with open_lane({**source, "redisStreams": settings}) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 100)) == 100
