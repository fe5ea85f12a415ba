"""A RabbitMQ stream, read by offset, for a lane whose mark has the offset of the last message.

    mark: offset, digest ─► consumer, from that offset on ─► the message itself: is it the one that was read?
                                                         └─► what follows: message, offset ─► inbox

The server stores no position for this reader. An acknowledgement only requests another message. Offsets have gaps where
the server writes entries of its own to the stream, so a gap alone does not mean that messages were removed. Messages
were removed if the first message that is now in the stream comes after the beginning of the gap.

Above it: `receiving`. Below it: a connection to the server.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, aclosing
from hashlib import blake2b
from typing import Any
from zlib import crc32

from aiormq.abc import DeliveredMessage

from millstream import codes
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UserError
from millstream_connectors.rabbitmq.client import FAILURES, RabbitLink, open_link
from millstream_connectors.rabbitmq.settings import RabbitSource
from millstream_connectors.rabbitmq.source.queue import OFFSET, message_of
from millstream_connectors.shared.acknowledged import AcknowledgedMessage
from millstream_connectors.shared.failing import Linked
from millstream_connectors.shared.receiving import Arrivals, ReceivedMessage, open_receiving
from millstream_connectors.shared.starts import start_time
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

KIND = "rabbitmq stream"
_WINDOW = 32
"""Maximum number of messages in flight. The server limits their number, not their size."""


class RabbitStream(Linked[RabbitLink]):
    """See `Stream`."""

    replayable = True
    pause_s = 0.0

    def __init__(self, spec: RabbitSource, owner: SourceOwner) -> None:
        self._spec = spec
        self._owner = owner
        self._arrived: asyncio.Queue[DeliveredMessage | MillstreamError] = asyncio.Queue()
        """At most `_WINDOW` messages, and one error."""
        self._at: int | None = None
        """Offset of the last message that was read, at first the one in the mark; None before the first message."""
        self._digest = ""
        """Digest of the message in the mark; empty once it has been compared."""

    async def connect(self, place: str) -> None:
        await self.close()
        at, _, self._digest = place.partition(" ")
        self._at = int(at) if at else None
        link = await self._new_link()
        arrived: asyncio.Queue[DeliveredMessage | MillstreamError] = asyncio.Queue()
        async with link.closed_on_failure():
            # If the queue is missing, consuming from it would only close the channel.
            await link.channel.queue_declare(self._spec.queue, passive=True, timeout=self._spec.timeout_s)
            start = (start_time(self._spec.start) or "first") if self._at is None else self._at
            try:
                await link.consume(self._spec.queue, arrived.put_nowait, _WINDOW, {OFFSET: start})
            except FAILURES as error:
                if OFFSET not in str(error):
                    raise
                # The server's message about the argument would not help the user.
                what = f"{self._owner.where}: {self._spec.queue} is not a stream; leave out `stream`"
                raise UserError(codes.TARGET_UNFIT, what) from error
        link.on_loss(arrived.put_nowait)
        self._link, self._arrived = link, arrived

    async def receive(self, inbox: Arrivals) -> None:
        link, arrived = self._link, self._arrived
        if link is None:
            raise RetryLaterError(codes.TARGET_AWAY, f"{self._owner.where}: there is no connection")
        while True:
            await inbox.room()
            item = await arrived.get()
            if isinstance(item, MillstreamError):
                raise item
            await self._take(item, inbox)
            if arrived.empty():
                with link.translated():
                    # This acknowledges all messages before it, too.
                    await link.channel.basic_ack(item.delivery_tag or 0, multiple=True)

    async def _take(self, delivered: DeliveredMessage, inbox: Arrivals) -> None:
        offset = _offset_of(delivered)
        message = message_of(delivered, self._owner.clock.now_us())
        digest = digest_of(message)
        last, expected = self._at, self._digest
        self._digest = ""
        if expected and offset == last:
            if digest != expected:
                raise self._replaced(offset)
            return
        if last is not None:
            if offset <= last:
                return
            if offset > last + 1 and (first := await self._first()) > last + 1:
                raise self._removed(last, first)
        self._at = offset
        inbox.put(ReceivedMessage(message.value, message.time_us, message.headers, f"{offset} {digest}", message.fault))

    async def _first(self) -> int:
        """The offset of the first message that is now in the stream."""
        found: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        async with aclosing(await self._new_link()) as beside:
            with beside.translated():
                await beside.consume(self._spec.queue, found.put_nowait, 1, {OFFSET: "first"})
                async with asyncio.timeout(self._spec.timeout_s):
                    return _offset_of(await found.get())

    async def _new_link(self) -> RabbitLink:
        owner = self._owner
        return await open_link(self._spec, owner.base_dir, owner.where, f"millstream {owner.lane}")

    def _removed(self, at: int, first: int) -> DamageError:
        return DamageError(
            codes.SOURCE_RECORDS_REMOVED,
            f"{self._owner.where}: {self._spec.queue}: the lane is at offset {at}, but the first message left is "
            f"{first}: messages were removed before they were read, by a limit of the stream. Nothing else was "
            "skipped. Read the remaining messages with a source of another name, or start over with --fresh; and let "
            "the stream keep more",
        )

    def _replaced(self, at: int) -> DamageError:
        return DamageError(
            codes.SOURCE_PAST_REPLACED,
            f"{self._owner.where}: {self._spec.queue}: the message at offset {at} is not the one that was read: the "
            "stream was recreated, or the server lost its latest data. Read what it has now with a source of another "
            "name, or start over with --fresh",
        )


def open_stream(spec: RabbitSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
    """The lane at `owner.position`. Only one of several lanes reads the stream."""
    idle = crc32(spec.queue.encode()) % owner.partitions != owner.lane.partition
    return open_receiving(KIND, spec.queue, owner, RabbitStream(spec, owner), idle=idle)


def _offset_of(delivered: DeliveredMessage) -> int:
    headers: Any = delivered.header.properties.headers
    return int(headers[OFFSET])


def digest_of(message: AcknowledgedMessage) -> str:
    """A digest that reveals another message at the same offset. Pure."""
    headers = b"\0".join(name.encode() + b"=" + value for name, value in sorted(message.headers.items()))
    return blake2b(message.value + b"\0" + headers, digest_size=8).hexdigest()
