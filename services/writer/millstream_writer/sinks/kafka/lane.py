"""The Kafka sink: each write is one transaction, which holds the records and the position behind them.

    write ─► too large? ─► beyond the position in Kafka? ─► transaction ─► durable
                                                                └─ no answer ─► open again, look, and go on

A commit whose answer is lost has happened or not. Which of the two, the position says that is read when the lane's
session is opened again; only then does the write return. Without transactions (`transactions: false`, and as a
fallback) a write returns when the brokers have acknowledged everything, and may be made again.

Above it: the delivery. Below it: `session`, and one thread, because the calls of the client block.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from confluent_kafka import KafkaError

from millstream import codes
from millstream.errors import DamageError, InfrastructureError, RetryLaterError
from millstream.limits import KAFKA_MARKER_REFRESH_S
from millstream.record import Position
from millstream.wire.kafka import ClientThread, open_thread
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import (
    Guarantee,
    SinkFrame,
    SinkLane,
    UnkeptLane,
    WriteResult,
    exact_end,
    exact_position,
    frame_at,
)
from millstream_writer.sinks.kafka.connector import KafkaSink
from millstream_writer.sinks.kafka.records import Message, messages_of, too_large
from millstream_writer.sinks.kafka.session import BrokenError, Session, refusal

_log = logging.getLogger(__name__)


class KafkaSinkLane:
    """A lane that writes in transactions. The methods with an underscore and no `async` run in its thread."""

    def __init__(self, session: Session, spec: KafkaSink, owner: SinkOwner, thread: ClientThread) -> None:
        self._session = session
        self._spec = spec
        self._owner = owner
        self._thread = thread
        self._durable = owner.start
        self._frame = ""
        """Name of the frame that `_durable` lies in, where it is known."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    async def open(self) -> None:
        """Errors: those of `SinkConnector.open`."""
        await self._thread.run(self._session.prepare)
        await self._thread.run(self._open)
        await self._check_past()

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return await self._thread.run(self._write, frames, end)

    async def flush(self) -> None:
        """Every write is durable when it returns."""

    async def tick(self) -> None:
        # Kafka forgets offsets of a group that commits none.
        if time.monotonic() >= self._session.used_s + KAFKA_MARKER_REFRESH_S:
            await self._thread.run(self._refresh)

    async def _check_past(self) -> None:
        """What Kafka holds beyond the mark is left out when it is offered again, so it must be what was stored then."""
        if not self._frame or self._durable <= self._owner.start:
            return
        sequence = frame_at(self._durable)
        held = await self._owner.held_instead(sequence, self._frame)
        if held is not None:
            raise DamageError(
                codes.SINK_AHEAD,
                f"{self._owner.where}: the topic {self._spec.topic!r} has records up to frame {self._frame} at "
                f"sequence {sequence}, where the buffer holds {held} now, and the lane's mark is at "
                f"{self._owner.start.sequence}: what the pipeline keeps is older than the topic. No record was left "
                "out or written. Put back the data directory that was there when the records were written. "
                f"{self._session.by_hand}",
            )

    def _open(self) -> None:
        """Open the session, again where another owner or an outage ended it."""
        while True:
            try:
                marker = self._session.open()
            except BrokenError as broken:
                # Another owner opened between two calls of ours; one of the two has the higher epoch, and stays.
                if (stop := refusal(broken.error, self._spec.topic, self._owner.where)) is not None:
                    raise stop from broken
                self._thread.wait(0.1)
                continue
            if marker is not None and marker.position > self._durable:
                self._durable, self._frame = marker.position, marker.frame
            return

    def _write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        bytes_max = self._session.record_bytes_max
        failures = [too_large(item.frame, bytes_max, set_key=self._spec.set_key) for item in frames]
        result = WriteResult(failures if any(failures) else ())
        reached = exact_end(frames, end)
        refused = [{failure.index for failure in of_frame} for of_frame in failures]
        while True:
            if not self._session.is_open:
                self._open_again()
            rows = list(map(self._rows, frames, refused))
            if not any(rows):
                # There already, or nothing was for this sink.
                self._durable = max(self._durable, reached)
                return result
            messages = (
                message
                for item, wanted in zip(frames, rows, strict=True)
                for message in _picked(item, wanted, set_key=self._spec.set_key)
            )
            name = frames[-1].name if frames[-1].sequence == frame_at(reached) else ""
            try:
                self._session.commit(messages, reached, name)
            except BrokenError as broken:
                self._settle(broken)
            else:
                self._durable, self._frame = reached, name
                return result

    def _rows(self, item: SinkFrame, refused: set[int]) -> list[int]:
        """The records of a frame that Kafka does not have, and takes."""
        indexes, durable = item.indexes(), self._durable
        first = bisect_left(indexes, True, key=lambda index: exact_position(item, index + 1) > durable)
        rows = range(first, len(indexes))
        return [row for row in rows if row not in refused] if refused else list(rows)

    def _settle(self, broken: BrokenError) -> None:
        """After a failed transaction: returns when the write may be looked at again, raises when it cannot go on."""
        if broken.undecided:
            _log.warning(
                "%s: Kafka did not answer a commit (%s); looking whether it happened", self._owner.where, broken
            )
            while True:
                try:
                    self._open_again()
                    return
                except (RetryLaterError, InfrastructureError) as error:
                    # The write cannot be given back while it is not known what became of it.
                    if isinstance(error, DamageError):
                        raise
                    _log.warning("%s: a commit is undecided: %s", self._owner.where, error)
        if (stop := refusal(broken.error, self._spec.topic, self._owner.where)) is not None:
            raise stop from broken
        if broken.error.code() not in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH):
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: Kafka: {broken}") from broken
        # Another owner, or the cluster gave the transaction up: opening the session tells which.

    def _open_again(self) -> None:
        try:
            self._open()
        except InfrastructureError as error:
            if isinstance(error, DamageError):
                raise
            raise RetryLaterError(error.code, str(error)) from error

    def _refresh(self) -> None:
        try:
            if not self._session.is_open:
                self._open_again()
            self._session.commit((), self._durable, self._frame)
        except BrokenError as broken:
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: Kafka: {broken}") from broken


def _picked(item: SinkFrame, rows: Sequence[int], *, set_key: bool) -> Iterator[Message]:
    """The messages of some records of a frame."""
    if not rows:
        return iter(())
    messages = messages_of(item.frame, set_key=set_key)
    if len(rows) == item.frame.records:
        return messages
    wanted = set(rows)
    return (message for row, message in enumerate(messages) if row in wanted)


class UnfencedLane(UnkeptLane):
    """A lane without transactions: what the brokers have acknowledged is there, at least once."""

    def __init__(self, session: Session, spec: KafkaSink, thread: ClientThread) -> None:
        self._session = session
        self._spec = spec
        self._thread = thread

    async def open(self) -> None:
        await self._thread.run(self._session.prepare)

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return await self._thread.run(self._write, frames)

    def _write(self, frames: Sequence[SinkFrame]) -> WriteResult:
        bytes_max, set_key = self._session.record_bytes_max, self._spec.set_key
        failures = [too_large(item.frame, bytes_max, set_key=set_key) for item in frames]
        refused = [{failure.index for failure in of_frame} for of_frame in failures]
        self._session.send(
            message
            for item, left_out in zip(frames, refused, strict=True)
            for message in _picked(
                item, [row for row in range(item.frame.records) if row not in left_out], set_key=set_key
            )
        )
        return WriteResult(failures if any(failures) else ())


@asynccontextmanager
async def open_kafka_sink(spec: KafkaSink, owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """The lane's target. Errors: those of `SinkConnector.open`."""
    async with open_thread("kafka-sink") as thread:
        session = Session(spec, owner, thread)
        try:
            if owner.fallback or not spec.transactions:
                unfenced = UnfencedLane(session, spec, thread)
                await unfenced.open()
                yield unfenced
            else:
                lane = KafkaSinkLane(session, spec, owner, thread)
                await lane.open()
                yield lane
        finally:
            thread.end(session.close)
