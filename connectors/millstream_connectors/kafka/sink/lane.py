"""The Kafka sink: each write is one transaction, which contains the records and the position after them.

    write ─► up to the first record that is too large (`kept`) ─► transaction ─► durable
                                                                       └─ no answer ─► reopen, check, continue

If the answer to a commit is lost, the position shows whether the commit happened. It is read when the lane's session is
opened again, and only then does the write return. Without transactions (`transactions: false`, and as a fallback), a
write returns when the brokers have acknowledged everything, and may be repeated.

Above it: the delivery. Below it: `session`, and one thread, because the calls of the client block.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from confluent_kafka import KafkaError

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import DamageError, InfrastructureError, RetryLaterError
from millstream.limits import KAFKA_MARKER_REFRESH_S
from millstream.record import Position
from millstream_connectors.kafka.settings import KafkaSink
from millstream_connectors.kafka.sink.records import Message, convert
from millstream_connectors.kafka.sink.session import BrokenError, KafkaSession, refusal
from millstream_connectors.shared.kept import ConvertedRecords, KeptLane
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WriteResult, frame_at

_log = logging.getLogger(__name__)


class KafkaSinkLane(KeptLane[Message]):
    """A lane that writes in transactions. The methods with an underscore and no `async` run in its thread."""

    def __init__(self, session: KafkaSession, spec: KafkaSink, owner: SinkOwner, thread: ClientThread) -> None:
        # The size of a write is bounded by its bytes.
        super().__init__(owner, records_max=sys.maxsize)
        self._broker = session
        self._spec = spec
        self._thread = thread
        self._frame = ""
        """Name of the frame that contains `_durable`, if it is known."""

    async def open(self) -> None:
        """Errors: those of `SinkConnector.open`."""
        await self._thread.run(self._open)
        await self._check_past()

    async def tick(self) -> None:
        await super().tick()
        # Kafka removes the offsets of a group that commits none.
        if time.monotonic() >= self._broker.used_s + KAFKA_MARKER_REFRESH_S:
            await self._thread.run(self._refresh)

    def _convert(self, item: SinkFrame) -> ConvertedRecords[Message]:
        return convert(item.frame, self._broker.record_bytes_max, set_key=self._spec.set_key)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        if not self._broker.is_open:
            await self._thread.run(self._open_again)
        yield

    async def _commit(self, made: Sequence[Message], end: Position, frame: str) -> None:
        await self._thread.run(self._transact, made, end, frame)

    async def _check_past(self) -> None:
        """Records in Kafka after the mark are skipped when they are offered again, so they must be the ones that were
        stored."""
        if not self._frame or self._durable <= self._owner.start:
            return
        sequence = frame_at(self._durable)
        held = await self._owner.held_instead(sequence, self._frame)
        if held is not None:
            raise DamageError(
                codes.SINK_AHEAD,
                f"{self._owner.where}: the topic {self._spec.topic!r} has records up to frame {self._frame} at "
                f"sequence {sequence}, but the buffer now holds {held} there, and the lane's mark is at "
                f"{self._owner.start.sequence}: the pipeline's data is older than the topic. No record was skipped "
                f"or written. Restore the data directory that belongs to the topic. {self._broker.by_hand}",
            )

    def _open(self) -> None:
        """Open the session, and reopen it after another owner or an outage has ended it."""
        while True:
            try:
                marker = self._broker.open()
            except BrokenError as broken:
                # Another owner has opened between two of our calls; the one with the higher epoch stays.
                if (stop := refusal(broken.error, self._spec.topic, self._owner.where)) is not None:
                    raise stop from broken
                self._thread.wait(0.1)
                continue
            if marker is not None and marker.position > self._durable:
                self._durable, self._frame = marker.position, marker.frame
            return

    def _transact(self, made: Sequence[Message], end: Position, frame: str) -> None:
        """One transaction, repeated until it is known to have happened."""
        while self._durable < end:
            if not self._broker.is_open:
                self._open_again()
                continue
            try:
                self._broker.commit(made, end, frame)
            except BrokenError as broken:
                self._settle(broken)
            else:
                self._durable, self._frame = end, frame

    def _settle(self, broken: BrokenError) -> None:
        """After a failed transaction: returns when the outcome can be checked, raises if the lane cannot continue."""
        if broken.undecided:
            _log.warning(
                "%s: Kafka did not answer a commit (%s); checking whether it took effect", self._owner.where, broken
            )
            while True:
                try:
                    self._open_again()
                    return
                except (RetryLaterError, InfrastructureError) as error:
                    # The write cannot be returned while its outcome is unknown.
                    if isinstance(error, DamageError):
                        raise
                    _log.warning("%s: the outcome of a commit is not known: %s", self._owner.where, error)
        if (stop := refusal(broken.error, self._spec.topic, self._owner.where)) is not None:
            raise stop from broken
        if broken.error.code() not in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: Kafka: {broken}") from broken
        # Another owner exists, or the cluster aborted the transaction: reopening the session shows which.

    def _open_again(self) -> None:
        try:
            self._open()
        except InfrastructureError as error:
            if isinstance(error, DamageError):
                raise
            raise RetryLaterError(error.code, str(error)) from error

    def _refresh(self) -> None:
        try:
            if not self._broker.is_open:
                self._open_again()
            self._broker.commit((), self._durable, self._frame)
        except BrokenError as broken:
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: Kafka: {broken}") from broken


class UnfencedLane(UnkeptLane):
    """A lane without transactions: at least once, when the brokers have acknowledged a record."""

    def __init__(self, session: KafkaSession, spec: KafkaSink, thread: ClientThread) -> None:
        self._session = session
        self._spec = spec
        self._thread = thread

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return await self._thread.run(self._write, frames)

    def _write(self, frames: Sequence[SinkFrame]) -> WriteResult:
        bytes_max = self._session.record_bytes_max
        converted = [convert(item.frame, bytes_max, set_key=self._spec.set_key) for item in frames]
        self._session.send(message for found in converted for message in found.made)
        failures = [found.failures for found in converted]
        return WriteResult(failures if any(failures) else ())


@asynccontextmanager
async def open_kafka_sink(spec: KafkaSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target. Errors: those of `SinkConnector.open`."""
    async with open_thread("kafka-sink") as thread:
        session = KafkaSession(spec, owner, thread)
        try:
            await thread.run(session.prepare)
            if owner.fallback or not spec.transactions:
                yield UnfencedLane(session, spec, thread)
            else:
                lane = KafkaSinkLane(session, spec, owner, thread)
                await lane.open()
                yield lane
        finally:
            thread.end(session.close)
