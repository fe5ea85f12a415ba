"""Pulsar topics: one lane reads each partition, after the message in the lane's mark.

    mark: message, digest ─► reader, from that message on ─► the message itself: is it the one that was read?
                                                         └─► what follows: message, place ─► frame

Pulsar stores a partition in ledgers, and deletes whole ledgers: when all subscriptions have acknowledged them and the
retention has passed, or when messages expire. A reader that is behind is then moved on silently, by an expiry also over
messages that still exist. So when a message is in another ledger than the one before it, or not in the next entry, the
lane looks with another reader whether it follows that message, and whether that message still exists: what was between
the two then exists, too. The source's own subscription acknowledges messages after the commit, but not the last one,
which therefore stays. No position depends on it.

Above it: a source lane. Below it: pulsar-client, in one thread, because its calls block.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pulsar
from pulsar import exceptions

from millstream import codes
from millstream.blocking import ClientThread, open_thread
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream_connectors.pulsar.client import FAILURES, PulsarLink, open_link
from millstream_connectors.pulsar.settings import PulsarSource
from millstream_connectors.pulsar.source.losses import Losses
from millstream_connectors.pulsar.source.messages import BEGINNING, IncomingMessage, MessagePlace, arrived, place_of
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.positioned_lane import PositionedLane
from millstream_connectors.shared.record_batch import RecordBatch
from millstream_connectors.shared.starts import LATEST, start_time
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

_SHARE_S = 0.02
"""How long a lane with several partitions waits for a message of one before it asks for one of the next."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Split:
    """One partition."""

    at: MessagePlace | None = None
    """The last message that was read; None if it is the first run that decides where to begin."""
    digest: str = ""
    """Its digest; empty if none was read."""
    end: MessagePlace | None = None
    """The last message to read, if the source has an end."""
    passed: bool = False
    """Whether nothing is left before the end, though the message at the end was not read: it is before the place where
    the reader began, or does not exist any more."""
    received: MessagePlace = BEGINNING
    """The last message that was received."""
    began: MessagePlace = BEGINNING
    """Where the reader began: no message is before it."""
    reader: Any = None
    holder: Any = None
    """The consumer of the subscription. It is never asked for messages."""

    def begin_at_mark(self) -> None:
        """Forget what was received after the last message that was read."""
        self.received = self.at if self.at is not None and self.at.is_message else BEGINNING
        self.began = self.received

    @property
    def is_ended(self) -> bool:
        if self.end is None:
            return False
        return self.passed or not self.end.is_message or self.end <= (self.at or BEGINNING)


class PulsarSourceLane(PositionedLane):
    """One lane. See `SourceLane`. The methods with an underscore and no `async` run in its thread."""

    kind = "pulsar"

    def __init__(self, spec: PulsarSource, owner: SourceOwner, thread: ClientThread) -> None:
        super().__init__(owner)
        self._spec = spec
        self._thread = thread
        self._link: PulsarLink | None = None
        self._splits: dict[str, _Split] = {}
        self._waiting: deque[IncomingMessage] = deque()
        """Messages that were received and not read yet."""
        self._turns: deque[str] = deque()
        """The partitions, the one that is asked first at its head."""
        self._is_looking = False
        """Whether a message has arrived and has to be compared before it can be read."""
        self._losses = Losses(spec.timeout_s)

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        await self._thread.run(self._open)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if self._draining or self._is_ended():
            return SourceBatch(None, self._position(), ended=self._is_ended() and not self._draining)
        if not self._waiting:
            self._waiting.extend(await self._thread.run(self._poll, records_max, bytes_max, timeout_s))
        return self._take(records_max, bytes_max)

    async def committed(self, position: bytes) -> None:
        self._thread.submit(partial(self._acknowledge, position))

    def is_held_up(self) -> bool:
        # The client's thread may add a split meanwhile.
        readers = [split.reader for split in tuple(self._splits.values())]
        return self._is_looking or not all(reader is not None and reader.is_connected() for reader in readers)

    def close(self) -> None:
        """Runs in the thread."""
        self._losses.forget()
        if self._link is not None:
            link, self._link = self._link, None
            link.close()

    def _open(self) -> None:
        body = self._unpacked(self._owner.position)
        known = {} if body is None else self._known(body)
        self._link = link = self._new_link()
        with link.translated():
            for topic in self._spec.topics:
                for partition, name in enumerate(link.partitions(topic)):
                    if self._owns(topic, partition):
                        # A partition that was added since is read from its beginning.
                        self._splits[name] = known.pop(name, _Split() if body is None else _Split(BEGINNING))
        if known:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: earlier runs read {', '.join(sorted(known))}, which `topic` no longer names or the "
                "cluster no longer has. Name the topic again, or start over with --fresh",
            )
        self._turns.extend(self._splits)
        with link.translated():
            for name, split in self._splits.items():
                self._begin(name, split, first_run=body is None)

    def _new_link(self) -> PulsarLink:
        return open_link(self._spec, self._owner.base_dir, self._where)

    def _open_again(self) -> PulsarLink:
        """Begin again after what was read, with a client of its own: the former one may have closed itself."""
        self._link = link = self._new_link()
        with link.translated():
            for name, split in self._splits.items():
                self._begin(name, split, first_run=False)
        return link

    def _known(self, body: dict[str, Any]) -> dict[str, _Split]:
        with self._restoring():
            return {
                name: _Split(
                    None if at is None else MessagePlace(*map(int, at)),
                    str(digest),
                    None if end is None or not self._spec.stop_at_end else MessagePlace(*map(int, end)),
                )
                for name, (at, digest, end) in body["at"].items()
            }

    def _begin(self, name: str, split: _Split, *, first_run: bool) -> None:
        """Begin to read a partition after the lane's place in it."""
        spec = self._spec
        split.holder = self._client.subscribe(
            name,
            spec.subscription_name,
            # An earlier owner may still be connected.
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1,
        )
        last = place_of(split.holder.get_last_message_id())
        if first_run:
            if spec.start == LATEST:
                split.at = last
            elif start_time(spec.start) is None:
                split.at = BEGINNING
        if split.at is not None and split.at.is_message and last < split.at:
            ending = f"ends at {last}" if last.is_message else "has no messages"
            raise self._damage(name, f"it was read up to {split.at}, but {ending}")
        if spec.stop_at_end and split.end is None:
            split.end = last
        split.reader = self._reader(name, split.at or BEGINNING)
        if split.at is None and (start := start_time(spec.start)) is not None:
            split.reader.seek(int(start.timestamp() * 1000))
            split.passed = spec.stop_at_end and not split.reader.has_message_available()
        split.begin_at_mark()

    def _reader(self, name: str, at: MessagePlace, receiver_queue_size: int | None = None) -> Any:
        """A reader that begins with the entry at a place."""
        start = pulsar.MessageId(-1, at.ledger, at.entry, -1) if at.is_message else pulsar.MessageId.earliest
        return self._client.create_reader(
            name,
            start,
            start_message_id_inclusive=True,
            receiver_queue_size=receiver_queue_size or self._spec.receiver_queue_size,
        )

    def _poll(self, records_max: int, bytes_max: int, timeout_s: float) -> list[IncomingMessage]:
        """What has arrived; waits for the first message. If it cannot be read now, the next call begins again after
        what was read: messages that have left a reader do not come twice."""
        with on_failure(self.close):
            link = self._link or self._open_again()
            self._check_connected()
            with link.translated():
                return self._received(records_max, bytes_max, timeout_s)

    def _check_connected(self) -> None:
        """Raise a Millstream error if readers have had no connection for the cluster's timeout, and the others have
        none either, or a new client could connect, or the user has to change something.

        The client connects again by itself, but does not report why it cannot, such as a token that has expired. A new
        link reads the secrets again, and reports it.
        """
        reading = {name: split.reader for name, split in self._splits.items() if not split.is_ended}
        apart = [name for name, reader in reading.items() if not reader.is_connected()]
        lost = self._losses.look(apart, time.monotonic())
        if not lost:
            return
        if len(apart) < len(reading):
            why = self._why_lost(lost[0])
            if why is not None:
                # The other partitions are read meanwhile. One stands for all, because each may take the timeout.
                self._losses.postpone(lost)
                _log.warning("%s: %s is not read now: %s", self._where, ", ".join(lost), why)
                return
        what = f"{self._where}: the connection to Pulsar at {self._spec.shown} is lost; a new one is opened"
        raise RetryLaterError(codes.TARGET_AWAY, what)

    def _why_lost(self, name: str) -> RetryLaterError | None:
        """Why a client of its own cannot read a partition now either; None if it can. Raises `UserError`."""
        try:
            with closing(self._new_link()) as link, link.translated():
                link.client.create_reader(name, pulsar.MessageId.latest)
        except RetryLaterError as error:
            return error
        return None

    def _received(self, records_max: int, bytes_max: int, timeout_s: float) -> list[IncomingMessage]:
        found: list[IncomingMessage] = []
        size = 0
        until_s = time.monotonic() + timeout_s
        while True:
            self._thread.check()
            left_s = until_s - time.monotonic()
            reading = [name for name in self._turns if not self._splits[name].is_ended]
            wait_s = left_s if len(reading) == 1 else min(left_s, _SHARE_S)
            for name in reading:
                if len(found) >= records_max or size >= bytes_max:
                    break
                share = self._received_of(
                    name,
                    min(max(1, records_max // len(reading)), records_max - len(found)),
                    min(max(1, bytes_max // len(reading)), bytes_max - size),
                    0.0 if found else max(0.0, wait_s),
                )
                found += share
                size += sum(one.size for one in share)
            self._turns.rotate(-1)
            if found or left_s <= 0:
                return found

    def _received_of(self, name: str, records_max: int, bytes_max: int, wait_s: float) -> list[IncomingMessage]:
        """What has arrived of a partition; waits for the first message."""
        split = self._splits[name]
        found: list[IncomingMessage] = []
        size = 0
        while len(found) < records_max and size < bytes_max:
            message = _next(split.reader, 0.0 if found else wait_s)
            if message is None:
                break
            one = arrived(name, message)
            if self._is_new(split, one):
                found.append(one)
                size += one.size
        return found

    def _is_new(self, split: _Split, one: IncomingMessage) -> bool:
        """Whether a message follows what was received. Raises `DamageError` if messages before it were removed."""
        last = split.received
        if one.place[:2] < split.began[:2]:
            raise self._damage(one.split, f"it was read up to {split.began}, but has a new message at {one.place}")
        if one.place == split.at and split.digest and one.digest != split.digest:
            raise self._replaced(one.split, one.place)
        if one.place <= last:
            return False
        if last.is_message and (one.place.ledger != last.ledger or one.place.entry > last.entry + 1):
            self._check_next(one.split, last, one.place)
        split.received = one.place
        return True

    def _check_next(self, name: str, last: MessagePlace, next_place: MessagePlace) -> None:
        """Whether one message follows another, by a reader of its own. Raises a Millstream error if not.

        Ids of entries are not consecutive where a message has several chunks, or a transaction ended.
        """
        first, following = self._look(name, last)
        # Whole ledgers are deleted, so the rest of a ledger shows that the message exists. A message of several chunks
        # is at its last one, and a reader that begins there does not return it.
        if first[:2] != last[:2] and last.ledger != next_place.ledger:
            first, _ = self._look(name, MessagePlace(last.ledger, 0, -1))
            if first.ledger != last.ledger:
                raise self._damage(
                    name, f"the message at {last}, which was read last, is gone, and the next one is at {next_place}"
                )
        if following > next_place:
            raise self._damage(name, f"the message at {next_place}, which follows {last}, is gone")
        if following < next_place:
            # Pulsar expires messages for readers, too, before it deletes them.
            raise RetryLaterError(
                codes.TARGET_AWAY,
                f"{self._where}: {name}: Pulsar went from the message at {last} to the one at {next_place}, but the "
                f"one at {following} still exists (an expiry has moved the reader): it is read again from {last}",
            )

    def _look(self, name: str, place: MessagePlace) -> tuple[MessagePlace, MessagePlace]:
        """The first message from a place on, and the first one after it. Raises `FAILURES` if they do not come."""
        self._is_looking = True
        try:
            with closing(self._reader(name, place, 1)) as reader:
                first = found = self._next_place(reader)
                while found <= place:
                    found = self._next_place(reader)
        finally:
            self._is_looking = False
        return first, found

    def _next_place(self, reader: Any) -> MessagePlace:
        return place_of(reader.read_next(math.ceil(self._spec.timeout_s * 1000)).message_id())

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        """The next batch."""
        batch = RecordBatch("the message")
        read: dict[str, IncomingMessage] = {}
        while self._waiting and len(batch.values) < records_max:
            one = self._waiting[0]
            end = self._splits[one.split].end
            if end is not None and one.place > end:
                self._waiting.popleft()
                self._splits[one.split].passed = True
                continue
            if not batch.fits(one.size, bytes_max):
                break
            self._waiting.popleft()
            read[one.split] = one
            batch.add(
                one.value,
                one.time_us,
                f"{one.split} at {one.place}",
                size=one.size,
                keys=one.keys,
                headers=one.headers,
                fault=one.fault,
            )
        for name, last in read.items():
            self._splits[name].at, self._splits[name].digest = last.place, last.digest
        frame = batch.frame(self._owner.clock.now_us())
        return SourceBatch(frame, self._position(), ended=self._is_ended(), invalid=tuple(batch.invalid))

    def _is_ended(self) -> bool:
        return self._spec.stop_at_end and all(split.is_ended for split in self._splits.values())

    def _position(self) -> bytes:
        return self._packed({"at": {name: (split.at, split.digest, split.end) for name, split in self._splits.items()}})

    def _acknowledge(self, position: bytes) -> None:
        """Acknowledge the messages of a commit, without its last entry."""
        body = self._unpacked(position)
        for name, split in ({} if body is None else self._known(body)).items():
            if self._link is None or split.at is None or split.at.entry < 1:
                continue
            try:
                before = pulsar.MessageId(-1, split.at.ledger, split.at.entry - 1, -1)
                self._splits[name].holder.acknowledge_cumulative(before)
            except FAILURES as error:
                # A later commit acknowledges them, too.
                _log.info("%s: %s: not acknowledged: %s", self._where, name, error)

    @property
    def _client(self) -> pulsar.Client:
        assert self._link is not None, "it is open"
        return self._link.client

    def _damage(self, name: str, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {name}: {what}: messages may have been removed before they were read (they expired, the "
            f"subscription {self._spec.subscription_name} was moved, or the topic was recreated). Nothing was skipped. "
            "Read the remaining messages with a source of another name, or start over with --fresh; and let the "
            "namespace keep unread messages longer",
        )

    def _replaced(self, name: str, at: MessagePlace) -> DamageError:
        return DamageError(
            codes.SOURCE_PAST_REPLACED,
            f"{self._where}: {name}: the message at {at} is not the one that was read: the cluster was recreated, or "
            "restored from an older copy. Read what it has now with a source of another name, or start over with "
            "--fresh",
        )


def _next(reader: Any, timeout_s: float) -> Any:
    """The next message of a reader; None if none arrives in time."""
    try:
        return reader.read_next(max(1, int(timeout_s * 1000)))
    except exceptions.Timeout:
        return None


@asynccontextmanager
async def open_pulsar_source(spec: PulsarSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """A lane of its splits, at `owner.position`."""
    async with open_thread(f"pulsar-source-{owner.lane.partition}") as thread:
        lane = PulsarSourceLane(spec, owner, thread)
        try:
            await lane.open()
            yield lane
        finally:
            thread.end(lane.close)
