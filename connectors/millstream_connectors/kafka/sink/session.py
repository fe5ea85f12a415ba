"""The session of one lane with its topic: one transactional producer, and the lane's position in Kafka.

    init_transactions (fences, resolves pending ones) ─► position? ─► begin ─► records, position ─► commit ─┐
                          ▲                                   skip     ▲                                       │
                          └──────────── fenced, or no answer ──────────┴───────────────────────────────────────┘

The position is the metadata of an offset that is committed with the records, for the lane's own consumer group and
partition 0 of the topic (decision 0056). Everything here blocks and is used by one thread.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # it is documented there

from millstream import codes
from millstream.blocking import ClientThread
from millstream.durable import step
from millstream.errors import DamageError, FencedError, UserError
from millstream.limits import KAFKA_CALL_S, KAFKA_COMMIT_S, KAFKA_QUEUE_MESSAGES_MAX, KAFKA_RECORD_BYTES
from millstream.record import Position
from millstream_connectors.kafka.client import (
    Heard,
    Settings,
    away,
    client_settings,
    error_of,
    made,
    reach,
    topic_partitions,
    user_error,
)
from millstream_connectors.kafka.settings import KafkaSink
from millstream_connectors.kafka.sink.records import Message
from millstream_connectors.shared.kept import TargetPosition, parse_kept
from millstream_writer.connector import SinkOwner

_T = TypeVar("_T")


class BrokenError(Exception):
    """The transaction had no effect, or (`undecided`) may have had one. The session has to be opened again."""

    def __init__(self, error: KafkaError, *, undecided: bool) -> None:
        super().__init__(error.str())
        self.error = error
        self.undecided = undecided


class KafkaSession:
    """The session of one owner of a lane with Kafka, which can be reopened."""

    def __init__(self, spec: KafkaSink, owner: SinkOwner, thread: ClientThread) -> None:
        self._spec = spec
        self._owner = owner
        self._thread = thread
        self._where = owner.where
        self.name = f"millstream.{owner.pipeline}.{owner.name}.{spec.topic}"
        """Name of the lane in Kafka: its transactional.id and its consumer group."""
        self._heard = Heard(self._where)
        self._settings: Settings = {}
        self._reader: Consumer | None = None
        self._producer: Producer | None = None
        self._refused: KafkaError | None = None
        """Why a message was refused."""
        self._listening = False
        """Whether each message reports its outcome. That costs time, so it is enabled only after a failed
        transaction."""
        self.record_bytes_max = KAFKA_RECORD_BYTES
        self.used_s = time.monotonic()
        """When the position was committed last."""

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def prepare(self) -> None:
        """Reach the cluster, and check the topic and the lane's position in it, without fencing. Errors: those of
        `reach` and `look`."""
        self._settings = client_settings(self._spec, self._owner.base_dir, self._where)
        # With this isolation level, an answer does not wait for the end of a former owner's transaction.
        self._reader = self._made_reader("read_uncommitted")
        self._reach(partial(topic_partitions, self._reader, self._spec.topic))
        # A target that does not belong to this owner is not changed.
        self.look()
        self._reader.close()
        self._reader = self._made_reader("read_committed")
        self.record_bytes_max = self._topic_bytes_max()

    def look(self) -> TargetPosition | None:
        """The lane's position in the topic. Raises `UserError` for another run's position, `FencedError` for that of a
        newer owner."""
        found = self._reach(self._committed)
        if found.offset < 0:
            self._check_not_lost()
            return None
        if not found.metadata:
            # Set by hand, as messages here advise: the lane continues after its mark.
            return None
        try:
            marker = parse_kept(found.metadata)
        except ValueError:
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{self._where}: the offset of the group {self.name!r} has {found.metadata[:80]!r} instead of the "
                f"lane's position. {self.by_hand}",
            ) from None
        if marker.run != self._owner.ledger_id:
            raise UserError(
                codes.TARGET_OF_ANOTHER_RUN,
                f"{self._where}: the topic {self._spec.topic!r} has records of another run of this pipeline "
                f"({marker.run}; this is {self._owner.ledger_id}). Nothing was written. Write to another "
                f"topic, or restore the data directory of that run. {self.by_hand}",
            )
        if marker.epoch > self._owner.epoch:
            raise FencedError(
                codes.OUTPUT_TAKEN_OVER,
                f"{self._where}: the topic has a newer owner of the lane, with epoch {marker.epoch}; this one has "
                f"{self._owner.epoch}",
            )
        return marker

    def open(self) -> TargetPosition | None:
        """Fence every other owner, read the lane's position, and store this owner's epoch there."""
        self.abandon()
        producer = self._made_producer({"transactional.id": self.name})
        with step("kafka_sink.fence", self._owner.lane.vertex):
            self._reach(producer.init_transactions, producer.poll)
        self._producer = producer
        # Pending transactions are resolved now.
        marker = self.look()
        if marker is None or marker.epoch < self._owner.epoch:
            position, frame = (self._owner.start, "") if marker is None else (marker.position, marker.frame)
            self.commit((), position, frame)
        return marker

    def commit(self, messages: Iterable[Message], position: Position, frame: str) -> None:
        """One transaction: these records, and the position after them. Raises `BrokenError`."""
        producer = self._producer
        assert producer is not None, "it is open"
        marker = {"run": self._owner.ledger_id, "epoch": self._owner.epoch, "at": position, "frame": frame}
        metadata = json.dumps(marker, separators=(",", ":"))
        self._refused = None
        committing = False
        try:
            producer.begin_transaction()
            produce(producer, self._spec.topic, messages, self._thread, self._hear_refusal if self._listening else None)
            offset = TopicPartition(self._spec.topic, 0, position.sequence, metadata)
            group = self._consumer.consumer_group_metadata()
            _bounded(partial(producer.send_offsets_to_transaction, [offset], group, KAFKA_COMMIT_S))
            committing = True
            with step("kafka_sink.commit", self._owner.lane.vertex):
                _bounded(partial(producer.commit_transaction, KAFKA_COMMIT_S))
        except KafkaException as failed:
            error = error_of(failed)
            # A transaction that has to be aborted was not committed.
            undecided = committing and not error.txn_requires_abort()
            self._listening = True
            self.abandon()
            raise BrokenError(self._why_refused() or error, undecided=undecided) from failed
        self._listening = False
        self.used_s = time.monotonic()

    def send(self, messages: Iterable[Message]) -> None:
        """Write without a transaction. Raises `RetryLaterError` if not everything was acknowledged; some records may be
        stored."""
        if self._producer is None:
            self._producer = self._made_producer({"enable.idempotence": True})
        producer, self._refused = self._producer, None
        produce(producer, self._spec.topic, messages, self._thread, self._hear_refusal)
        while producer.flush(KAFKA_CALL_S):
            self._thread.check()
        if (error := self._why_refused()) is not None:
            self.abandon()
            raise refusal(error, self._spec.topic, self._where) or away(error, self._where)

    def abandon(self) -> None:
        """Discard the producer with its queued messages. The next one aborts its transaction."""
        if self._producer is not None:
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer = None

    def close(self) -> None:
        self.abandon()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _made_reader(self, isolation: str) -> Consumer:
        of_reader = {"group.id": self.name, "enable.auto.commit": False, "isolation.level": isolation}
        return made(Consumer, {**self._settings, **of_reader, "error_cb": self._heard.hear}, self._where)

    def _made_producer(self, of_kind: Settings) -> Producer:
        settings = {
            **self._settings,
            "acks": "all",
            "partitioner": "murmur2_random",
            "compression.type": self._spec.compression,
            "queue.buffering.max.messages": KAFKA_QUEUE_MESSAGES_MAX,
            "message.max.bytes": self.record_bytes_max,
            "error_cb": self._heard.hear,
            **of_kind,
        }
        return made(Producer, settings, self._where)

    def _reach(self, ask: Callable[[float], _T], serve: Callable[[float], object] | None = None) -> _T:
        return reach(ask, serve or self._consumer.poll, self._heard, self._thread, self._spec, self._where)

    @property
    def _consumer(self) -> Consumer:
        assert self._reader is not None, "it was prepared"
        return self._reader

    def _committed(self, limit_s: float) -> TopicPartition:
        # Not by the admin client: librdkafka 2.16 crashes there when the coordinator is not ready.
        (found,) = self._consumer.committed([TopicPartition(self._spec.topic, 0)], limit_s)
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def _why_refused(self) -> KafkaError | None:
        """Why a message since the last `produce` was refused."""
        return self._refused

    def _hear_refusal(self, error: KafkaError | None, _: Any) -> None:
        if error is not None and error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._refused = error

    def _check_not_lost(self) -> None:
        """Raises the error for a lane that has made progress, but whose position is missing in a topic with records."""
        if self._owner.start == Position(0) or self._is_empty():
            return
        raise DamageError(
            codes.TARGET_POSITION_LOST,
            f"{self._where}: the lane's mark is at {self._owner.start.sequence}, but the group {self.name!r} has no "
            f"offset that says which of its records are in the topic {self._spec.topic!r}. Kafka deletes the offset "
            "`offsets.retention.minutes` (7 days) after the pipeline has stopped; a topic that the pipeline has "
            f"not written to before has none either. Nothing was written. {self.by_hand}",
        )

    @property
    def by_hand(self) -> str:
        """Instructions for the user to confirm that the lane's mark is right."""
        return (
            "See which records are at the end of the topic. To let the lane continue after its mark: "
            "kafka-consumer-groups.sh --bootstrap-server … --reset-offsets --to-offset 0 --execute --group "
            f"{self.name} --topic {self._spec.topic}:0"
        )

    def _is_empty(self) -> bool:
        topic = self._spec.topic
        return not any(
            self._reach(partial(self._consumer.get_watermark_offsets, TopicPartition(topic, partition)))[1]
            for partition in self._reach(partial(topic_partitions, self._consumer, topic))
        )

    def _topic_bytes_max(self) -> int:
        """Maximum bytes of a record in the topic; Kafka's default if the permission to read the setting is missing."""
        admin = made(AdminClient, self._settings, self._where)
        wanted = ConfigResource(ConfigResource.Type.TOPIC, self._spec.topic)
        try:
            found = admin.describe_configs([wanted], request_timeout=KAFKA_CALL_S)[wanted].result()
            return max(1000, int(found["max.message.bytes"].value))
        except KafkaException:
            return KAFKA_RECORD_BYTES


def _bounded(call: Callable[[], object]) -> None:
    """Make a client call that has a timeout, and enforce the timeout: librdkafka 2.16 does not always return from a
    call after its broker was away. Such a call keeps its thread and its producer, which the next producer fences.
    Raises `KafkaException`, with `_TIMED_OUT` for a call that did not return."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failed:  # noqa: BLE001  # it is raised in the caller
            failures.append(failed)

    thread = threading.Thread(target=run, name="kafka-sink-call", daemon=True)
    thread.start()
    thread.join(KAFKA_COMMIT_S + KAFKA_CALL_S)
    if thread.is_alive():
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client did not return from a call"))
    if failures:
        raise failures[0]


def produce(
    producer: Producer,
    topic: str,
    messages: Iterable[Message],
    thread: ClientThread,
    on_delivery: Callable[[KafkaError | None, Any], None] | None,
) -> None:
    """Pass messages to the client, in order; waits while the queue is full."""
    put, anywhere = producer.produce, -1
    for value, key, time_ms, headers in messages:
        while True:
            try:
                # Positional arguments, which take half the time of keyword arguments.
                put(topic, value, key, anywhere, on_delivery, None, time_ms, headers)
                break
            except BufferError:
                producer.poll(KAFKA_CALL_S)
                thread.check()


def refusal(error: KafkaError, topic: str, where: str) -> UserError | None:
    """The error to stop with, if records are refused for a reason that only the user can fix."""
    if (found := user_error(error, where)) is not None:
        return found
    if error.code() == KafkaError.INVALID_TIMESTAMP:
        return UserError(
            codes.SINK_REFUSED,
            f"{where}: the topic {topic!r} refuses the event time of a record ({error.str()}). Set its "
            "message.timestamp.type=LogAppendTime, or widen its message.timestamp.before.max.ms and "
            "message.timestamp.after.max.ms; nothing was lost",
        )
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD):
        return UserError(
            codes.SINK_REFUSED,
            f"{where}: the topic {topic!r} refuses a record: {error.str()}. Compare its max.message.bytes and "
            "cleanup.policy with the records; nothing was lost",
        )
    return None
