"""Kafka topics: one lane reads each partition, from the offset in the lane's mark.

    position ─► assign (no group) ─► poll in a thread ─► records, offsets after them ─► frame

Offsets are committed in the mark together with the records. If a group is configured, its offsets follow the mark and
serve only tools. Only committed records in Kafka are read. Above it: a source lane. Below it: confluent-kafka, in one
thread, because its calls block.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.limits import (
    KAFKA_FETCH_AGAIN_MS,
    KAFKA_IDS_EVERY_S,
    KAFKA_LEADER_ANSWER_S,
    KAFKA_LEADERS_EVERY_S,
    KAFKA_PREFETCH_BYTES,
    KAFKA_TOPICS_REREAD_S,
    RECORD_BYTES_MAX,
)
from millstream_connectors.kafka.client import (
    Heard,
    client_settings,
    made,
    reach,
    topic_partitions,
    topics_like,
    user_error,
)
from millstream_connectors.kafka.settings import KafkaSource
from millstream_connectors.kafka.source.runs import Run, RunBatch, Split, runs_of
from millstream_connectors.shared.messages import SHOWN_BYTES
from millstream_connectors.shared.positioned_lane import PositionedLane
from millstream_connectors.shared.starts import LATEST, start_time
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch, SourceLane

_OF_CONNECTIONS = (
    *("bootstrap.servers", "security.protocol", "log_level"),
    *("sasl.", "ssl.", "https.", "socket.", "broker.", "metadata.", "reconnect.", "client."),
)
"""Beginnings of the names of settings that the connections of every client need."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TopicIds:
    """The ids that the cluster gives its topics: a topic that is deleted and recreated under its name has another id,
    and offsets of its own. Only an admin client learns the ids. Its calls block."""

    def __init__(self, settings: Mapping[str, Any], where: str) -> None:
        """`settings`: of the lane's consumer."""
        wanted = {name: value for name, value in settings.items() if name.startswith(_OF_CONNECTIONS)}
        self._client: AdminClient = made(AdminClient, wanted, where)

    def ask(self, topics: Iterable[str], limit_s: float) -> dict[str, str]:
        """The id of each topic; of a cluster without ids (before 2.8), none. Raises `KafkaException`, also if there is
        no such topic."""
        asked = self._client.describe_topics(TopicCollection(sorted(topics)), request_timeout=limit_s)
        found: dict[str, str] = {}
        for topic, answer in asked.items():
            try:
                topic_id = answer.result(limit_s + 1.0).topic_id
            except FutureTimeoutError:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            if topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits():
                found[topic] = str(topic_id)
        return found


class KafkaSourceLane(PositionedLane):
    """One lane. See `SourceLane`. The methods with an underscore and no `async` run in its thread."""

    kind = "kafka"

    def __init__(self, spec: KafkaSource, owner: SourceOwner, thread: ClientThread) -> None:
        super().__init__(owner)
        self._spec = spec
        self._thread = thread
        self._heard = Heard(self._where)
        self._consumer: Consumer | None = None
        self._next: dict[Split, int] = {}
        """By split: the offset after the records that were read."""
        self._ends: dict[Split, int] | None = None
        """By split: the offset at which it ends; None for no end."""
        self._waiting: deque[Run] = deque()
        """Records that were polled and not read yet."""
        self._checked_at_s = 0.0
        self._is_away = False
        """Whether the client has reported an error, and not every leader has answered since."""
        self._heard_s = -math.inf
        """When it reported the last one."""
        self._asked_s = -math.inf
        """When the leaders were asked last."""
        self._unknown_s: float | None = None
        """Since when a topic is unknown to brokers that have been away."""
        self._topic_ids: TopicIds | None = None
        self._ids: dict[str, str] = {}
        """By topic: its id, if the cluster has ids. It belongs to the offsets."""
        self._ids_s = -math.inf
        """When the ids were last compared."""
        self._known_ends: dict[Split, int] = {}
        """By split: its end when its broker last answered."""

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        await self._thread.run(self._open)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._draining or self._is_ended():
            return SourceBatch(None, self._position(), ended=self._is_ended() and not self._draining)
        if not self._waiting:
            self._waiting.extend(await self._thread.run(self._polled, records_max, timeout_s))
        return self._take(records_max, bytes_max)

    async def committed(self, position: bytes) -> None:
        if self._spec.consumer_group is not None:
            self._thread.submit(partial(self._tell_group, position))

    def pending(self) -> int | None:
        return sum(max(0, end - self._next[split]) for split, end in self._known_ends.items())

    def is_held_up(self) -> bool:
        return self._is_away

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = self._topic_ids = None

    def _open(self) -> None:
        owner, spec = self._owner, self._spec
        body = self._unpacked(owner.position)
        settings = {
            "queued.max.messages.kbytes": KAFKA_PREFETCH_BYTES // 1024,
            # By default, a client with a full queue checks again only after a second.
            "fetch.queue.backoff.ms": KAFKA_FETCH_AGAIN_MS,
            **client_settings(spec, owner.base_dir, self._where),
            # Without a configured group, nothing is ever committed for this one.
            "group.id": spec.consumer_group or "millstream",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": self._hear,
        }
        self._consumer = made(Consumer, settings, self._where)
        self._topic_ids = TopicIds(settings, self._where)
        splits = self._splits()
        if body is not None:
            with self._restoring():
                self._next = _splits_of(body["at"])
                self._ends = None if body["ends"] is None else _splits_of(body["ends"])
                # Positions of earlier versions have no ids.
                self._ids = {str(topic): str(topic_id) for topic, topic_id in body.get("ids", {}).items()}
        self._compare_ids(self._reach(partial(self._topic_ids.ask, {topic for topic, _ in splits})))
        if body is None:
            self._next = {split: self._first(split) for split in splits}
            if spec.stop_at_end:
                self._ends = {split: self._bounds(split)[1] for split in splits}
        else:
            for split, offset in self._next.items():
                if split not in splits:
                    raise self._removed(split, f"the lane is at {offset}, but the partition no longer exists")
                self._check(split, offset)
            self._add(splits)
        self._assign()

    def _splits(self) -> list[Split]:
        """The current splits of this lane."""
        self._checked_at_s = time.monotonic()
        # The named topics, and those that match patterns now.
        found = (self._reach(partial(topics_like, self._client, topic)) for topic in self._spec.topics)
        return [
            (topic, partition)
            for topic in dict.fromkeys(name for names in found for name in names)
            for partition in self._reach(partial(topic_partitions, self._client, topic))
            if self._owns(topic, partition)
        ]

    def _add(self, splits: list[Split]) -> bool:
        """Add new partitions, from their beginning. Returns whether there are any. A source with an end adds none."""
        new = [split for split in splits if split not in self._next] if self._ends is None else []
        for split in new:
            self._next[split] = self._bounds(split)[0]
            if split[0] not in self._ids and self._topic_ids is not None:
                self._compare_ids(self._reach(partial(self._topic_ids.ask, [split[0]])))
            _log.info("%s: reads the new partition %s/%d", self._where, *split)
        return bool(new)

    def _first(self, split: Split) -> int:
        """Where a first run begins."""
        first, end = self._bounds(split)
        if self._spec.start == LATEST:
            return end
        time_of = start_time(self._spec.start)
        if time_of is None:
            return first
        wanted = TopicPartition(*split, int(time_of.timestamp() * 1000))
        (found,) = self._reach(lambda limit_s: self._client.offsets_for_times([wanted], limit_s))
        return found.offset if found.offset >= 0 else end

    def _bounds(self, split: Split) -> tuple[int, int]:
        """The offsets of the first record, and after the last committed one."""
        found = self._reach(partial(self._client.get_watermark_offsets, TopicPartition(*split)))
        assert found is not None, "the broker was asked for this partition"
        return found

    def _check(self, split: Split, offset: int) -> None:
        first, end = self._bounds(split)
        if not first <= offset:
            raise self._removed(split, f"the lane is at offset {offset}, but the first offset left is {first}")
        if offset > end:
            raise self._removed(split, f"the lane is at offset {offset}, but the partition ends at {end}")

    def _compare_ids(self, ids: Mapping[str, str]) -> None:
        """Raises `DamageError` for a topic that has another id than before."""
        self._ids_s = time.monotonic()
        for topic, topic_id in ids.items():
            before = self._ids.setdefault(topic, topic_id)
            if before != topic_id:
                raise DamageError(
                    codes.SOURCE_PAST_REPLACED,
                    f"{self._where}: the topic {topic} was deleted and recreated (its id was {before} and is now "
                    f"{topic_id}), so the offsets that were read belong to another topic. Nothing of the new one was "
                    "used. Read it with a source of another name, or start over with --fresh",
                )

    def _compare_now(self) -> None:
        """Compare the ids of the topics, if the cluster answers."""
        assert self._topic_ids is not None, "it is open"
        try:
            ids = self._topic_ids.ask(self._ids, KAFKA_LEADER_ANSWER_S)
        except KafkaException:
            # The next poll reports what is wrong, and this is tried again after it.
            return
        self._compare_ids(ids)

    def _removed(self, split: Split, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {split[0]}/{split[1]}: {what}: Kafka removed records before they were read (retention, "
            "or the topic was recreated in a cluster without ids). Nothing was skipped. Restore the records, read the "
            "remaining ones with a source of another name, or start over with --fresh; and give the topic a longer "
            "retention",
        )

    def _assign(self) -> None:
        self._client.assign([TopicPartition(*split, offset) for split, offset in self._next.items()])

    def _polled(self, records_max: int, timeout_s: float) -> list[Run]:
        try:
            found = self._poll(records_max, timeout_s)
        except RetryLaterError:
            self._unknown_s = None
            # Records that the client has returned arrive again, and new partitions that were found are read.
            self._assign()
            raise
        except UserError as error:
            if not self._may_become_known(error):
                raise
            self._assign()
            raise RetryLaterError(codes.TARGET_AWAY, str(error)) from error
        self._unknown_s = None
        return found

    def _may_become_known(self, error: UserError) -> bool:
        """Whether an error says that a topic is unknown, and a broker that has just started may say so."""
        now_s, limit_s = time.monotonic(), self._spec.timeout_s
        if error.code is not codes.TARGET_UNFIT or now_s >= self._heard_s + limit_s:
            return False
        self._unknown_s = now_s if self._unknown_s is None else self._unknown_s
        return now_s < self._unknown_s + limit_s

    def _poll(self, records_max: int, timeout_s: float) -> list[Run]:
        if self._is_away and time.monotonic() >= self._asked_s + KAFKA_LEADERS_EVERY_S:
            self._is_away = not self._all_answer()
            self._asked_s = time.monotonic()
        if time.monotonic() >= self._checked_at_s + KAFKA_TOPICS_REREAD_S and self._add(self._splits()):
            self._assign()
        # The call waits until it has the requested number.
        found = self._client.consume(1, timeout_s)
        if found and records_max > 1:
            # Not more than fit into a batch: one more would become a separate batch.
            found += self._client.consume(records_max - 1, 0.0)
        if found and self._ids and time.monotonic() >= self._ids_s + KAFKA_IDS_EVERY_S:
            # After the records arrived: with the same id now, they are of the same topic.
            self._compare_now()
        runs: list[Run] = []
        start = 0
        for row, error in enumerate(map(Message.error, found)):
            if error is not None:
                runs += runs_of(found[start:row], self._owner.key_mapping)
                runs += self._bear(error, found[row])
                start = row + 1
        runs += runs_of(found[start:], self._owner.key_mapping)
        for split in self._next:
            # Negative if no broker has reported it yet.
            self._known_ends[split] = self._client.get_watermark_offsets(TopicPartition(*split), cached=True)[1]
        return runs

    def _all_answer(self) -> bool:
        """Whether the leader of each partition answers now."""
        try:
            for topic in {topic for topic, _ in self._next}:
                # The client connects to lost brokers for it.
                topic_partitions(self._client, topic, KAFKA_LEADER_ANSWER_S)
            for split in self._next:
                self._client.get_watermark_offsets(TopicPartition(*split), KAFKA_LEADER_ANSWER_S)
        except KafkaException:
            return False
        return True

    def _hear(self, error: KafkaError) -> None:
        """The client reports lost brokers, but not that they are back, so they are asked."""
        self._is_away, self._heard_s = True, time.monotonic()
        self._heard.hear(error)

    def _bear(self, error: KafkaError, message: Message) -> list[Run]:
        """Handles an error or the end of a partition, which arrives in place of records."""
        topic, partition = message.topic(), message.partition()
        if error.code() == KafkaError._PARTITION_EOF:
            return [Run((topic or "", partition or 0), [message.offset() or 0])]
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE) and topic is not None:
            split = (topic, partition or 0)
            if self._ids:
                self._compare_now()
            self._check(split, self._next[split])
            # The offset is in range after all: the broker has recovered its data. The records of this call arrive
            # again.
            self._assign()
        elif (stop := user_error(error, self._where)) is not None:
            raise stop
        else:
            self._hear(error)
        return []

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        """The next batch."""
        taken = RunBatch(self._owner.clock.now_us())
        invalid: list[InvalidRecord] = []
        while self._waiting and len(taken) < records_max:
            run = self._waiting[0]
            split, end = run.split, None if self._ends is None else self._ends.get(run.split, 0)
            # Repeated records arrive because offsets were assigned again.
            run.skip_to(self._next[split])
            if not run.values:
                # The partition's end: the offsets before it have no records for this reader.
                self._next[split] = max(self._next[split], run.offsets[0] if end is None else min(run.offsets[0], end))
            elif run.fault and run.fitting(1, run.ends[0], end):
                place = f"{split[0]}/{split[1]} at offset {run.offsets[0]}"
                value = run.values[0] if run.ends[0] <= RECORD_BYTES_MAX else run.values[0][:SHOWN_BYTES]
                invalid.append(InvalidRecord(value, f"{place}: {run.fault}", place))
                self._next[split] = run.offsets[0] + 1
            elif run.at < len(run.values) and (end is None or run.offsets[run.at] < end):
                records = run.fitting(records_max - len(taken), bytes_max - taken.size, end)
                if not records and len(taken):
                    break
                # A batch has at least one record.
                taken.add(run, records or 1)
                self._next[split] = run.offsets[run.at - 1] + 1
                continue
            elif end is not None and run.offsets[-1] >= end:
                self._next[split] = max(self._next[split], end)
            self._waiting.popleft()
        return SourceBatch(taken.frame(), self._position(), ended=self._is_ended(), invalid=tuple(invalid))

    def _is_ended(self) -> bool:
        return self._ends is not None and all(self._next[split] >= end for split, end in self._ends.items())

    def _position(self) -> bytes:
        return self._packed(
            {
                "at": _by_topic(self._next),
                "ends": None if self._ends is None else _by_topic(self._ends),
                **({"ids": self._ids} if self._ids else {}),
            }
        )

    def _tell_group(self, position: bytes) -> None:
        body = self._unpacked(position)
        if body is None:
            return
        offsets = [TopicPartition(*split, offset) for split, offset in _splits_of(body["at"]).items()]
        try:
            self._client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as failed:
            # Tools show an outdated lag; nothing depends on it.
            self._heard.hear(failed.args[0])

    @property
    def _client(self) -> Consumer:
        assert self._consumer is not None, "it is open"
        return self._consumer

    def _reach(self, ask: Callable[[float], _T]) -> _T:
        return reach(ask, self._listen, self._heard, self._thread, self._spec, self._where)

    def _listen(self, limit_s: float) -> None:
        """Process events from the brokers while no records can arrive."""
        if not self._client.assignment():
            self._client.poll(limit_s)


def _by_topic(offsets: dict[Split, int]) -> dict[str, dict[str, int]]:
    packed: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        packed.setdefault(topic, {})[str(partition)] = offset
    return packed


def _splits_of(packed: dict[str, dict[str, int]]) -> dict[Split, int]:
    return {(topic, int(partition)): int(offset) for topic, of in packed.items() for partition, offset in of.items()}


@asynccontextmanager
async def open_kafka(spec: KafkaSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A lane of its splits, at `owner.position`."""
    async with open_thread(f"kafka-source-{owner.lane.partition}") as thread:
        lane = KafkaSourceLane(spec, owner, thread)
        try:
            await lane.open()
            yield lane
        finally:
            thread.end(lane.close)
