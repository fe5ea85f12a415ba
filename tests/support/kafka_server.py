"""A real Kafka broker for tests and benchmarks: one node in KRaft mode on the loopback, with faults as its API.

Above it: tests and benchmarks. Below it: Java, and the jars that `make servers` fetches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # some are documented there alone
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from millstream.ports import free_ports
from millstream.wire.certificates import make_certificate
from tests.support.server_process import ServerProcess, started_server

LIBRARIES = Path(__file__).parents[2] / ".cache" / "servers" / "kafka"
ANSWER_TIMEOUT_S = 180.0
_CLUSTER = "4L6g3nShT-eMCtK--X86sw"
_JAVA = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
USER, PASSWORD = "writer", "a long secret"
"""Of the listeners that ask who connects."""
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}{safe}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl}{safe}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:SASL_SSL
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,OAUTHBEARER
listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule \\
  required unsecuredLoginStringClaim_sub="broker";
listener.name.safe.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.safe.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.safe.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.safe.ssl.keystore.type=PEM
listener.name.safe.ssl.keystore.location={keystore}
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="{user}" password="{password}" user_{user}="{password}";
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.check.interval.ms=200
log.initial.task.delay.ms=200
log.flush.interval.messages=1
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""


def why_missing() -> str:
    """Why no broker can be started here; empty when one can."""
    if shutil.which("java") is None:
        return "Kafka needs Java, which is not installed"
    return "" if LIBRARIES.is_dir() else "`make servers` fetches Kafka, and has not"


class KafkaServer(ServerProcess):
    """One broker."""

    name = "Kafka"
    start_timeout_s = 300.0

    def __init__(self, directory: Path, *, properties: str = "") -> None:
        super().__init__(directory)
        self._more = properties
        self._port = free_ports(4)

    @property
    def brokers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def sasl_brokers(self) -> str:
        """Where it asks who connects."""
        return f"127.0.0.1:{self._port + 1}"

    @property
    def safe_brokers(self) -> str:
        """Where it encrypts, and asks who connects by SCRAM; there where openssl is."""
        return f"127.0.0.1:{self._port + 3}"

    @property
    def certificate(self) -> Path:
        """Of that place, and of its authority."""
        return self.directory / "server.pem"

    def start(self) -> None:
        """Returns when it answers."""
        config = self.directory / "server.properties"
        if not config.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            ports = {"port": self._port, "sasl": self._port + 1, "controller": self._port + 2}
            secrets = {"user": USER, "password": PASSWORD}
            data = self.directory / "data"
            config.write_text(_PROPERTIES.format(**ports, **secrets, **self._safe(), data=data) + self._more)
            scram = [f"{name}=[name={USER},password={PASSWORD}]" for name in SCRAM]
            users = [option for one in scram for option in ("--add-scram", one)]
            formatting = self._command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config), *users)
            formatted = subprocess.run(formatting, capture_output=True, text=True, check=False)
            assert formatted.returncode == 0, formatted.stderr
        self._run(self._command("kafka.Kafka", str(config)))

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A topic that was not there; returns its name. Records of any age stay, where `config` does not say else."""
        # Its answers come while it is there.
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1", **(config or {})})])[
            topic
        ].result(ANSWER_TIMEOUT_S)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while admin.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic].error is not None:
            assert time.monotonic() < deadline
        return topic

    def configure(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic, and wait until the broker says so."""
        setting = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[setting])
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(ANSWER_TIMEOUT_S)
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while admin.describe_configs([resource])[resource].result(ANSWER_TIMEOUT_S)[name].value != value:
            assert time.monotonic() < deadline

    def admin(self) -> AdminClient:
        return AdminClient(self._client())

    def producer(self) -> Producer:
        """One that keeps the order of each partition.

        A partition just created may refuse a batch while it has no leader, and take the next one. Without idempotence
        librdkafka sends the refused batch again behind it.
        """
        settings = {"acks": "all", "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
        return Producer({**self._client(), **settings})

    def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, **of_each: Any) -> None:
        """Append records in order, until they are stored. `of_each`: what `Producer.produce` takes besides."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, partition=partition, **of_each)
        assert producer.flush(ANSWER_TIMEOUT_S) == 0

    def read(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        """All that a reader of its own finds in the topic now, one partition after the other."""
        partitions, ends = self._ends(topic)
        settings = {
            **self._client(),
            "group.id": "reader of a test",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        try:
            messages: list[Message] = []
            for partition, end in zip(partitions, ends, strict=True):
                consumer.assign([TopicPartition(topic, partition, 0)])
                # A transaction that was committed right now can be seen a moment later.
                at = 0
                while at < end:
                    # A call waits until it has as many as it is asked for.
                    found = consumer.consume(1, ANSWER_TIMEOUT_S) + consumer.consume(10_000, 0.0)
                    assert found, f"{topic}/{partition} was not read to its end in {ANSWER_TIMEOUT_S} s"
                    for message in found:
                        error = message.error()
                        if error is None:
                            messages.append(message)
                        else:
                            assert error.code() == KafkaError._PARTITION_EOF, error
                            at = message.offset() or 0
            return messages
        finally:
            consumer.close()

    def ends(self, topic: str) -> list[int]:
        """The offset behind the last record of each partition."""
        return self._ends(topic)[1]

    def _ends(self, topic: str) -> tuple[list[int], list[int]]:
        """The partitions of a topic, and the offset behind the last record of each, committed or not."""
        settings = {**self._client(), "group.id": "reader of a test", "isolation.level": "read_uncommitted"}
        consumer = Consumer(settings)
        try:
            partitions = sorted(consumer.list_topics(topic, ANSWER_TIMEOUT_S).topics[topic].partitions)
            places = [TopicPartition(topic, partition) for partition in partitions]
            return partitions, [consumer.get_watermark_offsets(place, ANSWER_TIMEOUT_S)[1] for place in places]
        finally:
            consumer.close()

    def values(self, topic: str, isolation: str = "read_committed") -> list[bytes]:
        """The same, values alone."""
        return [message.value() or b"" for message in self.read(topic, isolation)]

    def _safe(self) -> dict[str, object]:
        """What is in the settings for encrypted connections."""
        keystore = self.directory / "keystore.pem"
        if shutil.which("openssl") is None:
            return {"safe": "", "keystore": keystore}
        made = make_certificate(self.directory)
        keystore.write_text(made.key.read_text() + made.certificate.read_text())
        return {"safe": f",SAFE://{self.safe_brokers}", "keystore": keystore}

    def _client(self) -> dict[str, str | int | float | bool]:
        # What goes wrong is in the answers; librdkafka would print it as well.
        return {"bootstrap.servers": self.brokers, "log_level": 0}

    def _answers(self) -> bool:
        with suppress(KafkaException):
            return bool(self.admin().list_topics(timeout=1.0).brokers)
        return False

    def _command(self, *arguments: str) -> list[str]:
        return ["java", *_JAVA, "-cp", f"{LIBRARIES}{os.sep}*", *arguments]


@contextmanager
def open_kafka(directory: Path, *, properties: str = "") -> Iterator[KafkaServer]:
    """A broker of one's own, killed at the end."""
    with started_server(KafkaServer(directory, properties=properties)) as server:
        yield server
