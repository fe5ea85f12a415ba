"""The Kafka source against a real broker: every record once from any position, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from millstream import codes
from millstream.errors import MillstreamError
from millstream.limits import KAFKA_LEADERS_EVERY_S
from millstream.record import Record
from millstream.spec.models import Source
from millstream_connectors.kafka.source import lane as lane_module
from millstream_connectors.kafka.source.lane import KafkaSourceLane
from millstream_connectors.kafka.source.runs import Split
from millstream_reader.source import SourceBatch, is_held_up
from tests.contract.sources.lanes import held_up, open_lane, read_to_end, read_until, values
from tests.support.errors import raises
from tests.support.kafka_server import PASSWORD, SCRAM, USER, KafkaServer
from tests.support.sizes import first


def spec(kafka: KafkaServer, topic: str, **settings: Any) -> dict[str, Any]:
    return {"kafka": {"brokers": [kafka.brokers], "topic": topic, **settings}}


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    """With 120 records in four partitions."""
    made = kafka.create(f"source-{uuid4()}", 4)
    for partition in range(4):
        texts = [b"%d-%d" % (partition, n) for n in range(30)]
        kafka.produce(made, texts, partition, key=b"k%d" % partition, timestamp=1_700_000_000_123, headers={"h": b"1"})
    return made


def whole(partitions: Sequence[int] = range(4)) -> list[bytes]:
    return sorted(b"%d-%d" % (partition, n) for partition in partitions for n in range(30))


def in_order(records: list[Record]) -> bool:
    """Each partition's records in theirs."""
    last: dict[bytes, int] = {}
    for value in values(records):
        partition, _, number = value.partition(b"-")
        if int(number) != last.get(partition, -1) + 1:
            return False
        last[partition] = int(number)
    return True


@pytest.mark.guarantee("I1")
async def test_reading_again_from_any_position_gives_the_rest_once(kafka: KafkaServer, topic: str) -> None:
    ending = spec(kafka, topic, stopAtEnd=True)
    async with open_lane(ending) as lane:
        assert lane.replayable
        records, _, batches = await read_to_end(lane, records_max=23)
    assert sorted(values(records)) == whole()
    assert in_order(records)
    assert {(r.event_time_us, r.keys[0][:1], r.headers["h"]) for r in records} == {(1_700_000_000_123_000, "k", b"1")}
    # What comes later is not part of it.
    kafka.produce(topic, [b"0-30"], 0)
    done: list[bytes] = []
    for batch in batches:
        done += values(list(batch.frame.to_records())) if batch.frame is not None else []
        async with open_lane(ending, batch.position) as lane:
            rest, _, _ = await read_to_end(lane, records_max=31)
            assert sorted(done + values(rest)) == whole()
            last = await lane.read(10, 1000, 0.01)
            assert (last.frame, last.ended) == (None, True)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_what_comes_again_because_offsets_are_assigned_again_counts_once(kafka: KafkaServer, topic: str) -> None:
    async with open_lane(spec(kafka, topic, stopAtEnd=True)) as lane:
        assert isinstance(lane, KafkaSourceLane)
        # As the lane does when its broker says that an offset is out of range, and then that it is not.
        lane._waiting.extend(await lane._thread.run(lane._poll, 50, 10.0))
        assert lane._waiting
        await lane._thread.run(lane._assign)
        records, _, _ = await read_to_end(lane)
    assert sorted(values(records)) == whole()
    assert in_order(records)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
@pytest.mark.parametrize("mechanism", first(1, SCRAM))
async def test_records_come_in_encrypted_with_a_password_that_is_not_sent(
    kafka: KafkaServer, topic: str, tmp_path: Path, mechanism: str
) -> None:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    sasl = {"mechanism": mechanism, "user": USER, "password": {"file": str(secret)}}
    safe = {"brokers": [kafka.safe_brokers], "sasl": sasl, "tls": {"ca": {"file": str(kafka.certificate)}}}
    async with open_lane(spec(kafka, topic, stopAtEnd=True, **safe)) as lane:
        records, _, _ = await read_to_end(lane)
    assert sorted(values(records)) == whole()
    secret.write_text("wrong")
    with raises(codes.TARGET_REFUSES) as refused:
        async with open_lane(spec(kafka, topic, **safe)):
            pass
    assert "wrong" not in str(refused.value)


async def test_lanes_share_the_partitions_and_limits_are_kept(kafka: KafkaServer, topic: str) -> None:
    parts: list[bytes] = []
    for partition in range(3):
        async with open_lane(spec(kafka, topic, stopAtEnd=True), partition=partition, partitions=3) as lane:
            records, _, _ = await read_to_end(lane, 7, 300)
            parts += values(records)
    assert sorted(parts) == whole()


async def test_what_was_not_committed_is_not_read_and_the_end_is_found_behind_it(kafka: KafkaServer) -> None:
    topic = kafka.create(f"source-{uuid4()}")
    producer = Producer({"bootstrap.servers": kafka.brokers, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"a", producer.commit_transaction), (b"b", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        end(30)
    async with open_lane(spec(kafka, topic)) as lane:
        await read_until(lane, lambda records: values(records) == [b"a"])
    async with open_lane(spec(kafka, topic, stopAtEnd=True)) as lane:
        records, _, _ = await read_to_end(lane)
    assert values(records) == [b"a"]


async def test_a_start_is_decided_once_and_new_partitions_are_read_from_their_beginning(
    kafka: KafkaServer, topic: str
) -> None:
    latest = spec(kafka, topic, start="latest")
    async with open_lane(latest) as lane:
        first = await lane.read(10, 1 << 20, 0.05)
        assert first.frame is None
    kafka.produce(topic, [b"0-30"], 0)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    kafka.produce(topic, [b"4-0"], 4)
    async with open_lane(latest, first.position) as lane:
        found = await read_until(lane, lambda records: len(records) >= 2)
    assert sorted(values(found)) == [b"0-30", b"4-0"]
    later = spec(kafka, topic, start="2030-01-01T00:00:00Z")
    async with open_lane(later) as lane:
        assert (await lane.read(10, 1 << 20, 0.05)).frame is None
    earlier = spec(kafka, topic, start="2023-01-01T00:00:00Z", stopAtEnd=True)
    async with open_lane(earlier) as lane:
        records, _, _ = await read_to_end(lane)
    assert len(records) == 122


@pytest.mark.sweep
async def test_topics_by_a_pattern_and_those_that_come_later(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "KAFKA_TOPICS_REREAD_S", 0.0)
    prefix = f"like-{uuid4()}"
    pattern = spec(kafka, f"^{prefix}-[0-9]$", start="latest")
    async with open_lane(pattern) as lane:
        first = await lane.read(10, 1 << 20, 0.05)
        assert first.frame is None
        for name in ("1", "x", "2"):
            kafka.produce(kafka.create(f"{prefix}-{name}"), [name.encode()])
        batches = [first]
        records = await read_until(lane, lambda records: len(records) == 2, batches)
    assert sorted(values(records)) == [b"1", b"2"]
    kafka.produce(f"{prefix}-1", [b"3"])
    async with open_lane(pattern, batches[-1].position) as lane:
        assert values(await read_until(lane, lambda records: len(records) == 1)) == [b"3"]
    async with open_lane(spec(kafka, f"^{prefix}-,{prefix}-1", stopAtEnd=True)) as lane:
        records, _, _ = await read_to_end(lane)
    assert sorted(values(records)) == [b"1", b"2", b"3", b"x"]
    with pytest.raises(ValueError, match="is not a regular expression"):
        Source.model_validate(spec(kafka, "^("))


async def test_records_that_were_removed_are_damage_and_named(kafka: KafkaServer, topic: str) -> None:
    async with open_lane(spec(kafka, topic, start="earliest")) as lane:
        position = (await lane.read(1, 1 << 20, 0.5)).position
    admin = kafka.admin()
    for removed in admin.delete_records([TopicPartition(topic, partition, 29) for partition in range(4)]).values():
        removed.result(30)
    with raises(codes.SOURCE_RECORDS_REMOVED, match="the first offset left is 29"):
        async with open_lane(spec(kafka, topic), position):
            pass


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("while_open", [True, False])
async def test_a_topic_that_was_recreated_is_not_continued(kafka: KafkaServer, while_open: bool) -> None:
    topic = kafka.create(f"again-{uuid4()}")
    kafka.produce(topic, [b"old-%d" % n for n in range(3)])

    def recreate() -> None:
        admin = kafka.admin()
        admin.delete_topics([topic])[topic].result(30)
        kafka.create(topic)
        # More than the lane has read of the former one.
        kafka.produce(topic, [b"new-%d" % n for n in range(6)])

    batches: list[SourceBatch] = []
    async with open_lane(spec(kafka, topic, start="earliest")) as lane:
        await read_until(lane, lambda records: len(records) == 3, batches)
        if while_open:
            recreate()
            # The lane may look while there is no such topic.
            stops = (codes.SOURCE_PAST_REPLACED, codes.TARGET_UNFIT)
            with pytest.raises(MillstreamError, check=lambda error: error.code in stops):
                await read_until(lane, bool)
    if not while_open:
        recreate()
    with raises(codes.SOURCE_PAST_REPLACED, match="was deleted and recreated"):
        async with open_lane(spec(kafka, topic), batches[-1].position):
            pass
    # Positions of earlier versions have no ids.
    former = {name: value for name, value in json.loads(batches[-1].position).items() if name != "ids"}
    async with open_lane(spec(kafka, topic), json.dumps(former).encode()) as lane:
        assert values(await read_until(lane, lambda records: len(records) == 3)) == [b"new-3", b"new-4", b"new-5"]


async def test_a_record_with_a_time_outside_the_calendar_is_named_and_the_others_are_read(kafka: KafkaServer) -> None:
    topic = kafka.create(f"times-{uuid4()}", 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    for number, time_ms in enumerate((1_700_000_000_123, 1_700_000_000_123_000_000, 2**62, 1_700_000_000_124)):
        kafka.produce(topic, [b"%d" % number], timestamp=time_ms)
    async with open_lane(spec(kafka, topic, stopAtEnd=True)) as lane:
        records, invalid, _ = await read_to_end(lane)
    assert [(r.value, r.event_time_us) for r in records] == [
        (b"0", 1_700_000_000_123_000),
        (b"3", 1_700_000_000_124_000),
    ]
    assert [(one.value, one.place) for one in invalid] == [
        (b"1", f"{topic}/0 at offset 1"),
        (b"2", f"{topic}/0 at offset 2"),
    ]
    assert "In nanoseconds it is 2023-11-14T22:13:20Z" in invalid[0].reason


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_broker_that_is_killed_is_waited_for(kafka: KafkaServer, topic: str) -> None:
    async with asyncio.timeout(100), open_lane(spec(kafka, topic)) as lane:
        batches: list[SourceBatch] = []
        await read_until(lane, lambda records: len(records) >= 60, batches)
        kafka.kill()
        # What the client has fetched before is still read.
        await held_up(lane, True, batches)
        for _ in range(3):
            assert (await lane.read(30, 1 << 20, KAFKA_LEADERS_EVERY_S)).frame is None
            assert is_held_up(lane)
        # It lives as long as the thread that starts it, so that is this one.
        kafka.start()
        await held_up(lane, False)
        kafka.produce(topic, [b"0-30"], 0)
        found = await read_until(lane, lambda records: len(records) >= 121, batches)
    assert sorted(values(found)) == sorted([*whole(), b"0-30"])
    assert in_order(found)


@pytest.mark.guarantee("I1")
async def test_what_a_read_had_when_its_broker_no_longer_answered_comes_again(
    kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(100), open_lane(spec(kafka, topic, stopAtEnd=True, timeout="3s")) as lane:
        assert isinstance(lane, KafkaSourceLane)
        check = lane._check

        def check_of_a_broker_that_is_stopped(split: Split, offset: int) -> None:
            kafka.pause()
            check(split, offset)

        # The broker says that the offset of one partition is out of range. By then there are records of others.
        wrong = [TopicPartition(topic, partition, 1000 if partition == 0 else 0) for partition in range(4)]
        await lane._thread.run(lane._client.assign, wrong)
        records: list[Record] = []
        with monkeypatch.context() as patch:
            patch.setattr(lane, "_check", check_of_a_broker_that_is_stopped)
            try:
                with raises(codes.TARGET_AWAY):
                    while True:
                        batch = await lane.read(30, 1 << 20, 1.0)
                        records += batch.frame.to_records() if batch.frame is not None else []
            finally:
                kafka.go_on()
        rest, _, _ = await read_to_end(lane)
    assert sorted(values([*records, *rest])) == whole()
    assert in_order([*records, *rest])


@pytest.mark.sweep
async def test_a_group_follows_and_is_not_read(kafka: KafkaServer, topic: str) -> None:
    group = f"group-{uuid4()}"
    async with open_lane(spec(kafka, topic, consumerGroup=group, stopAtEnd=True)) as lane:
        _, _, batches = await read_to_end(lane)
        await lane.committed(batches[-1].position)
        assert lane.pending() == 0
    consumer = Consumer({"bootstrap.servers": kafka.brokers, "group.id": group})
    places = [TopicPartition(topic, partition) for partition in range(4)]
    try:
        deadline_s = time.monotonic() + 30
        while [found.offset for found in consumer.committed(places, 10)] != [30] * 4:
            assert time.monotonic() < deadline_s
    finally:
        consumer.close()
    async with open_lane(spec(kafka, topic, consumerGroup=group, stopAtEnd=True)) as lane:
        records, _, _ = await read_to_end(lane)
    assert len(records) == 120


async def test_what_only_the_user_can_put_right_is_said_at_once(kafka: KafkaServer) -> None:
    with raises(codes.TARGET_UNFIT, match="no such topic"):
        async with open_lane(spec(kafka, "nowhere")):
            pass
    with raises(codes.TARGET_AWAY, match="did not answer within"):
        async with open_lane({"kafka": {"brokers": ["127.0.0.1:1"], "topic": "t", "timeout": "1500ms"}}):
            pass
