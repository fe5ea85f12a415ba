"""OT stores in Redis or Valkey: a hash per vertex, a field per lane, and a channel that announces every put.

    publish ── put, guarded by the number of earlier puts ───► hash
                       │                                        │
                       └─ the channel, in the same step         └─ all of it, from time to time
                                              └────────► watcher ◄──┘

A watcher receives puts, and reads the hash from time to time for puts that it may have missed. A put is guarded, so an
owner that was replaced while it was paused cannot put its old entry over the newest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from redis.exceptions import RedisError

from millstream import codes, limits
from millstream.background import beside
from millstream.buffers.redis.connection import AnswerLostError, RedisConnection, pairs
from millstream.buffers.redis.keys import entries_key, revisions_key
from millstream.buffers.redis.ledger import remove_matching
from millstream.buffers.redis.scripts import FORGET, PUT
from millstream.durable import step
from millstream.errors import DamageError, RetryLaterError, StorageFullError
from millstream.record import LaneId
from millstream.watermark.revisions import RevisionedOtStore, RevisionedOtStores, open_stores
from millstream.watermark.store import OtUpdate, decode_update
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry


class RedisOtStore(RevisionedOtStore):
    """`OtStore` over one hash."""

    failures = (AnswerLostError, StorageFullError, TimeoutError)

    def __init__(
        self, connection: RedisConnection, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, interval_s: float
    ) -> None:
        self._connection = connection
        self._entries = entries_key(pipeline, vertex)
        self._keys = (self._entries, revisions_key(pipeline, vertex))
        super().__init__(vertex, f"the OT store {self._entries}", tasks, interval_s)

    async def forget(self, lane: LaneId) -> None:
        """Delete the OT entry of a lane."""
        self._revisions.pop(lane.key, None)
        async with self._answering(lane.key):
            with step("redis.forget", self.vertex):
                await self._connection.change(FORGET, self._keys, [lane.key])

    async def _publish_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Replace an OT entry, if it still has this revision."""
        with step("redis.publish", self.vertex):
            return await self._put_after(revision, key, entry)

    async def _take_over_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Take a lane's OT entry over from its previous owner."""
        with step("redis.take_over_watermark", self.vertex):
            return await self._put_after(revision, key, entry)

    @asynccontextmanager
    async def _answering(self, key: str) -> AsyncIterator[None]:
        """Limits the wait for answers, and converts each failure of the server to a `RetryLaterError`."""
        try:
            async with asyncio.timeout(limits.OT_PUT_TIMEOUT_S):
                yield
        except self.failures as error:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"the OT store {self._entries} does not answer ({key}): {error!r}"
            ) from error

    async def _put_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Put the entry if the lane still has that revision; returns the new revision."""
        stored = int(await self._connection.change(PUT, self._keys, [key, revision, entry.SerializeToString()]))
        if not stored:
            # Our own put may have been stored without an answer, or there is another owner. The next attempt shows
            # which.
            raise RetryLaterError(codes.BROKER_AWAY, f"the OT store {self._entries}: {key} was put by another process")
        return stored

    async def _stored(self, key: str) -> tuple[int, OtEntry | None]:
        """The revision of a lane, which guards its next put, and its entry; 0 and None if there is none."""
        # The revision is read first: a put in between makes the guard fail.
        revision = await self._connection.ask("HGET", self._keys[1], key)
        data = await self._connection.ask("HGET", self._entries, key)
        return int(revision or 0), decode_update(self._entries, key, data).entry if data is not None else None

    def _hearing(self, queue: UpdateQueue) -> AbstractAsyncContextManager[object]:
        return beside(self._hear(queue), f"hear {self._entries}")

    async def _hear(self, queue: UpdateQueue) -> None:
        """Pass every put to the queue, forever. Missed puts are found by reading."""
        while not queue.closed:
            with suppress(RedisError, OSError):
                async with self._connection.client.pubsub() as channel:
                    await channel.subscribe(self._entries)
                    async for message in channel.listen():
                        if message["type"] == "subscribe":
                            # The server announces puts from now on. Earlier ones may have been missed: the subscription
                            # has a connection of its own, and its loss is noticed only here.
                            queue.rereads.on_loss()
                        else:
                            self._take(queue, message["data"])
            await asyncio.sleep(limits.OT_RETRY_INTERVAL_S)

    def _take(self, queue: UpdateQueue, payload: bytes) -> None:
        key, _, data = payload.partition(b" ")
        try:
            queue.on_update(decode_update(self._entries, key.decode(errors="replace"), data))
        except DamageError as error:
            queue.fail(error)

    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._connection.on_loss(listener)

    async def _read_all(self) -> list[OtUpdate]:
        """The entries of all lanes."""
        return [
            decode_update(self._entries, key, data)
            for key, data in pairs(await self._connection.ask("HGETALL", self._entries)).items()
        ]


def open_redis_ot_stores(
    connection: RedisConnection, pipeline: str, *, publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S
) -> AbstractAsyncContextManager[RevisionedOtStores[RedisOtStore]]:
    """The OT stores of a pipeline over an open connection, which has to outlive them.

    Entries that are not flushed at the end are not published.
    """

    async def open_store(vertex: str, tasks: asyncio.TaskGroup) -> RedisOtStore:
        # There is nothing to create: the first field creates the hash.
        return RedisOtStore(connection, pipeline, vertex, tasks, publish_interval_s)

    async def delete(vertex: str | None) -> None:
        """Delete the OT entries of a pipeline, or of one of its vertices."""
        with step("redis.delete_watermarks"):
            await remove_matching(connection, f"{entries_key(pipeline, vertex or '*')}*")

    return open_stores(open_store, delete)
