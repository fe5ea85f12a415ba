"""The `sqs` source on an emulated service: what it takes, when it deletes, how it holds, and what it says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.codes.code import Code
from millstream.spec.models import FallbackSink, Source
from millstream_connectors.sqs import source as module
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceBatch, SourceLane, is_held_up
from millstream_runner.cli.main import main
from tests.contract.sources.lanes import held_up, open_lane, read_until, records_of, values
from tests.support.errors import raises
from tests.support.sqs_server import SqsServer

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "sqs.md"


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that is given up may take messages along, which are then hidden for a while."""
    monkeypatch.setattr(module, "_POLL_S", 1)
    # The emulator hands a message out to two polls at once, and deletes it for one of them.
    monkeypatch.setattr(module, "_POLLS", 1)


def spec(server: SqsServer, queue: str, **settings: Any) -> dict[str, Any]:
    return {"sqs": {**server.settings(queue), **settings}}


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def by_id(batches: list[SourceBatch]) -> dict[str, bytes]:
    return {record.id or "": record.value for record in records_of(batches)}


async def read_all(lane: SourceLane, count: int, *, commit: bool = True) -> list[SourceBatch]:
    """`count`: ids. A queue without an order may hand a message out to two polls at once, and the emulator does."""
    batches: list[SourceBatch] = []
    while len(by_id(batches)) < count:
        found: list[SourceBatch] = []
        await read_until(lane, bool, found)
        batches += found
        if commit:
            await lane.committed(batches[-1].position)
    return batches


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("fifo", [False, pytest.param(True, marks=pytest.mark.sweep)])
async def test_messages_are_deleted_when_they_are_committed(sqs: SqsServer, fifo: bool) -> None:
    queue = sqs.queue(fifo=fifo)
    sqs.send(queue, numbers(0, 60), "g" if fifo else "")
    async with open_lane(spec(sqs, queue)) as lane:
        batches = await read_all(lane, 60)
    assert sorted(by_id(batches).values()) == sorted(numbers(0, 60))
    if fifo:
        assert values(records_of(batches)) == numbers(0, 60)
    assert sqs.left(queue) == (0, 0)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_what_was_committed_and_not_deleted_is_known_by_its_id(sqs: SqsServer) -> None:
    queue = sqs.queue()
    sqs.send(queue, numbers(0, 20))
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    async with open_lane(spec(sqs, queue)) as lane:
        # Committed, and the process dies before it deletes them; what it holds is given back.
        batches = await read_all(lane, 20, commit=False)
    for batch in batches:
        if batch.frame is not None:
            seen.admit(batch.frame)
    assert len(seen) == 20
    async with open_lane(spec(sqs, queue, visibilityTimeout="3s"), batches[-1].position) as lane:
        # What it holds is withheld until its lease ends, if the process had no time to give it back.
        assert is_held_up(lane)
        again = await read_all(lane, 20)
        await held_up(lane, False)
    assert all(seen.admit(batch.frame).frame is None for batch in again if batch.frame is not None)
    assert sqs.left(queue) == (0, 0)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_message_that_is_held_for_long_stays_hidden(sqs: SqsServer) -> None:
    queue = sqs.queue()
    sqs.send(queue, numbers(0, 15))
    async with open_lane(spec(sqs, queue, visibilityTimeout="6s")) as lane:
        batches = await read_all(lane, 15, commit=False)
        # For longer than it would be hidden without being extended, nothing comes again.
        until_s = SystemClock().monotonic_s() + 8.0
        while SystemClock().monotonic_s() < until_s:
            assert (await lane.read(10, 1 << 20, 0.2)).frame is None
        assert sqs.left(queue) == (0, 15)
        await lane.committed(batches[-1].position)
    assert sqs.left(queue) == (0, 0)


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_no_more_is_held_than_was_said(sqs: SqsServer) -> None:
    queue = sqs.queue()
    sqs.send(queue, numbers(0, 120))
    async with open_lane(spec(sqs, queue, prefetch=30)) as lane:
        batches = await read_all(lane, 30, commit=False)
        batches += [await lane.read(100, 1 << 20, 0.3) for _ in range(3)]
        # Each poll in flight brings ten.
        assert 30 <= len(records_of(batches)) <= 30 + 10
        await lane.committed(batches[-1].position)
        await read_all(lane, 120 - len(by_id(batches)))
    assert sqs.left(queue) == (0, 0)


@pytest.mark.sweep
async def test_what_a_message_carries(sqs: SqsServer) -> None:
    queue = sqs.queue(fifo=True)
    attributes = {
        "text": {"DataType": "String", "StringValue": "é"},
        "number": {"DataType": "Number", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff"},
    }
    sqs.send(queue, ["ü".encode()], "g", MessageAttributes=attributes)
    async with open_lane(spec(sqs, queue)) as lane:
        (record,) = records_of(await read_all(lane, 1))
    assert record.value == "ü".encode()
    assert abs(record.event_time_us - SystemClock().now_us()) < 60_000_000
    assert dict(record.headers) == {
        "text": "é".encode(),
        "number": b"7",
        "raw": b"\xff",
        "SQS-Message-Group-Id": b"g",
        "SQS-Message-Deduplication-Id": b"g-0",
    }


@pytest.mark.sweep
@pytest.mark.guarantee("I9")
async def test_a_service_that_stands_still_is_waited_for(sqs: SqsServer) -> None:
    queue = sqs.queue()
    sqs.send(queue, numbers(0, 40))
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    found: list[bytes] = []

    async def read(lane: SourceLane) -> None:
        batch = await lane.read(30, 1 << 20, 0.1)
        new = seen.admit(batch.frame).frame if batch.frame is not None else None
        found.extend(new.values() if new is not None else ())
        await lane.committed(batch.position)

    async with asyncio.timeout(60), open_lane(spec(sqs, queue, timeout="1s", visibilityTimeout="3s")) as lane:
        while len(found) < 20:
            await read(lane)
        sqs.pause()
        try:
            until_s = SystemClock().monotonic_s() + 3.0
            while SystemClock().monotonic_s() < until_s:
                await read(lane)
        finally:
            sqs.go_on()
        sqs.send(queue, numbers(40, 20))
        while len(found) < 60:
            await read(lane)
    assert sorted(found) == sorted(numbers(0, 60))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"queueUrl": "/123456789012/no-such"}, codes.TARGET_UNFIT, "there is no queue"),
        ({"secretKey": "wr0ng"}, codes.TARGET_REFUSES, "refuses the request"),
        ({"endpoint": "http://127.0.0.1:1"}, codes.TARGET_AWAY, "cannot be used now"),
    ],
)
async def test_what_does_not_fit_is_said(sqs: SqsServer, change: dict[str, str], code: Code, said: str) -> None:
    if "queueUrl" in change:
        change = {"queueUrl": sqs.url + change["queueUrl"]}
    with raises(code, said) as stopped:
        async with open_lane({"sqs": {**spec(sqs, sqs.queue())["sqs"], **change}}):
            pass
    assert "wr0ng" not in str(stopped.value)


def online(path: Path, source: dict[str, Any], sink: dict[str, Any]) -> int:
    (path / "p.yaml").write_text(
        "apiVersion: millstream.io/v1alpha1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n  vertices:\n"
        f"  - name: in\n    source: {{sqs: {json.dumps(source)}}}\n"
        f"  - name: out\n    sink: {{sqs: {json.dumps(sink)}}}\n  edges:\n  - {{from: in, to: out}}\n"
    )
    return main(["validate", "--online", "-o", "json", str(path / "p.yaml")])


async def test_validate_online_says_what_is_wrong(
    sqs: SqsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queues = (sqs.queue(), f"{sqs.url}/123456789012/no")
    there, absent = ({**sqs.settings(queue), "timeout": "120s"} for queue in queues)
    # The command has a loop of its own.
    assert await asyncio.to_thread(online, tmp_path, absent, absent) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {(problem["code"], problem["path"]) for problem in problems} == {
        ("MS-2515", "spec.vertices[0].source.sqs.queueUrl"),
        ("MS-2515", "spec.vertices[1].sink.sqs.queueUrl"),
    }
    assert await asyncio.to_thread(online, tmp_path, there, there) == 0


@pytest.mark.sweep
async def test_the_page_shows_what_runs(sqs: SqsServer) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    (source,) = [vertex["source"] for (vertex,) in blocks if "source" in vertex]
    (sink,) = [vertex["sink"] for (vertex,) in blocks if "sink" in vertex]
    Source.model_validate(source)
    FallbackSink.model_validate(sink)
    queue = sqs.queue()
    sqs.send(queue, numbers(0, 3))
    async with open_lane({**source, "sqs": {**source["sqs"], **sqs.settings(queue)}}) as lane:
        assert len(await read_until(lane, lambda records: len(records) == 3)) == 3
