"""A JetStream stream, read in order after the message in the lane's mark.

    mark: sequence ─► a consumer of this process (acknowledges nothing) ─► pull ─► messages, in order ─► frame
                          ▲                                                                             │
                          └── recreated after the last message, when one is missing or the server goes ┘

The position does not depend on a durable consumer. A stream removes messages by age, size and number; sequences reveal
messages that were removed before they were read. If only some subjects are read, the lane's sequence follows the stream
while none of their messages arrive, so messages of other subjects that were removed do not count as missing.

Above it: a source lane. Below it: one connection to the server.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from millstream import codes
from millstream.errors import DamageError, RetryLaterError, UserError
from millstream.extract import EPOCH_NS
from millstream.limits import NATS_PULL_BYTES, NATS_PULL_MESSAGES
from millstream.nats.client import Msg, header_bytes
from millstream.nats.connection import ApiError, BrokerConnection
from millstream.nats.pulling import EXPIRES_MIN_S, MessageOrigin, PullConsumer
from millstream_connectors.jetstream.settings import JetStreamSource
from millstream_connectors.nats.client import NO_MESSAGE, NO_STREAM, linked, looking, translated
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.messages import event_time
from millstream_connectors.shared.reaching import RemoteLane
from millstream_connectors.shared.record_batch import RecordBatch
from millstream_connectors.shared.starts import LATEST, start_time
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch, SourceLane

SUBJECT_HEADER = "Nats-Subject"
_RECORD_OVERHEAD_BYTES = 64

_log = logging.getLogger(__name__)


class _Message(NamedTuple):
    sequence: int
    subject: str
    headers: Mapping[str, str]
    data: bytes
    time_us: int
    fault: str = ""
    """Why the message cannot become a record; empty if it can."""

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""
        headers = sum(len(name) + len(text) for name, text in self.headers.items())
        return _RECORD_OVERHEAD_BYTES + len(self.data) + len(self.subject) + headers

    @property
    def digest(self) -> str:
        return _digest(self.subject, self.data)


def _digest(subject: str, data: bytes) -> str:
    """A digest that reveals a different message at the same sequence."""
    return blake2b(subject.encode() + b"\0" + data, digest_size=8).hexdigest()


class JetStreamSourceLane(RemoteLane):
    """One lane. See `SourceLane`."""

    kind = "jetstream"

    def __init__(self, spec: JetStreamSource, owner: SourceOwner, connection: BrokerConnection) -> None:
        super().__init__(owner, _log)
        self._spec = spec
        self._connection = connection
        self._subjects = tuple(filter(self._owns, spec.subjects))
        self._idle = not (self._subjects if spec.subjects else self._owns(spec.stream))
        """Whether this lane has nothing to read."""
        self._created = ""
        """When the stream was created: one of the same name with another time is another stream."""
        self._at: int | None = None
        """The sequence up to which all existing messages were read; None until a first run has found its beginning."""
        self._read = 0
        """Sequence of the last message that was read."""
        self._digest = ""
        """Digest of that message."""
        self._end: int | None = None
        """The last sequence to read, if the source has an end."""
        self._consumer = PullConsumer(connection, spec.stream, on_message=self._on_message, on_expired=self._on_expired)
        self._waiting = 0
        """Number of messages that wait at the server, as last reported."""
        self._arrived: deque[_Message] = deque()
        self._ran_out = False
        """Whether a pull ended because there were no more messages."""

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        self._restore()
        if self._idle:
            return
        await self._consumer.open()
        with translated(self._connection, self._where):
            await self._new_consumer()

    async def close(self) -> None:
        await self._consumer.close()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if not self._arrived and not self._draining and not self._is_ended():
            await self._fill(timeout_s)
        return self._take(records_max, bytes_max)

    def pending(self) -> int | None:
        return 0 if self._idle else self._waiting + len(self._arrived)

    def is_held_up(self) -> bool:
        return not self._idle and (self._reaching.is_away or not self._connection.is_up)

    # The lane's position

    def _restore(self) -> None:
        spec = self._spec
        body = self._unpacked(self._owner.position)
        if body is None:
            return
        with self._restoring():
            self._at = None if body["at"] is None else int(body["at"])
            self._read, self._digest, self._created = int(body["read"]), str(body["digest"]), str(body["created"])
            self._end = None if body["end"] is None or not spec.stop_at_end else int(body["end"])
            stream, subjects = str(body["stream"]), tuple(map(str, body["subjects"]))
        if (stream, subjects) != (spec.stream, self._subjects):
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: it reads {_named(spec.stream, self._subjects)}, but earlier runs read "
                f"{_named(stream, subjects)}, and their position does not apply to it. Change it back, or start "
                "over with --fresh",
            )

    def _position(self) -> bytes:
        return self._packed(
            {
                "at": self._at,
                "read": self._read,
                "digest": self._digest,
                "created": self._created,
                "end": self._end,
                "stream": self._spec.stream,
                "subjects": self._subjects,
            }
        )

    async def _check_stream(self) -> None:
        """Check that the stream is the one that was read, and still has all unread messages. Determines where a first
        run begins and ends."""
        info = await _info(self._connection, self._spec.stream)
        if info is None:
            if self._created:
                raise self._replaced("the stream no longer exists")
            raise UserError(
                codes.TARGET_UNFIT,
                f"{self._where}: there is no stream {self._spec.stream} at {self._connection.place}. Create it, or "
                "name another one",
            )
        state = info["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        if not self._created:
            check_fit(self._where, _faults(info, self._spec.stream))
            self._created = info["created"]
        elif info["created"] != self._created:
            raise self._replaced(
                f"the stream was created at {info['created']}, but the one that was read was created at {self._created}"
            )
        if self._at is None:
            if self._spec.start == LATEST:
                self._at = last
            elif start_time(self._spec.start) is None:
                self._at = max(0, first - 1)
        else:
            if last < self._at:
                raise self._replaced(f"it was read up to sequence {self._at}, but ends at {last}")
            await self._check_read()
            if first > self._at + 1 and int(info["config"].get("max_msgs_per_subject", -1)) <= 0:
                raise self._removed(first)
        if self._spec.stop_at_end and self._end is None:
            self._end = last

    async def _check_read(self) -> None:
        """Check that the last message that was read is unchanged, if it still exists."""
        if not self._digest:
            return
        try:
            answer = await self._connection.api(f"STREAM.MSG.GET.{self._spec.stream}", {"seq": self._read})
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise
            return
        message = answer["message"]
        if _digest(message["subject"], base64.b64decode(message.get("data", ""))) != self._digest:
            raise self._replaced(f"the message at sequence {self._read} is not the one that was read")

    def _removed(self, first: int) -> DamageError:
        which = f" (of {', '.join(self._subjects)} or of other subjects)" if self._subjects else ""
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {self._spec.stream}: the lane is at sequence {self._at}, but the first message left is "
            f"{first}: messages{which} were removed before they were read, by a limit of the stream or a purge. "
            "Nothing else was skipped. Read the remaining messages with a source of another name, or start over "
            "with --fresh; and let the stream keep more",
        )

    def _replaced(self, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._where}: {self._spec.stream}: {what}: the stream was recreated, or the server lost its latest "
            "data or was rolled back. Restore its data, read what it has now with a source of another name, or "
            "start over with --fresh",
        )

    # Reading

    async def _fill(self, timeout_s: float) -> None:
        """Wait for messages, up to the timeout."""
        if self._idle:
            await asyncio.sleep(timeout_s)
            return
        until_s = self._now_s() + timeout_s
        if not await self._reaching.may_try(timeout_s):
            return
        try:
            with translated(self._connection, self._where):
                if not await self._is_reached(timeout_s):
                    return
                async with asyncio.timeout(self._spec.timeout_s + timeout_s):
                    await self._advance(until_s)
            self._reaching.worked()
        except RetryLaterError as error:
            self._consumer.needs_restart(str(error))
            self._reaching.failed(error)

    async def _is_reached(self, timeout_s: float) -> bool:
        """Whether there is a connection before the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.connected()
        except TimeoutError:
            return False
        return True

    async def _advance(self, until_s: float) -> None:
        if self._consumer.is_over:
            await self._new_consumer()
        while not self._arrived and self._consumer.restart is None and not self._is_ended():
            if self._ran_out or (self._end is not None and self._waiting == 0):
                await self._follow_stream()
                if self._is_ended():
                    return
            self._consumer.forget_news()
            if not self._consumer.requested:
                # A pull that cannot hold the largest message would never deliver it.
                size = max(NATS_PULL_BYTES, 2 * int(self._connection.server.get("max_payload", 0)))
                await self._consumer.request(NATS_PULL_MESSAGES, size, EXPIRES_MIN_S)
            left_s = until_s - self._now_s()
            if left_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._consumer.wait()

    def _on_message(self, message: Msg, origin: MessageOrigin) -> None:
        self._waiting = origin.waiting
        time_us, fault = event_time(EPOCH_NS, origin.time_ns)
        headers = message.headers or {}
        self._arrived.append(_Message(origin.sequence, message.subject, headers, message.data, time_us, fault))

    def _on_expired(self) -> None:
        self._ran_out = True

    async def _follow_stream(self) -> None:
        """No messages of the lane's subjects are left: everything up to the stream's end has been checked."""
        info = await _info(self._connection, self._spec.stream)
        consumer = await self._connection.api(f"CONSUMER.INFO.{self._spec.stream}.{self._consumer.name}")
        delivered = int(consumer["delivered"]["consumer_seq"])
        self._waiting = int(consumer["num_pending"])
        self._ran_out = False
        if info is not None and self._waiting == 0 and delivered == self._consumer.delivered and not self._arrived:
            self._at = max(self._at or 0, int(info["state"]["last_seq"]))

    async def _new_consumer(self) -> None:
        """Creates a consumer that begins after the last message that was read. Messages that arrived and were not read
        arrive again."""
        reason = self._consumer.restart
        if reason != "":
            _log.info("%s: reading continues after %s (%s)", self._where, self._at, reason or "reconnected")
        async with asyncio.timeout(self._spec.timeout_s):
            await self._connection.connected()
            self._consumer.reset()
            self._arrived.clear()
            await self._check_stream()
            self._waiting = await self._consumer.create(self._consumer_settings())
        self._ran_out = False

    def _consumer_settings(self) -> dict[str, Any]:
        """Where a consumer begins, and which subjects it reads."""
        return {
            **({"filter_subjects": self._subjects} if self._subjects else {}),
            **(
                {"deliver_policy": "by_start_time", "opt_start_time": self._spec.start}
                if self._at is None
                else {"deliver_policy": "by_start_sequence", "opt_start_seq": self._at + 1}
            ),
        }

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        """The next batch."""
        batch = RecordBatch("the message")
        while self._arrived and len(batch.values) < records_max:
            message = self._arrived[0]
            if self._end is not None and message.sequence > self._end:
                self._arrived.clear()
                self._at = self._end
                break
            if not batch.fits(message.size, bytes_max):
                break
            self._arrived.popleft()
            self._at = self._read = message.sequence
            self._digest = message.digest
            batch.add(
                message.data,
                message.time_us,
                f"{self._spec.stream} at sequence {message.sequence}",
                size=message.size,
                headers=_headers(message),
                fault=message.fault,
            )
        frame = batch.frame(self._owner.clock.now_us())
        return SourceBatch(frame, self._position(), ended=self._is_ended(), invalid=tuple(batch.invalid))

    def _is_ended(self) -> bool:
        if not self._spec.stop_at_end:
            return False
        return self._idle or (self._end is not None and self._at is not None and self._at >= self._end)


def _headers(message: _Message) -> Mapping[str, bytes]:
    return {
        SUBJECT_HEADER: message.subject.encode(),
        **{name: header_bytes(text) for name, text in message.headers.items()},
    }


def _named(stream: str, subjects: Sequence[str]) -> str:
    return f"{', '.join(subjects)} of {stream}" if subjects else f"all of {stream}"


async def _info(connection: BrokerConnection, stream: str) -> dict[str, Any] | None:
    """Information about the stream; None if it does not exist."""
    try:
        return await connection.api(f"STREAM.INFO.{stream}")
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise


def _faults(info: Mapping[str, Any], stream: str) -> list[Fault]:
    """What does not fit the settings."""
    retention = info["config"].get("retention", "limits")
    if retention == "limits":
        return []
    what = f"the stream {stream} removes messages once they are consumed (retention {retention})"
    return [Fault(("stream",), what, "a stream with `retention: limits`, or a stream that mirrors or sources this one")]


async def look(spec: JetStreamSource, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(spec, base_dir) as connection:
        info = await _info(connection, spec.stream)
    if info is None:
        return [Fault(("stream",), f"there is no stream {spec.stream}", "an existing stream")]
    return _faults(info, spec.stream)


@asynccontextmanager
async def open_jetstream_source(spec: JetStreamSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    async with linked(spec, owner.base_dir, f"lane {owner.lane}", f"millstream {owner.lane}") as connection:
        lane = JetStreamSourceLane(spec, owner, connection)
        try:
            await lane.open()
            yield lane
        finally:
            await lane.close()
