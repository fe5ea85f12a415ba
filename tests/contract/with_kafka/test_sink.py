"""The Kafka sink against a real broker: once, whatever dies, and what it says where it cannot be so."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream import codes
from millstream.clock import SystemClock
from millstream.durable import CRASH_AT
from millstream.errors import RetryLaterError
from millstream.frame import frame_of_records
from millstream.limits import KAFKA_LOOK_S, ONLINE_CHECK_TIMEOUT_S
from millstream.ports import free_ports
from millstream.record import SOURCE_INPUT, LaneId, Position, Record
from millstream.spec.models import FallbackSink, Source
from millstream.wire.certificates import make_certificate
from millstream_connectors.opening_sinks import open_sink
from millstream_connectors.opening_sources import open_source
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane
from tests.contract.sinks.file_target import sink_owner, value_of
from tests.contract.sinks.validating import validate_sink
from tests.contract.sources.lanes import read_to_end
from tests.contract.with_kafka.sink_process import FRAME_RECORDS
from tests.support.errors import raises
from tests.support.kafka_server import PASSWORD, SCRAM, USER, KafkaServer
from tests.support.sizes import first, sized
from tests.support.token_endpoint import CLIENT, SECRET, TokenEndpoint, open_token_endpoint
from tests.unit.writer.sink_frames import sink_frame

REPOSITORY = Path(__file__).parents[3]
FRAMES = 30
PROCESS_TIMEOUT_S = 180
KILLS = sized(1, 3)
LANE = LaneId("in", SOURCE_INPUT, 0)


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    return kafka.create(f"sink-{uuid4()}", 2)


def opened(kafka: KafkaServer, topic: str, owner: SinkOwner, **settings: Any) -> AbstractAsyncContextManager[SinkLane]:
    written = {"brokers": [kafka.brokers], "topic": topic, **settings}
    return open_sink(FallbackSink.model_validate({"kafka": written}), owner)


def frame(number: int) -> SinkFrame:
    first = (number - 1) * FRAME_RECORDS
    return sink_frame([value_of(n) for n in range(first, first + FRAME_RECORDS)], number)


def numbers(kafka: KafkaServer, topic: str) -> list[int]:
    """In order: a topic's partitions have none among them."""
    return sorted(json.loads(value)["n"] for value in kafka.values(topic))


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_has_no_effect(kafka: KafkaServer, topic: str) -> None:
    async with opened(kafka, topic, sink_owner(1)) as older:
        await older.write([frame(1)], Position(1))
        async with opened(kafka, topic, sink_owner(2)) as newer:
            assert newer.durable == Position(1)
            with raises(codes.OUTPUT_TAKEN_OVER):
                await older.write([frame(2)], Position(2))
            await newer.write([frame(1), frame(2)], Position(2))
            # One that resumes late is refused, and the owner goes on.
            with raises(codes.OUTPUT_TAKEN_OVER):
                async with opened(kafka, topic, sink_owner(1)):
                    pass
            await newer.write([frame(3)], Position(3))
    assert numbers(kafka, topic) == list(range(30))


@contextmanager
def _process(kafka: KafkaServer, topic: str, epoch: int, point: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.contract.with_kafka.sink_process", kafka.brokers, topic]
    environment = {**os.environ, **({CRASH_AT: point} if point else {})}
    with subprocess.Popen(
        [*command, str(epoch), str(FRAMES)], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.guarantee("I1")
def test_killed_at_every_step_and_anywhere_each_record_is_there_once(kafka: KafkaServer, topic: str) -> None:
    points = [f"kafka_sink.{step}:{when}" for step in ("fence", "commit#4") for when in ("before", "after")]
    points = [point.replace("#4:before", ":before#4").replace("#4:after", ":after#4") for point in points]
    rng = random.Random(17)
    epoch = 0
    for point in points:
        epoch += 1
        with _process(kafka, topic, epoch, point) as process:
            out, _ = process.communicate(timeout=PROCESS_TIMEOUT_S)
        assert process.returncode == -9, (point, out)
    for _ in range(KILLS):
        epoch += 1
        with _process(kafka, topic, epoch) as process:
            assert process.stdout is not None
            for line in _lines(process):
                if line == "open" and rng.random() < 0.5:
                    break
                if line.isdigit() and rng.random() < 0.1:
                    break
    with _process(kafka, topic, epoch + 1) as last:
        out, _ = last.communicate(timeout=PROCESS_TIMEOUT_S)
    assert (last.returncode, out.split()[-1]) == (0, str(FRAMES))
    assert numbers(kafka, topic) == list(range(FRAMES * FRAME_RECORDS))


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return (line.strip() for line in process.stdout)


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_broker_that_is_killed_costs_no_record_and_repeats_none(kafka: KafkaServer, topic: str) -> None:
    async with asyncio.timeout(100), opened(kafka, topic, sink_owner(1)) as lane:
        begun = asyncio.Event()

        async def write() -> None:
            for number in range(1, 60):
                await _until_taken(lane, frame(number), Position(number))
                if number == 10:
                    begun.set()

        async with asyncio.TaskGroup() as writing:
            writing.create_task(write())
            await begun.wait()
            # It lives as long as the thread that starts it, so that is this one. The lane has a thread of its own.
            kafka.restart()
    assert numbers(kafka, topic) == list(range(59 * FRAME_RECORDS))


async def _until_taken(lane: SinkLane, item: SinkFrame, end: Position) -> None:
    """As the delivery does."""
    while True:
        try:
            await lane.write([item], end)
            return
        except RetryLaterError:
            assert lane.durable != end


async def test_a_topic_of_another_run_is_left_alone(kafka: KafkaServer, topic: str) -> None:
    async with opened(kafka, topic, sink_owner(1)) as lane:
        await lane.write([frame(1)], Position(1))
        with raises(codes.TARGET_OF_ANOTHER_RUN, match="--reset-offsets"):
            async with opened(kafka, topic, sink_owner(9, ledger_id="second")):
                pass
        # Nothing was fenced.
        await lane.write([frame(2)], Position(2))
    _set_by_hand(kafka, topic)
    async with opened(kafka, topic, sink_owner(1, ledger_id="second")) as lane:
        await lane.write([frame(1)], Position(1))
    assert numbers(kafka, topic) == sorted([*range(20), *range(10)])


def _set_by_hand(kafka: KafkaServer, topic: str) -> None:
    """As kafka-consumer-groups.sh does with --reset-offsets."""
    group = f"millstream.p.out.in-out.0.{topic}"
    consumer = Consumer({"bootstrap.servers": kafka.brokers, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


async def test_a_position_that_is_gone_stops_the_lane_until_it_is_set_by_hand(kafka: KafkaServer, topic: str) -> None:
    async with opened(kafka, topic, sink_owner(1, start=Position(5))) as lane:
        # Nothing was written to the topic before, so nothing can be lost.
        await lane.write([frame(6)], Position(6))
    group = f"millstream.p.out.in-out.0.{topic}"
    # Its answers come while it is there.
    admin = kafka.admin()
    admin.delete_consumer_groups([group])[group].result(30)
    with raises(codes.TARGET_POSITION_LOST, match="--reset-offsets"):
        async with opened(kafka, topic, sink_owner(2, start=Position(6))):
            pass
    _set_by_hand(kafka, topic)
    async with opened(kafka, topic, sink_owner(3, start=Position(6))) as lane:
        await lane.write([frame(7)], Position(7))
    assert numbers(kafka, topic) == list(range(50, 70))


async def test_a_topic_that_is_ahead_of_the_buffer_stops_the_lane(kafka: KafkaServer, topic: str) -> None:
    async def other(sequence: int, name: str) -> str:
        return f"another frame at {sequence} than {name}"

    async with opened(kafka, topic, sink_owner(1)) as lane:
        await lane.write([replace(frame(1), name="first")], Position(1))
    with raises(codes.SINK_AHEAD, match="another frame at 1 than first"):
        async with opened(kafka, topic, sink_owner(2, held_instead=other)):
            pass


MURMUR2 = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
"""From the tests of Kafka's Java client."""


async def test_keys_headers_and_times_are_kafkas_and_partitions_those_of_java(kafka: KafkaServer) -> None:
    topic = kafka.create(f"sink-{uuid4()}", 4)
    records = [Record(key.encode(), 1_700_000_000_123_456, (key,), {"h": b"\x00"}) for key in MURMUR2]
    records.append(Record(b"two", 5, ("a", "ü"), {}))
    item = replace(sink_frame([b""], 1), frame=frame_of_records(records, ingest_time_us=1))
    async with opened(kafka, topic, sink_owner(1), compression="zstd") as lane:
        await lane.write([item], Position(1))
    found = {message.value(): message for message in kafka.read(topic)}
    for key, hashed in MURMUR2.items():
        message = found[key.encode()]
        assert message.key() == key.encode()
        assert message.partition() == (hashed & 0x7FFFFFFF) % 4
        assert message.timestamp()[1] == 1_700_000_000_123
        assert message.headers() == [("h", b"\x00")]
    assert found[b"two"].key() == '["a","ü"]'.encode()


@pytest.mark.sweep
@pytest.mark.parametrize("former", [False, True], ids=["now", "stored by an earlier version"])
async def test_a_copy_of_a_topic_has_the_same_keys_byte_for_byte(kafka: KafkaServer, former: bool) -> None:
    topic, copy = (kafka.create(f"{name}-{uuid4()}") for name in ("keys", "copy"))
    keys = [(200).to_bytes(8, "big"), b"00000000000000c8", (5).to_bytes(8, "big"), b"", b"\\x00c8", "\u00fc".encode()]
    for number, key in enumerate(keys):
        kafka.produce(topic, [b"%d" % number], key=key)
    source = Source.model_validate({"kafka": {"brokers": [kafka.brokers], "topic": topic, "stopAtEnd": True}})
    opening = open_source(source, LANE, 1, b"", base_dir=Path(), clock=SystemClock(), former_keys=former)
    async with opening as lane, opened(kafka, copy, sink_owner(1)) as sink:
        records, _, batches = await read_to_end(lane)
        frames = [batch.frame for batch in batches if batch.frame is not None]
        for number, one in enumerate(frames, 1):
            await sink.write([replace(sink_frame([b""], number), frame=one)], Position(number))
    found = [message.key() for message in sorted(kafka.read(copy), key=lambda message: message.value() or b"")]
    if former:
        assert (found[0], records[0].keys) == (found[1], records[1].keys)
    else:
        assert found == keys
        assert len({record.keys for record in records}) == len(keys)


async def test_a_record_that_is_too_large_is_refused_alone_and_every_time(kafka: KafkaServer) -> None:
    topic = kafka.create(f"sink-{uuid4()}", 1, {"max.message.bytes": "2000"})
    item = sink_frame([b"a", b"x" * 3000, b"b"], 1)
    for epoch in (1, 2):
        async with opened(kafka, topic, sink_owner(epoch)) as lane:
            result = await lane.write([item], Position(1))
            ((failure,),) = result.failures
            assert (failure.index, failure.retryable) == (1, False)
            assert "max.message.bytes is 2000" in failure.detail
            await lane.flush()
    assert kafka.values(topic) == [b"a", b"b"]


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_record_that_a_lane_stopped_over_comes_in_its_place_when_the_topic_takes_it(kafka: KafkaServer) -> None:
    topic = kafka.create(f"sink-{uuid4()}", 1, {"max.message.bytes": "2000"})
    large = b"x" * 3000
    item = sink_frame([b"a", large, b"b"], 1)
    async with opened(kafka, topic, sink_owner(1)) as lane:
        assert (await lane.write([item], Position(1))).failures
        # The delivery stops here: what is behind that record is not written, nor passed.
        assert lane.durable < Position(1)  # type: ignore[operator]  # it has a position
    assert kafka.values(topic) == [b"a"]
    kafka.configure(topic, "max.message.bytes", "100000")
    async with opened(kafka, topic, sink_owner(2)) as lane:
        assert not (await lane.write([item, sink_frame([b"c"], 2)], Position(2))).failures
        assert lane.durable == Position(2)
    assert kafka.values(topic) == [b"a", large, b"b", b"c"]


async def test_without_transactions_each_record_is_there(kafka: KafkaServer, topic: str) -> None:
    async with opened(kafka, topic, sink_owner(1), transactions=False) as lane:
        assert lane.durable is None
        await lane.write([frame(1), frame(2)], Position(2))
        assert numbers(kafka, topic) == list(range(20))


async def test_what_only_the_user_can_put_right_is_said_at_once(kafka: KafkaServer, topic: str) -> None:
    with raises(codes.TARGET_UNFIT, match="no such topic"):
        async with opened(kafka, "nowhere", sink_owner(1)):
            pass
    with raises(codes.TARGET_AWAY, match=r"Kafka at 127\.0\.0\.1:1 did not answer within 1\.5 s"):
        async with opened(kafka, topic, sink_owner(1), brokers=["127.0.0.1:1"], timeout="1500ms"):
            pass
    with raises(codes.CONNECTOR_SETTINGS, match="librdkafka"):
        async with opened(kafka, topic, sink_owner(1), config={"no.such.setting": "1"}):
            pass


def test_validate_online_says_why_no_broker_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert KAFKA_LOOK_S < ONLINE_CHECK_TIMEOUT_S
    monkeypatch.setattr("millstream_connectors.kafka.client.KAFKA_LOOK_S", 1.0)
    port = free_ports(1)
    assert validate_sink("kafka", {"brokers": [f"127.0.0.1:{port}"], "topic": "orders"}, tmp_path) == 2
    said = capsys.readouterr()
    assert f"Kafka at 127.0.0.1:{port} did not answer within 1 s" in said.out + said.err
    assert "Connection refused" in said.out + said.err
    # It is said once.
    assert caplog.messages == []


async def test_a_password_is_needed_where_the_brokers_ask_for_one(
    kafka: KafkaServer, topic: str, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    sasl = {"mechanism": "PLAIN", "user": USER, "password": {"file": str(secret)}}
    secret.write_text("wrong")
    with raises(codes.TARGET_REFUSES) as refused:
        async with opened(kafka, topic, sink_owner(1), brokers=[kafka.sasl_brokers], sasl=sasl):
            pass
    assert "wrong" not in str(refused.value)
    secret.write_text(PASSWORD + "\n")
    async with opened(kafka, topic, sink_owner(1), sasl=sasl, brokers=[kafka.sasl_brokers]) as lane:
        assert lane.durable == Position(0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
@pytest.mark.parametrize("mechanism", first(1, SCRAM))
async def test_records_go_out_encrypted_with_a_password_that_is_not_sent(
    kafka: KafkaServer, topic: str, tmp_path: Path, mechanism: str
) -> None:
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    sasl = {"mechanism": mechanism, "user": USER, "password": {"file": str(secret)}}
    safe = {"brokers": [kafka.safe_brokers], "sasl": sasl, "tls": {"ca": {"file": str(kafka.certificate)}}}
    async with opened(kafka, topic, sink_owner(1), **safe) as lane:
        await lane.write([frame(1)], Position(1))
        assert lane.durable == Position(1)
    assert numbers(kafka, topic) == list(range(FRAME_RECORDS))
    # An authority that the certificate is not from.
    with raises(codes.TARGET_REFUSES, match="certificate verify failed"):
        async with opened(kafka, topic, sink_owner(2), **safe | {"tls": {}}):
            pass
    secret.write_text("wrong")
    with raises(codes.TARGET_REFUSES) as refused:
        async with opened(kafka, topic, sink_owner(2), **safe):
            pass
    assert "wrong" not in str(refused.value)


def _client(endpoint: TokenEndpoint, secret: Path, **more: Any) -> dict[str, Any]:
    client = {"clientId": CLIENT, "clientSecret": {"file": str(secret)}, "tokenEndpointUrl": endpoint.url, **more}
    return {"mechanism": "OAUTHBEARER", "oauthbearer": client}


@pytest.mark.sweep
async def test_a_client_gets_tokens_by_oauth(kafka: KafkaServer, topic: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with open_token_endpoint() as endpoint:
        sasl = _client(endpoint, secret, scope="orders payments", extensions={"logicalCluster": "lkc-1"})
        async with opened(kafka, topic, sink_owner(1), brokers=[kafka.sasl_brokers], sasl=sasl) as lane:
            await lane.write([frame(1)], Position(1))
            assert lane.durable == Position(1)
        assert set(endpoint.scopes) == {"orders payments"}
        assert numbers(kafka, topic) == list(range(FRAME_RECORDS))
        # With a secret that is refused, and by a server that repeats it.
        secret.write_text("wr0ng")
        with raises(
            codes.TARGET_REFUSES, match="the token endpoint refuses the client \\(invalid_client\\)"
        ) as refused:
            async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl):
                pass
        assert "wr0ng" not in str(refused.value)
        secret.write_text(SECRET)
        endpoint.answer = (200, "<html>welcome</html>")
        with raises(codes.TARGET_REFUSES, match="answers with something that is not a token"):
            async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl):
                pass
        # A proxy before an endpoint that is down; it repeats what it got, too.
        endpoint.answer = (404, f"Could not authenticate {SECRET}")
        with raises(codes.TARGET_AWAY, match="no token from the token endpoint") as away:
            async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl, timeout="5s"):
                pass
        assert SECRET not in str(away.value)
        # Without a user, librdkafka does not send the token. The brokers refuse one that is not valid yet.
        endpoint.answer = (200, json.dumps({"access_token": "eyJhbGciOiJub25lIn0.e30."}))
        with raises(codes.TARGET_REFUSES):
            async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl):
                pass
        endpoint.answer, endpoint.issued_s = None, int(time.time()) + 86_400
        with raises(codes.TARGET_REFUSES, match="invalid_token"):
            async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl):
                pass
    # While the endpoint is away, the lane waits for it, as for brokers.
    with raises(codes.TARGET_AWAY, match="no token from the token endpoint: .*connect"):
        async with opened(kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=sasl, timeout="5s"):
            pass


@pytest.mark.sweep
async def test_an_outage_of_the_token_endpoint_may_last_longer_than_a_token(
    kafka: KafkaServer, topic: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    with open_token_endpoint() as endpoint:
        endpoint.lifetime_s = 4
        sasl = _client(endpoint, secret)
        async with (
            opened(kafka, topic, sink_owner(1), brokers=[kafka.sasl_brokers], sasl=sasl) as lane,
            asyncio.timeout(500),
        ):
            await lane.write([frame(1)], Position(1))
            endpoint.answer = (503, "")
            threading.Event().wait(endpoint.lifetime_s + 1)
            # The next connections are made with the token that has expired.
            kafka.restart()
            with raises(codes.TARGET_AWAY):
                await lane.write([frame(2)], Position(2))
            endpoint.answer = None
            await _until_taken(lane, frame(2), Position(2))
    assert numbers(kafka, topic) == list(range(2 * FRAME_RECORDS))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes certificates, is not installed")
async def test_a_token_endpoint_is_asked_only_if_its_certificate_is_trusted(
    kafka: KafkaServer, topic: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    made = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made.certificate, made.key)
    with open_token_endpoint(tls) as endpoint:
        trusting = _client(endpoint, secret, ca={"file": str(made.certificate)})
        async with opened(kafka, topic, sink_owner(1), brokers=[kafka.sasl_brokers], sasl=trusting) as lane:
            assert lane.durable == Position(0)
        with raises(codes.TARGET_REFUSES, match="certificate"):
            async with opened(
                kafka, topic, sink_owner(2), brokers=[kafka.sasl_brokers], sasl=_client(endpoint, secret)
            ):
                pass
