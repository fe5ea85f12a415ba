"""Subscriptions to NATS subjects. The client renews them over each new connection.

A server disconnects a client that does not read, so messages are read from the connection immediately. Messages for
which the inbox has no space are counted and dropped.

Above it: the receiving lane. Below it: one connection to the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from zlib import crc32

from millstream.limits import REFUSALS_REPORTED_EVERY_S
from millstream.nats.client import Msg, Subscription, header_bytes, nats_errors
from millstream.nats.connection import BrokerConnection
from millstream_connectors.nats.client import linked, looking, translated
from millstream_connectors.nats.settings import NatsSource
from millstream_connectors.shared.receiving import Arrivals, ReceivedMessage, open_receiving
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

SUBJECT_HEADER = "Nats-Subject"

_log = logging.getLogger(__name__)


class NatsStream:
    """See `receiving.Stream`."""

    replayable = False
    pause_s = 0.0

    def __init__(
        self, settings: NatsSource, subjects: Sequence[str], owner: SourceOwner, connection: BrokerConnection
    ) -> None:
        self._settings = settings
        self._subjects = subjects
        self._owner = owner
        self._where = f"lane {owner.lane}"
        self._connection = connection
        self._subscriptions: list[Subscription] = []
        self._inbox: Arrivals | None = None
        self._early: list[ReceivedMessage] = []
        """Messages that arrived before there was an inbox."""
        self._dropped = 0
        self._reported_at_s: float | None = None

    async def connect(self, place: str) -> None:
        await self.close()
        client = self._connection.client
        with translated(self._connection, self._where):
            await self._connection.connected()
            for subject in self._subjects:
                # The subscription has no limits: the inbox has its own, and reports what it drops.
                self._subscriptions.append(
                    await client.subscribe(
                        subject,
                        queue=self._settings.queue or "",
                        cb=self._on_message,
                        pending_msgs_limit=0,
                        pending_bytes_limit=0,
                    )
                )
            await self._connection.settled(self._settings.timeout_s)

    async def receive(self, inbox: Arrivals) -> None:
        self._inbox = inbox
        for message in self._early:
            inbox.put(message)
        self._early.clear()
        lost = asyncio.Event()
        deaf = self._connection.on_loss(lost.set)
        try:
            with translated(self._connection, self._where):
                while True:
                    await self._connection.connected()
                    inbox.away = False
                    await lost.wait()
                    lost.clear()
                    inbox.away = True
        finally:
            deaf()

    async def close(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for one in subscriptions:
            with suppress(nats_errors.Error):
                if not self._connection.client.is_closed:
                    await one.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        headers = {name: header_bytes(text) for name, text in (message.headers or {}).items()}
        headers[SUBJECT_HEADER] = message.subject.encode()
        received = ReceivedMessage(message.data, self._owner.clock.now_us(), headers)
        inbox = self._inbox
        if inbox is None:
            self._early.append(received)
        elif inbox.full:
            self._drop()
        else:
            inbox.put(received)

    def _drop(self) -> None:
        """Count a dropped message, and log it from time to time."""
        self._dropped += 1
        now_s = self._owner.clock.monotonic_s()
        if self._reported_at_s is None or now_s >= self._reported_at_s + REFUSALS_REPORTED_EVERY_S:
            self._reported_at_s = now_s
            _log.warning(
                "%s: messages arrive faster than the pipeline processes them: %d were dropped so far, and NATS does "
                "not store them. `jetstream` loses none",
                self._where,
                self._dropped,
            )


async def look(settings: NatsSource, base_dir: Path) -> None:
    """Raises Millstream errors if the server is away or refuses."""
    async with looking(settings, base_dir) as connection:
        for subject in settings.subjects:
            # Nothing is received: the subscription ends with the connection.
            await connection.client.subscribe(subject, queue=settings.queue or "", cb=_ignored)
        await connection.settled(settings.timeout_s)


async def _ignored(message: Msg) -> None:
    """A callback that ignores messages, for `validate --online`."""


@asynccontextmanager
async def open_nats_source(settings: NatsSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane."""
    mine = tuple(name for name in settings.subjects if crc32(name.encode()) % owner.partitions == owner.lane.partition)
    subjects = settings.subjects if settings.queue is not None else mine
    async with linked(settings, owner.base_dir, f"lane {owner.lane}", f"millstream {owner.lane}") as connection:
        stream = NatsStream(settings, subjects, owner, connection)
        async with open_receiving("nats", ", ".join(subjects), owner, stream, idle=not subjects) as lane:
            yield lane
