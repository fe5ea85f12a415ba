"""Publishes records to a Pulsar topic. The brokers drop messages that are repeated.

    open ─► a producer for each partition, by the lane's name ─► the last sequence id that the brokers know of it
    write ─► messages, each with its place in the buffer as sequence id ─► all are stored, or were before: written
                                                        └─► no answer: opened again, and written again

The brokers remember the highest sequence id of each producer name in each partition, and drop a message whose id is not
higher. So the ids of a producer must ascend, and a record that failed is never sent after a later one was stored. They
forget a producer that is away for long. A lane has no other record of its position in the topic, so it stops then.

A name is used by one connection at a time; an owner whose name is in use waits. Another owner's messages have the same
ids, so it does not matter which of two owners writes them.

Above it: the delivery. Below it: pulsar-client, in one thread, because its calls block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pulsar

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.durable import step
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.limits import PULSAR_UNCONFIRMED_MAX
from millstream.record import Position
from millstream_connectors.pulsar.client import PulsarLink, open_link
from millstream_connectors.pulsar.settings import PulsarSink
from millstream_connectors.pulsar.sink.messages import Put, convert
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.first_try import first_try
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

TOO_LARGE = "record is too large for the brokers"

_log = logging.getLogger(__name__)


class _Answers:
    """Answers to messages, by their index. The client calls it in a thread of its own."""

    def __init__(self) -> None:
        self.found: dict[int, pulsar.Result] = {}
        self.is_failed = False
        """Whether a message failed for another reason than its size."""
        self._awaited = -1
        self._changed = threading.Condition()

    def note(self, index: int, result: pulsar.Result) -> None:
        with self._changed:
            self.found[index] = result
            self.is_failed |= result not in (pulsar.Result.Ok, pulsar.Result.MessageTooBig)
            if len(self.found) == self._awaited:
                self._changed.notify()

    def wait(self, count: int, timeout_s: float) -> bool:
        """Whether the answers to as many messages are there."""
        with self._changed:
            self._awaited = count
            return self._changed.wait_for(lambda: len(self.found) >= count, timeout_s)


class PulsarSinkLane(UnkeptLane):
    """A lane that publishes messages. The methods with an underscore and no `async` run in its thread."""

    def __init__(self, settings: PulsarSink, owner: SinkOwner, thread: ClientThread) -> None:
        self._settings = settings
        self._owner = owner
        self._thread = thread
        self._link: PulsarLink | None = None
        self._producers: list[Any] = []
        self._stored: dict[int, int] = {}
        """By partition: the highest sequence id that was confirmed to this lane."""
        self._is_known = False
        """Whether the brokers are known to remember the lane."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE_IDEMPOTENT if self._deduplicates else Guarantee.AT_LEAST_ONCE

    @property
    def _deduplicates(self) -> bool:
        return self._settings.deduplication and self._repeats

    @property
    def _repeats(self) -> bool:
        """Whether the lane gets the same records with the same places when they are sent again, in ascending order.

        A fallback gets only some records, and perhaps earlier ones after later ones. At the end of a chain, a place
        may belong to another record the next time. Messages are then sent without ids of ours, because brokers would
        drop a record that has the id of another one.
        """
        return not self._owner.fallback and not self._owner.whole

    async def open(self) -> None:
        """Connect, and compare what the brokers know of the lane with its mark."""
        await self._thread.run(self._open)

    def close(self) -> None:
        """Runs in the thread."""
        if self._link is not None:
            link, self._link = self._link, None
            link.close()
        self._producers = []

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        if not frames:
            return WriteResult()
        failures = await self._thread.run(self._write, frames)
        return WriteResult(failures if any(failures) else ())

    def _open(self) -> PulsarLink:
        if self._link is not None:
            return self._link
        link = open_link(self._settings, self._owner.base_dir, self._owner.where)
        with on_failure(link.close), link.translated():
            self._begin(link)
        self._link = link
        return link

    def _begin(self, link: PulsarLink) -> None:
        """Create the producers. Raises if the brokers do not know what they should."""
        self._producers = [self._producer(link, name) for name in link.partitions(self._settings.full_topic)]
        if self._deduplicates:
            self._check([producer.last_sequence_id() for producer in self._producers])

    def _producer(self, link: PulsarLink, partition: str) -> Any:
        owner = self._owner
        return link.client.create_producer(
            partition,
            # The id of the ledger changes when the pipeline is started over and its positions begin again.
            producer_name=f"millstream/{owner.pipeline}/{owner.name}/{owner.ledger_id}" if self._repeats else None,
            # Not the client's: it gives up messages that are waiting, but sends those that it gets later, which would
            # overtake them.
            send_timeout_millis=0,
            max_pending_messages=PULSAR_UNCONFIRMED_MAX,
            # The client names a batch to the brokers by the id of its first message only, so they would not know the
            # others.
            batching_enabled=False,
        )

    def _check(self, last: Sequence[int]) -> None:
        """Whether the brokers know what was stored. `last`: by partition, the last id that they know; -1 for none."""
        owner, settings = self._owner, self._settings
        missing = [partition for partition, stored in self._stored.items() if last[partition] < stored]
        if missing and not self._is_known:
            raise UserError(
                codes.TARGET_UNFIT,
                f"{owner.where}: the brokers do not deduplicate messages of {settings.full_topic}: they do not know "
                "the lane's first message, which the lane wrote to find out, and nothing else. It will be written "
                "again, so use a topic that may contain it twice, or an empty one. Enable deduplication with "
                "`pulsar-admin namespaces set-deduplication --enable`, or set `deduplication: false`, which is at "
                "least once",
            )
        if missing or (max(last) < 0 and (self._is_known or owner.start > Position(0))):
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{owner.where}: the lane has written to {settings.full_topic} up to sequence "
                f"{owner.start.sequence}, but the brokers do not know its last message: they forget a "
                "producer that is away for long (brokerDeduplicationProducerInactivityTimeoutMinutes, 6 hours by "
                "default), deduplication was disabled, or the topic was recreated. Nothing was written now. To "
                "continue after the lane's mark, set `deduplication: false` for one run: records after the mark may "
                "then be in the topic twice",
            )
        self._is_known = max(last) >= 0

    def _write(self, frames: Sequence[SinkFrame]) -> list[list[SinkFailure]]:
        failures = []
        # Messages may be on their way, so after a failure nothing is sent before the brokers were asked again.
        with on_failure(self.close):
            link = self._open()
            with link.translated():
                for item in frames:
                    with step("pulsar_sink.send", self._owner.lane.vertex):
                        failures.append(self._send(link, item))
        return failures

    def _ask_again(self, link: PulsarLink) -> None:
        """After the first message of the lane: whether the brokers remember it shows in new producers."""
        for producer in self._producers:
            producer.close()
        self._begin(link)

    def _send(self, link: PulsarLink, item: SinkFrame) -> list[SinkFailure]:
        """Publish a frame's records, in order. Returns the failures of single records."""
        converted = convert(item, len(self._producers))
        made, failures = converted.made, list(converted.failures)
        if self._deduplicates and not self._is_known:
            # If the brokers do not deduplicate, what is sent now will be sent again.
            while made and not self._stored:
                failures += self._publish(made[:1])
                made = made[1:]
            if self._stored:
                self._ask_again(link)
        failures += self._publish(made)
        return sorted(failures, key=lambda failure: failure.index)

    def _publish(self, made: Sequence[Put]) -> list[SinkFailure]:
        """Send messages, in order, and wait for the answers. Returns the failures of single records."""
        refused: list[SinkFailure] = []
        for start in range(0, len(made), PULSAR_UNCONFIRMED_MAX):
            part = made[start : start + PULSAR_UNCONFIRMED_MAX]
            answers = _Answers()
            sent = 0
            for index, put in enumerate(part):
                # What is sent after a message that failed may be stored, and the one that failed never again.
                if answers.is_failed:
                    break
                self._producers[put.partition].send_async(
                    put.value,
                    lambda result, _, index=index, answers=answers: answers.note(index, result),
                    properties=put.properties or None,
                    partition_key=put.key or None,
                    sequence_id=put.sequence_id if self._repeats else None,
                    event_timestamp=put.time_ms or None,
                )
                sent += 1
            self._await(answers, sent)
            refused += self._refused(part[:sent], [answers.found[index] for index in range(sent)])
        return refused

    def _await(self, answers: _Answers, count: int) -> None:
        """Wait for the answers to as many messages. Raises `RetryLaterError` if none comes in time."""
        settings = self._settings
        known = -1
        until_s = 0.0
        while not answers.wait(count, min(1.0, settings.timeout_s)):
            self._thread.check()
            if len(answers.found) != known:
                known, until_s = len(answers.found), time.monotonic() + settings.timeout_s
            elif time.monotonic() >= until_s:
                raise self._not_stored(" in time")

    def _refused(self, made: Sequence[Put], results: Sequence[pulsar.Result]) -> list[SinkFailure]:
        """The records that are too large. Raises for other failures."""
        refused: list[SinkFailure] = []
        failed: dict[int, tuple[Put, pulsar.Result]] = {}
        overtaken: Put | None = None
        for put, result in zip(made, results, strict=True):
            if result == pulsar.Result.MessageTooBig:
                detail = f"it has {len(put.value)} bytes with its key and properties"
                refused.append(SinkFailure(put.row, TOO_LARGE, retryable=False, detail=detail))
            elif result != pulsar.Result.Ok:
                failed.setdefault(put.partition, (put, result))
            else:
                self._stored[put.partition] = max(put.sequence_id, self._stored.get(put.partition, -1))
                overtaken = overtaken or (failed[put.partition][0] if put.partition in failed else None)
        settings, owner = self._settings, self._owner
        if overtaken is not None and self._deduplicates:
            raise DamageError(
                codes.TARGET_POSITION_LOST,
                f"{owner.where}: Pulsar refused a message to {settings.full_topic} and stored later ones of the same "
                f"partition. It would take the refused one, {overtaken.sequence_id}, for a repeated one, and drop it, "
                "also with `deduplication: false`. Before the lane runs again, check whether the topic has it. If not, "
                "disable deduplication of the topic at the brokers, let the lane continue after its mark with "
                "`deduplication: false`, and enable it at the brokers again while that run still writes: records after "
                "the mark may be in the topic twice",
            )
        for _, result in failed.values():
            raise self._not_stored(f": {result}")
        return refused

    def _not_stored(self, why: str) -> RetryLaterError:
        return RetryLaterError(
            codes.TARGET_AWAY, f"{self._owner.where}: Pulsar at {self._settings.shown} has not stored a message{why}"
        )


@asynccontextmanager
async def open_pulsar_sink(settings: PulsarSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target. If the cluster is away, the first write waits for it."""
    async with open_thread(f"pulsar-sink-{owner.lane.key}") as thread:
        lane = PulsarSinkLane(settings, owner, thread)
        try:
            await first_try(lane.open(), _log)
            yield lane
        finally:
            thread.end(lane.close)
