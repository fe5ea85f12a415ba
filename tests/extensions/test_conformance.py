"""The suites that packages run against their connectors, run against toys and against ours.

Sinks and sources of tables and of NATS have them in `tests/contract`.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from millstream_testing import SinkConformance, SourceConformance
from tests.contract.sinks.file_target import numbers_in
from tests.contract.sinks.sink_targets import POSITION_SINK, WRITING_SINK, position_sink_numbers
from tests.support.bigquery_server import open_bigquery
from tests.support.mqtt_broker import MqttServer
from tests.support.opensearch_server import OpenSearchServer
from tests.support.pubsub_server import PubsubServer
from tests.support.pulsar_server import EXACT, PulsarServer
from tests.support.rabbit_server import RabbitServer
from tests.support.redis_server import RedisServer, open_redis
from tests.support.rerouting import rerouted
from tests.support.sizes import ALL, sized
from tests.support.sqs_server import SqsServer
from tests.support.web_server import WebProcess

TOYS = Path(__file__).parent / "toys"

# Only `make test-all` takes a minute for each.
SinkConformance.away_s = SourceConformance.away_s = sized(0, 60)
SinkConformance.deaths = SinkConformance.deaths[sized(1, 0) : sized(3, 7)]


def test_the_suites_are_found_where_earlier_versions_had_them() -> None:
    earlier = importlib.import_module("millstream.testing")
    assert (earlier.SinkConformance, earlier.SourceConformance) == (SinkConformance, SourceConformance)


@pytest.fixture(scope="module")
def redis_of_its_own() -> Iterator[RedisServer]:
    with open_redis() as server:
        yield server


class TestFileSink(SinkConformance):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"file": {"path": "out", "format": "jsonl"}}

    def arrived(self, place: Path) -> Sequence[int]:
        return numbers_in(place / "out") if (place / "out").exists() else []


class TestPositionSink(SinkConformance):
    """A user-defined sink, in a process for each owner."""

    def settings(self, place: Path) -> Mapping[str, Any]:
        env = [{"name": "SINK_TARGET", "value": str(place / "numbers.db")}]
        return {"udsink": {"python": f"{POSITION_SINK}:Numbers", "env": env}}

    def arrived(self, place: Path) -> Sequence[int]:
        return position_sink_numbers(place / "numbers.db")


class TestUserSink(SinkConformance):
    """The same without positions: at least once."""

    def settings(self, place: Path) -> Mapping[str, Any]:
        env = [{"name": "SINK_TARGET", "value": str(place / "written")}]
        return {"udsink": {"python": f"{WRITING_SINK}:append", "env": env}}

    def arrived(self, place: Path) -> Sequence[int]:
        written = place / "written"
        return [json.loads(line)["n"] for line in written.read_text().splitlines()] if written.exists() else []


class TestFileSource(SourceConformance):
    partitions = 2

    def settings(self, place: Path) -> Mapping[str, Any]:
        for name in "abc":
            (place / f"{name}.jsonl").write_text("".join(f'{{"n": "{name}{n}"}}\n' for n in range(40)))
        return {"file": {"paths": ["*.jsonl"], "format": "jsonl"}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [line for path in place.glob("*.jsonl") for line in path.read_bytes().splitlines()]


class TestRedisSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_of_its_own: RedisServer) -> None:
        self.server = redis_of_its_own
        self.stream = f"out-{uuid4()}"

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.stream = f"out-{uuid4()}"
        return {"redisStreams": {**self.server.settings, "stream": self.stream}}

    def arrived(self, place: Path) -> Sequence[int]:
        return [json.loads(entry["value"])["n"] for entry in self.server.entries(self.stream)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        settings = {**self.server.settings, "password": {"file": "password"}, "stream": "out"}
        return {"redisStreams": settings}, "wr0ng"


@pytest.mark.sweep
class TestRabbitSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, rabbit: RabbitServer) -> None:
        self.server = rabbit

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.queue = self.server.queue()
        return {"rabbitmq": {**self.server.settings, "routingKey": self.queue}}

    def arrived(self, place: Path) -> Sequence[int]:
        return [json.loads(message.body)["n"] for message in self.server.taken(self.queue)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        settings = {**self.server.settings, "user": "shop", "password": {"file": "password"}, "routingKey": "out"}
        return {"rabbitmq": settings}, "wr0ng"


@pytest.mark.sweep
class TestRabbitSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, rabbit: RabbitServer) -> None:
        self.server = rabbit

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.queue = self.server.queue()
        self.server.send(self.queue, [b"%d" % n for n in range(100)], ids="m")
        return {"rabbitmq": {**self.server.settings, "queue": self.queue}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        settings = {**self.server.settings, "user": "shop", "password": {"file": "password"}, "queue": "in"}
        return {"rabbitmq": settings}, "wr0ng"


@pytest.fixture(scope="module")
def web_process() -> Iterator[WebProcess]:
    server = WebProcess()
    server.start()
    yield server
    server.kill()


class _WebSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, web_process: WebProcess) -> None:
        self.server = web_process

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def at(self, path: str) -> str:
        return f"http://{self.server.address}{path}"

    def closed(self, place: Path) -> Mapping[str, Any]:
        (place / "token").write_text("wr0ng")
        return {"auth": {"token": {"file": "token"}}}


@pytest.mark.sweep
class TestSseSource(_WebSource):
    def settings(self, place: Path) -> Mapping[str, Any]:
        return {"sse": {"url": self.at("/events?count=100&per=30")}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(1, 101)]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        return {"sse": {"url": self.at("/closed/events"), **self.closed(place)}}, "wr0ng"


class TestHttpPollSource(_WebSource):
    def settings(self, place: Path) -> Mapping[str, Any]:
        cursor = {"path": "next", "parameter": "since"}
        return {"httpPoll": {"url": self.at("/items?per=30"), "records": "items", "cursor": cursor, "stopAtEnd": True}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b'{"id":%d}' % n for n in range(1, 101)]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        return {"httpPoll": {"url": self.at("/closed/items"), **self.closed(place)}}, "wr0ng"


class TestWebSocketSource(_WebSource):
    def settings(self, place: Path) -> Mapping[str, Any]:
        url = self.at("/socket").replace("http", "ws")
        return {"websocket": {"url": url, "subscribe": ['{"count": 100}']}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(1, 101)]

    def stop_target(self, place: Path) -> bool:
        # It sends all of it again to the next connection, and nothing tells that from new messages.
        return False

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        url = self.at("/closed/socket").replace("http", "ws")
        return {"websocket": {"url": url, **self.closed(place)}}, "wr0ng"


@pytest.mark.sweep
class TestMqttSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, mqtt: MqttServer) -> None:
        self.server = mqtt

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.topic = self.server.topic()
        self.found: list[int] = []
        self.server.keep(self.topic)
        return {"mqtt": {**self.server.settings, "topic": self.topic}}

    def arrived(self, place: Path) -> Sequence[int]:
        self.found += [json.loads(message.payload)["n"] for message in self.server.kept(self.topic)]
        return self.found

    def stop_target(self, place: Path) -> bool:
        self.server.stop()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        return {"mqtt": {**self.server.settings, "password": {"file": "password"}, "topic": "t/x"}}, "wr0ng"


@pytest.mark.sweep
class TestMqttSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, mqtt: MqttServer) -> None:
        self.server = mqtt

    def settings(self, place: Path) -> Mapping[str, Any]:
        topic = self.server.topic()
        self.server.keep(topic)
        self.server.send(topic, self.expected(place), ids="m")
        return {"mqtt": {**self.server.settings, "topic": topic, "session": f"kept-{topic}"}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def stop_target(self, place: Path) -> bool:
        self.server.stop()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        settings = {**self.server.settings, "password": {"file": "password"}, "topic": "t/x", "session": "x"}
        return {"mqtt": settings}, "wr0ng"


@pytest.mark.sweep
class TestBigQuerySink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with open_bigquery() as self.server:
            yield

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.table = self.server.create({"n": "INT64"})
        options = {"table": self.table, "positionTable": f"{self.table}_positions", "columns": [{"name": "n"}]}
        return {"bigquery": {**self.server.settings, **options}}

    def arrived(self, place: Path) -> Sequence[int]:
        # A table has no order.
        return sorted(row["n"] for row in self.server.rows(self.table))

    def stop_target(self, place: Path) -> bool:
        self.server.stop()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()


@pytest.mark.sweep
class TestOpenSearchSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, opensearch: OpenSearchServer) -> None:
        self.server = opensearch

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.index = self.server.index()
        return {"opensearch": {**self.server.settings, "index": self.index}}

    def arrived(self, place: Path) -> Sequence[int]:
        return self.server.numbers(self.index)

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)


class TestOpenSearchUpserts(TestOpenSearchSink):
    """`tests/recovery/test_opensearch_kills.py` kills this mode in every run."""

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.index = self.server.index()
        own = {"index": self.index, "lanesIndex": f"{self.index}-lanes"}
        return {"opensearch": {**self.server.settings, **own, "mode": "upsert", "id": "n"}}


@pytest.mark.sweep
class TestSqsSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, sqs: SqsServer) -> None:
        self.server = sqs

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.queue = self.server.queue(fifo=True)
        return {"sqs": self.server.settings(self.queue)}

    def arrived(self, place: Path) -> Sequence[int]:
        return [json.loads(message["Body"])["n"] for message in self.server.taken(self.queue)]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "secret").write_text("wr0ng")
        settings = {**self.server.settings(self.server.queue()), "secretKey": {"file": "secret"}}
        return {"sqs": settings}, "wr0ng"


@pytest.mark.sweep
class TestSqsSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, sqs: SqsServer) -> None:
        self.server = sqs

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.queue = self.server.queue()
        self.server.send(self.queue, self.expected(place))
        return {"sqs": {**self.server.settings(self.queue), "visibilityTimeout": "3s"}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "secret").write_text("wr0ng")
        settings = {**self.server.settings(self.server.queue()), "secretKey": {"file": "secret"}}
        return {"sqs": settings}, "wr0ng"


@pytest.mark.sweep
class TestPubsubSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, pubsub: PubsubServer) -> None:
        self.server = pubsub

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.queue = self.server.queue()
        return {"pubsub": self.server.sink(self.queue)}

    def arrived(self, place: Path) -> Sequence[int]:
        # A subscription without an order; repeated messages have the same id.
        found = {message.attributes["Millstream-Id"]: message for message in self.server.taken(self.queue)}
        return sorted(json.loads(message.data)["n"] for message in found.values())

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "key").write_text('{"private_key": "wr0ng"}')
        settings = {**self.server.sink(self.server.queue()), "credentials": {"file": "key"}}
        return {"pubsub": {**settings, "endpoint": self.server.tls_endpoint}}, "wr0ng"


@pytest.mark.sweep
class TestPubsubSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, pubsub: PubsubServer) -> None:
        self.server = pubsub

    def settings(self, place: Path) -> Mapping[str, Any]:
        queue = self.server.queue()
        self.server.send(queue, self.expected(place))
        return {"pubsub": {**self.server.source(queue), "ackDeadline": "3s"}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "key").write_text('{"private_key": "wr0ng"}')
        settings = {**self.server.source(self.server.queue()), "credentials": {"file": "key"}}
        return {"pubsub": {**settings, "endpoint": self.server.tls_endpoint}}, "wr0ng"


@pytest.mark.sweep
class TestPulsarSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, pulsar: PulsarServer) -> None:
        self.server = pulsar

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.topic = self.server.topic(namespace=EXACT)
        return {"pulsar": {**self.server.settings, "topic": self.topic}}

    def arrived(self, place: Path) -> Sequence[int]:
        return [json.loads(value)["n"] for value in self.server.values(self.topic)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "token").write_text("wr0ng")
        return {"pulsar": {**self.server.settings, "topic": "t", "auth": {"token": {"file": "token"}}}}, "wr0ng"


@pytest.mark.sweep
class TestPulsarSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, pulsar: PulsarServer) -> None:
        self.server = pulsar

    def settings(self, place: Path) -> Mapping[str, Any]:
        topic = self.server.topic(2)
        self.server.send(topic, self.expected(place))
        return {"pulsar": {**self.server.settings, "topic": topic, "subscriptionName": "s", "stopAtEnd": True}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b"%d" % n for n in range(100)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "token").write_text("wr0ng")
        auth = {"token": {"file": "token"}}
        return {"pulsar": {**self.server.settings, "topic": "t", "subscriptionName": "s", "auth": auth}}, "wr0ng"


class TestRedisSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_of_its_own: RedisServer) -> None:
        self.server = redis_of_its_own

    def settings(self, place: Path) -> Mapping[str, Any]:
        self.stream = f"in-{uuid4()}"
        for n in range(100):
            self.server.client.xadd(self.stream, {"n": n})
        return {"redisStreams": {**self.server.settings, "stream": self.stream, "stopAtEnd": True}}

    def expected(self, place: Path) -> Sequence[bytes]:
        return [b'{"n":"%d"}' % n for n in range(100)]

    def stop_target(self, place: Path) -> bool:
        self.server.kill()
        return True

    def start_target(self, place: Path) -> None:
        self.server.start()

    def rerouted(self, settings: Mapping[str, Any], reroute: Callable[[int], int]) -> Mapping[str, Any]:
        return rerouted(settings, self.server.port, reroute)

    def refused_settings(self, place: Path) -> tuple[Mapping[str, Any], str]:
        (place / "password").write_text("wr0ng")
        settings = {**self.server.settings, "password": {"file": "password"}, "stream": "in"}
        return {"redisStreams": settings}, "wr0ng"


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
def test_a_sink_that_does_not_keep_to_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", *install, str(TOYS)], check=True, timeout=100)
    shutil.copy(TOYS / "conformance.py", tmp_path / "test_toys.py")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_toys.py"]
    # What is killed at many calls is tried below.
    only = [] if ALL else ["-k", "Countdown or another_run or (Spool and not killed)"]
    passed = subprocess.run([*run, *only], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert passed.returncode == 0, passed.stdout[-4000:]
    # One that commits its rows before it moves the position does not pass.
    lane = site / "millstream_toys" / "sqlite" / "lane.py"
    text = lane.read_text()
    broken = text.replace(
        '            transaction.executemany("INSERT INTO records VALUES (?)", rows)\n',
        '            transaction.executemany("INSERT INTO records VALUES (?)", rows)\n'
        "            transaction.commit(); __import__('time').sleep(0.2)\n",
    )
    assert broken != text
    lane.write_text(broken)
    shutil.rmtree(lane.parent / "__pycache__", ignore_errors=True)
    failed = subprocess.run(
        [*run, "-k", "Sqlite and killed"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert failed.returncode == 1, failed.stdout[-4000:]
    assert "duplicate" in failed.stdout
