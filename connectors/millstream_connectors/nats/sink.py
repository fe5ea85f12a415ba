"""Publishes records to a NATS subject. The server has them when it answers the ping after them.

    write ─► messages, then a ping ─► pong: written
                                  └─► no pong, or the connection was lost: retried

Above it: the delivery. Below it: one connection to the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.nats.connection import BrokerConnection
from millstream.record import Position
from millstream_connectors.nats.client import linked, looking, translated
from millstream_connectors.nats.messages import convert
from millstream_connectors.nats.settings import NatsSink
from millstream_connectors.shared.first_try import opened
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, SinkLane, UnkeptLane, WriteResult

_log = logging.getLogger(__name__)


class NatsSinkLane(UnkeptLane):
    """A lane that publishes messages."""

    def __init__(self, settings: NatsSink, owner: SinkOwner) -> None:
        self._settings = settings
        self._owner = owner
        self._connection: BrokerConnection | None = None
        self._life = AsyncExitStack()

    async def open(self) -> BrokerConnection:
        """Connect. Raises Millstream errors."""
        owner = self._owner
        linking = linked(self._settings, owner.base_dir, owner.where, f"millstream {owner.pipeline}/{owner.name}")
        self._connection = await self._life.enter_async_context(linking)
        return self._connection

    async def close(self) -> None:
        self._connection = None
        await self._life.aclose()

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        connection = self._connection or await self.open()
        settings, where = self._settings, self._owner.where
        failures: list[Sequence[SinkFailure]] = []
        with translated(connection, where):
            async with asyncio.timeout(settings.timeout_s):
                await connection.connected()
                losses = connection.losses
                bytes_max = int(connection.server.get("max_payload", 0))
                for item in frames:
                    converted = convert(item, bytes_max, None)
                    failures.append(converted.failures)
                    for put in converted.made:
                        await connection.publish(settings.subject, put.data, put.headers)
                await connection.settled(settings.timeout_s)
        if connection.losses != losses:
            what = f"{where}: the connection to NATS at {connection.place} was lost while records were published"
            raise RetryLaterError(codes.TARGET_AWAY, what)
        return WriteResult(failures if any(failures) else ())


async def look(settings: NatsSink, base_dir: Path) -> None:
    """Raises Millstream errors if the server is away or refuses. Publishes nothing."""
    async with looking(settings, base_dir):
        pass


def open_nats_sink(settings: NatsSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
    """The lane's target. If the server is away, the first write waits for it."""
    return opened(NatsSinkLane(settings, owner), _log)
