"""The `pubsub` sink on an emulated service: what a message carries, its order, and what Pub/Sub cannot have."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from millstream import codes
from millstream.clock import SystemClock
from millstream.errors import RetryLaterError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.pubsub.sink import lane as module
from millstream_connectors.pubsub.sink.lane import REFUSED
from millstream_connectors.pubsub.sink.messages import convert, ordering_key, requests_of
from millstream_connectors.shared.carried import HEADER
from millstream_reader.ids import SeenIds
from tests.contract.sinks.file_target import sink_owner
from tests.contract.sources.lanes import open_lane, read_until
from tests.support.errors import raises
from tests.support.pubsub_server import PubsubServer, Queue
from tests.unit.writer.sink_frames import sink_frame

PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "pubsub.md"


def spec(server: PubsubServer, queue: Queue, **settings: Any) -> FallbackSink:
    return FallbackSink.model_validate({"pubsub": {**server.sink(queue), **settings}})


async def test_what_a_message_carries(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    frame = sink_frame(
        [b"\xff", b""], 1, keys=[[b"a", "ü".encode()], []], headers=[{"h": "é".encode(), "millstream-id": b"x"}, {}]
    )
    async with open_sink(spec(pubsub, queue), sink_owner(1)) as sink:
        assert not (await sink.write([frame], Position(1))).failures
    first, second = sorted(pubsub.taken(queue), key=lambda message: message.data, reverse=True)
    assert (first.data, second.data) == (b"\xff", b"")
    assert dict(first.attributes) == {
        "h": "é",
        "Millstream-Keys": '["a", "\\u00fc"]',
        "Millstream-Event-Time": str(frame.frame.event_times_us()[0] // 1000),
        "Millstream-Id": first.attributes["Millstream-Id"],
    }
    assert set(second.attributes) == {"Millstream-Event-Time", "Millstream-Id"}
    assert first.ordering_key == second.ordering_key == ""


@pytest.mark.sweep
@pytest.mark.guarantee("I4")
async def test_messages_with_the_same_keys_stay_in_order(pubsub: PubsubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGES_MAX", 3)
    queue = pubsub.queue()
    keys = [[b"a"], [b"b"], [], [b"a", b"b"]] * 10
    frame = sink_frame([b"%d" % n for n in range(40)], 1, keys=keys)
    async with open_sink(spec(pubsub, queue, orderingKeySource="key"), sink_owner(1)) as sink:
        assert not (await sink.write([frame], Position(1))).failures
    # The emulator numbers messages as they come.
    found = sorted(pubsub.taken(queue), key=lambda message: int(message.message_id[1:]))
    for key, first in (("a", 0), ("b", 1), ('["a", "b"]', 3)):
        assert [int(message.data) for message in found if message.ordering_key == key] == [*range(first, 40, 4)]
    assert len([message for message in found if not message.ordering_key]) == 10


@given(st.lists(st.tuples(st.sampled_from([b"", b"a", b"b"]), st.integers(0, 300)), min_size=1, max_size=30))
def test_requests_are_within_their_limits(records: list[tuple[bytes, int]]) -> None:
    frame = sink_frame([bytes(size) for _, size in records], 1, keys=[[key] if key else [] for key, _ in records])
    made, failures = convert(frame, "run", ordered=True)
    assert not failures
    chains = requests_of(made, 4, 700)
    for chain in chains:
        assert len({put.message.ordering_key for request in chain for put in request}) == 1
        assert all(sum(put.size for put in request) <= 700 and len(request) <= 4 for request in chain)
        rows = [put.row for request in chain for put in request]
        assert rows == sorted(rows)
    assert sorted(put.row for chain in chains for request in chain for put in request) == [*range(len(records))]
    # Those of a key follow each other.
    keys = [chain[0][0].message.ordering_key for chain in chains]
    assert len({key for key in keys if key}) == len([key for key in keys if key])


@pytest.mark.sweep
@pytest.mark.guarantee("I2")
async def test_a_message_that_the_service_refuses_fails_alone(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    headers = [{"schema": b"misfit"} if n in (0, 13, 14) else {} for n in range(25)]
    async with open_sink(spec(pubsub, queue), sink_owner(1)) as sink:
        frame = sink_frame([b"%d" % n for n in range(25)], 1, headers=headers)
        (failures,) = (await sink.write([frame], Position(1))).failures
    assert [(failure.index, failure.reason) for failure in failures] == [(n, REFUSED) for n in (0, 13, 14)]
    assert not any(failure.retryable for failure in failures)
    found = sorted(int(message.data) for message in pubsub.taken(queue))
    assert found == [n for n in range(25) if n not in (0, 13, 14)]


def test_what_becomes_an_ordering_key() -> None:
    assert ordering_key([]) == ""
    assert ordering_key([b"a"]) == "a"
    assert ordering_key([b""]) == '[""]'
    assert ordering_key([b"a", b"b"]) == '["a", "b"]'
    assert ordering_key([b"\xff"]) == '["\\ufffd"]'
    assert ordering_key([b"x" * 1024]) == "x" * 1024
    assert len(ordering_key([b"x" * 1025])) == 64


async def test_records_that_pubsub_cannot_have_fail_alone(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    headers: list[dict[str, bytes]] = [
        {"": b"1"},
        {"google": b"1"},
        {"n" * 257: b"1"},
        {"raw": b"\xff"},
        {"long": b"x" * 1025},
        {f"h{n}": b"1" for n in range(99)},
        {"long": b"x" * 1024},
        {f"h{n}": b"1" for n in range(98)},
    ]
    frame = sink_frame([b"%d" % n for n in range(9)], 1, headers=[*headers, {}], keys=[*([[]] * 8), [b"k" * 1021]])
    async with open_sink(spec(pubsub, queue), sink_owner(1)) as sink:
        (failures,) = (await sink.write([frame], Position(1))).failures
    assert [(failure.index, failure.reason) for failure in failures] == [(n, HEADER) for n in (0, 1, 2, 3, 4, 5, 8)]
    assert not any(failure.retryable for failure in failures)
    assert sorted(message.data for message in pubsub.taken(queue)) == [b"6", b"7"]


@pytest.mark.guarantee("I1")
async def test_what_is_published_again_is_left_out_by_the_source(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    frame = sink_frame([b"%d" % n for n in range(20)], 1)
    for _ in range(2):
        async with open_sink(spec(pubsub, queue), sink_owner(1)) as sink:
            assert not (await sink.write([frame], Position(1))).failures
    seen = SeenIds(ttl_s=3600, ids_max=5000, clock=SystemClock())
    batches: list[Any] = []
    source = {**pubsub.source(queue), "idAttribute": "Millstream-Id"}
    async with open_lane({"pubsub": source}) as lane:
        await read_until(lane, lambda records: len(records) == 40, batches)
    new = [seen.admit(batch.frame).frame for batch in batches if batch.frame is not None]
    found = [value for part in new if part is not None for value in part.values()]
    assert sorted(found) == sorted(b"%d" % n for n in range(20))


@pytest.mark.sweep
@pytest.mark.guarantee("I9")
async def test_a_service_that_stands_still_is_waited_for(pubsub: PubsubServer) -> None:
    queue = pubsub.queue()
    frame = sink_frame([b"a"], 1)
    async with open_sink(spec(pubsub, queue, timeout="500ms"), sink_owner(1)) as sink:
        pubsub.pause()
        try:
            with pytest.raises(RetryLaterError) as stopped:
                await sink.write([frame], Position(1))
        finally:
            pubsub.go_on()
        assert stopped.value.code is codes.TARGET_AWAY
        async with asyncio.timeout(60):
            while True:
                try:
                    await sink.write([frame], Position(1))
                    break
                except RetryLaterError:
                    pass
    # The first one may have arrived, too.
    assert len({message.attributes["Millstream-Id"] for message in pubsub.taken(queue)}) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("change", [{"topic": "no-such"}, {"project": "another"}])
async def test_what_does_not_fit_is_said(pubsub: PubsubServer, change: dict[str, str]) -> None:
    with raises(codes.TARGET_UNFIT, "not in the project"):
        async with open_sink(spec(pubsub, pubsub.queue(), **change), sink_owner(1)):
            pass


@pytest.mark.sweep
async def test_the_page_shows_what_runs(pubsub: PubsubServer) -> None:
    blocks = [
        YAML(typ="safe", pure=True).load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    (sink,) = [vertex["sink"] for (vertex,) in blocks if "sink" in vertex]
    FallbackSink.model_validate(sink)
    queue = pubsub.queue()
    settings = {name: value for name, value in sink["pubsub"].items() if name != "credentials"}
    written = FallbackSink.model_validate({**sink, "pubsub": {**settings, **pubsub.sink(queue)}})
    async with open_sink(written, sink_owner(1)) as lane:
        assert not (await lane.write([sink_frame([b"a"], 1)], Position(1))).failures
    assert [message.data for message in pubsub.taken(queue)] == [b"a"]
