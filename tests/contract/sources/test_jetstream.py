"""The `jetstream` source on a real server: every message once from any position, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from millstream import codes
from millstream.codes.code import Code
from millstream.limits import RECORD_BYTES_MAX
from millstream.record import Record
from millstream.spec.models import Source
from millstream_reader.source import SourceBatch
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, values
from tests.support.errors import raises
from tests.support.nats_outside import OutsideNats, open_outside_nats

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "nats.md"

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[OutsideNats]:
    """With a stream of a hundred messages, of two subjects in turn."""
    async with open_outside_nats(tmp_path / "nats") as nats:
        await nats.create("orders")
        await fill(nats, 1, 100)
        yield nats


async def fill(nats: OutsideNats, first: int, count: int) -> None:
    for n in range(first, first + count):
        await nats.publish(f"orders.{'odd' if n % 2 else 'even'}", str(n).encode(), headers={"n": str(n)})


def spec(nats: OutsideNats, **settings: Any) -> dict[str, Any]:
    return {"jetstream": {**nats.settings, "stream": "orders", **settings}}


def numbers(records: list[Record]) -> list[int]:
    return [int(value) for value in values(records)]


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("subject", [None, "orders.odd", "orders.*"])
async def test_reading_again_from_any_position_gives_the_rest_once(nats: OutsideNats, subject: str | None) -> None:
    ending = spec(nats, stopAtEnd=True, **({"subject": subject} if subject else {}))
    wanted = [n for n in range(1, 101) if n % 2 or subject != "orders.odd"]
    async with open_lane(ending) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=23)
    assert numbers(records) == wanted
    assert (records[0].headers["Nats-Subject"], records[0].headers["n"]) == (b"orders.odd", b"1")
    assert records[0].event_time_us <= records[-1].event_time_us
    # What comes later is not part of it.
    await fill(nats, 101, 5)
    done = 0
    for batch in batches:
        done += batch.frame.records if batch.frame is not None else 0
        async with open_lane(ending, batch.position) as lane:
            rest, _, _ = await read_to_end(lane, 31, 300)
            assert numbers(rest) == wanted[done:]
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.ended) == (None, True)


async def test_new_messages_come_while_it_waits_for_them(nats: OutsideNats) -> None:
    async with open_lane(spec(nats)) as lane:
        await read_until(lane, lambda records: len(records) == 100)
        waiting = asyncio.ensure_future(lane.read(10, 1 << 20, 30.0))
        await asyncio.sleep(0)
        await fill(nats, 101, 1)
        batch = await waiting
    assert batch.frame is not None
    assert numbers(list(batch.frame.to_records())) == [101]


async def test_where_a_first_run_begins(nats: OutsideNats) -> None:
    sixtieth = (await nats.connection.api("STREAM.MSG.GET.orders", {"seq": 60}))["message"]["time"]
    for start, first in (("earliest", 1), ("latest", 101), (sixtieth, 60)):
        async with open_lane(spec(nats, start=start, stopAtEnd=True)) as lane:
            assert numbers((await read_to_end(lane))[0]) == [*range(first, 101)]


@pytest.mark.guarantee("I1")
async def test_lanes_share_subjects(nats: OutsideNats) -> None:
    found: list[int] = []
    for partition in range(3):
        settings = spec(nats, subject="orders.odd, orders.even", stopAtEnd=True)
        async with open_lane(settings, partition=partition, partitions=3) as lane:
            found += numbers((await read_to_end(lane, records_max=7))[0])
    assert sorted(found) == [*range(1, 101)]
    with pytest.raises(ValidationError, match="match the same subjects"):
        Source.model_validate(spec(nats, subject="orders.*,orders.odd"))


async def test_a_message_that_is_too_large_is_named(nats: OutsideNats) -> None:
    await nats.publish("orders.odd", b"x" * RECORD_BYTES_MAX, b"101")
    async with open_lane(spec(nats, stopAtEnd=True)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert numbers(records) == [*range(1, 102)]
    (item,) = invalid
    assert item.place == "orders at sequence 101"
    assert len(item.value) < 2000


# What is gone


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("change", ["purge", "gone", "again"])
@pytest.mark.parametrize("subject", [None, "orders.odd"])
async def test_what_was_removed_before_it_was_read_stops_the_lane(
    nats: OutsideNats, change: str, subject: str | None
) -> None:
    settings = spec(nats, **({"subject": subject} if subject else {}))
    async with open_lane(settings) as lane:
        batch = await lane.read(20, 1 << 20, 10.0)
    if change == "purge":
        await nats.connection.api("STREAM.PURGE.orders", {"seq": 90})
    else:
        await nats.connection.api("STREAM.DELETE.orders")
    if change == "again":
        await nats.create("orders")
        await fill(nats, 1, 100)
    with raises(codes.SOURCE_RECORDS_REMOVED, match="orders"):
        async with open_lane(settings, batch.position):
            pass


async def test_what_was_removed_after_it_was_read_is_not_missed(nats: OutsideNats) -> None:
    settings = spec(nats)
    async with open_lane(settings) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
        await nats.connection.api("STREAM.PURGE.orders")
        await fill(nats, 101, 5)
        assert numbers(await read_until(lane, lambda records: len(records) == 5)) == [*range(101, 106)]
    async with open_lane(settings, batches[-1].position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 5)) == [*range(101, 106)]


async def test_a_lane_of_a_rare_subject_follows_the_stream(nats: OutsideNats) -> None:
    await nats.publish("orders.rare", b"0")
    settings = spec(nats, subject="orders.rare")
    async with open_lane(settings) as lane:
        await read_until(lane, lambda records: len(records) == 1)
        await fill(nats, 101, 50)
        batch = await lane.read(9, 9999, 0.5)
        async with asyncio.timeout(60):
            while json.loads(batch.position)["at"] < 151:
                batch = await lane.read(9, 9999, 0.5)
    # Nothing of the lane's is among what was removed.
    await nats.connection.api("STREAM.PURGE.orders", {"keep": 1})
    await nats.publish("orders.rare", b"1")
    async with open_lane(settings, batch.position) as lane:
        assert numbers(await read_until(lane, lambda records: len(records) == 1)) == [1]


@pytest.mark.guarantee("I15")
async def test_an_end_that_was_lost_and_written_again_is_noticed(nats: OutsideNats) -> None:
    async with open_lane(spec(nats)) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) == 100, batches)
    position = json.loads(batches[-1].position)
    for change in ({"at": 200, "read": 200}, {"digest": "0" * 16}):
        changed = json.dumps({**position, **change}).encode()
        with raises(codes.SOURCE_RECORDS_REMOVED, match="rolled back"):
            async with open_lane(spec(nats), changed):
                pass


@pytest.mark.guarantee("I1")
async def test_a_server_that_is_killed_is_waited_for(nats: OutsideNats) -> None:
    async with open_lane(spec(nats)) as lane:
        batches: list[SourceBatch] = []
        while not batches or batches[-1].frame is None:
            batches.append(await lane.read(30, 1 << 20, 1.0))
        await nats.server.kill()
        await held_up(lane, True, batches)
        await nats.server.start()
        await nats.connection.connected()
        await held_up(lane, False, batches)
        await fill(nats, 101, 20)
        records = await read_until(lane, lambda records: len(records) >= 120, batches)
    assert numbers(records) == [*range(1, 121)]


# What the user has to change


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (
            {"auth": {"basic": {"user": "stranger", "password": {"env": "WRONG"}}}},
            codes.TARGET_REFUSES,
            "user stranger",
        ),
        ({"stream": "other"}, codes.TARGET_UNFIT, "there is no stream other"),
        ({"stream": "work"}, codes.TARGET_UNFIT, "retention workqueue"),
        ({"url": "nats://127.0.0.1:1", "timeout": "200ms"}, codes.TARGET_AWAY, "could not be reached"),
    ],
)
async def test_what_does_not_fit_is_said(
    nats: OutsideNats, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: Code, said: str
) -> None:
    monkeypatch.setenv("WRONG", "wr0ng")
    await nats.create("work", retention="workqueue")
    with raises(code, said) as stopped:
        async with open_lane(spec(nats, **change)) as lane:
            await lane.read(1, 1000, 0.01)
    assert "wr0ng" not in str(stopped.value)


async def test_other_subjects_than_in_earlier_runs_are_said(nats: OutsideNats) -> None:
    async with open_lane(spec(nats, subject="orders.odd")) as lane:
        batch = await lane.read(10, 1 << 20, 10.0)
    with raises(
        codes.SOURCE_CHANGED, match=r"reads orders\.even of orders, but earlier runs read orders\.odd of orders"
    ):
        async with open_lane(spec(nats, subject="orders.even"), batch.position):
            pass


async def test_over_tls(tmp_path: Path) -> None:
    async with open_outside_nats(tmp_path / "nats", tls=True) as nats:
        await nats.create("orders")
        await fill(nats, 1, 3)
        certificate = tmp_path / "nats" / "server.pem"
        settings = spec(nats, tls={"ca": {"file": str(certificate)}}, stopAtEnd=True)
        async with open_lane(settings) as lane:
            assert numbers((await read_to_end(lane))[0]) == [1, 2, 3]
        with raises(codes.TARGET_REFUSES, match="cannot make an encrypted connection"):
            async with open_lane(spec(nats, tls={}, timeout="1s")):
                pass


def online(path: Path, settings: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{jetstream: {json.dumps(settings)}}}\n"
        "  - name: out\n    sink: {blackhole: {}}\n  edges:\n  - {from: in, to: out}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    nats: OutsideNats, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, {**nats.settings, "stream": "other"}) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["path"]) == ("MS-2515", "spec.vertices[0].source.jetstream.stream")
    assert await asyncio.to_thread(online, tmp_path, {**nats.settings, "stream": "orders"}) == 0


async def test_the_page_shows_what_runs(nats: OutsideNats) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    ]
    source = next(vertex["source"] for (vertex,) in blocks if "jetstream" in vertex.get("source", {}))
    async with open_lane({**source, "jetstream": {**source["jetstream"], **nats.settings, "tls": None}}) as lane:
        assert await read_until(lane, lambda records: len(records) == 50)
