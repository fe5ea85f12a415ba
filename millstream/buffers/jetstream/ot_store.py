"""OT stores in JetStream: one key-value bucket per vertex, one key per lane.

    publish ── put, guarded by the revision of the previous put ────► KV_<pipeline>-<vertex>-OT   (file, history 1)
                       │                                                        │
                       └─ the message itself: a plain subscription              └─ what is new, from time to time
                                              └────────► watcher ◄───────────────────┘

A watcher has no consumer on the server. So a restart of the broker loses nothing, and thousands of watchers cost the
broker nothing. The watcher receives puts on their subject, before they are stored, and reads the bucket from time to
time for puts that it may have missed. A put is guarded, so an owner that was replaced while it was paused cannot put
its old entry over the newest one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from millstream import codes, limits
from millstream.buffers.jetstream.pages import PageMessage, read_next, read_page
from millstream.buffers.jetstream.requests import (
    NO_MESSAGE,
    NO_STREAM,
    WRONG_LAST_SEQUENCE,
    message_data,
    owned_streams,
    unless_missing,
    until_created,
)
from millstream.buffers.jetstream.stream_config import OWNER_PIPELINE, OWNER_VERTEX
from millstream.durable import step
from millstream.errors import DamageError, InfrastructureError, RetryLaterError
from millstream.nats.client import Msg
from millstream.nats.connection import AnswerLostError, ApiError, BrokerConnection, answered
from millstream.record import LaneId
from millstream.watermark.revisions import RevisionedOtStore, RevisionedOtStores, open_stores
from millstream.watermark.store import OtUpdate, decode_update
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry


@dataclass(slots=True)
class _Contents:
    """The contents of a bucket, as far as they were read."""

    losses: int = 0
    """How often the connection had been lost when this was read."""
    last: int = 0
    """The highest sequence that was read."""
    updates: dict[str, tuple[int, OtUpdate]] = field(default_factory=dict)
    """The newest update of each lane, with its sequence."""


class JetStreamOtStore(RevisionedOtStore):
    """`OtStore` over one key-value bucket."""

    failures = (AnswerLostError, ApiError, TimeoutError)

    def __init__(
        self, connection: BrokerConnection, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, interval_s: float
    ) -> None:
        self._connection = connection
        self._bucket = bucket_name(pipeline, vertex)
        self._stream = f"KV_{self._bucket}"
        self._prefix = f"$KV.{self._bucket}."
        self._contents = _Contents()
        super().__init__(vertex, f"bucket {self._bucket}", tasks, interval_s)

    async def get_all(self) -> Mapping[str, OtUpdate]:
        try:
            return {update.key: update for update in await self._read_all()}
        except self.failures as error:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"bucket {self._bucket} cannot be read: {_reason(error)}"
            ) from error

    async def forget(self, lane: LaneId) -> None:
        """Delete the OT entry of a lane."""
        self._revisions.pop(lane.key, None)
        try:
            async with self._answering(lane.key):
                with step("watermark.forget", self.vertex):
                    await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": f"{self._prefix}{lane.key}"})
        finally:
            # A concurrent read may have found the entry. And if there was no answer, the entry may still be deleted.
            self._contents = _Contents()

    @asynccontextmanager
    async def _hearing(self, queue: UpdateQueue) -> AsyncIterator[None]:
        def on_update(message: Msg) -> None:
            try:
                queue.on_update(self._decode(message.subject, message.data))
            except DamageError as error:
                queue.fail(error)

        client = self._connection.client
        subscription = await client.listen(f"{self._prefix}>", on_update)
        try:
            yield
        finally:
            if not client.is_closed:
                await subscription.unsubscribe()

    async def create(self, pipeline: str) -> None:
        """Create the bucket, or check that it belongs to this vertex.

        How many copies it has in a cluster is the operator's decision, as for a ledger's stream (`stream_config`).
        """
        owner = {OWNER_PIPELINE: pipeline, OWNER_VERTEX: self.vertex}
        info = await unless_missing(self._connection.api(f"STREAM.INFO.{self._stream}"), NO_STREAM)
        if info is None:
            with step("watermark.make", self.vertex):
                info = await until_created(self._connection, self._stream, self._config(owner))
        found = info["config"].get("metadata", {})
        if any(found.get(name) != value for name, value in owner.items()):
            raise InfrastructureError(
                codes.LEDGER_NAME_TAKEN,
                f"bucket {self._bucket} belongs to vertex {found.get(OWNER_VERTEX)} of pipeline "
                f"{found.get(OWNER_PIPELINE)}, but vertex {self.vertex} of pipeline {pipeline} needs that name. "
                "Rename one of the two",
            )

    def _config(self, owner: Mapping[str, str]) -> dict[str, object]:
        return {
            "name": self._stream,
            "subjects": [f"{self._prefix}>"],
            "storage": "file",
            "retention": "limits",
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "metadata": owner,
        }

    async def _publish_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Replace an OT entry, if it still has this revision."""
        with step("watermark.publish", self.vertex):
            return await self._put_after(revision, key, entry)

    async def _take_over_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Take a lane's OT entry over from its previous owner."""
        with step("watermark.take_over", self.vertex):
            return await self._put_after(revision, key, entry)

    @asynccontextmanager
    async def _answering(self, key: str) -> AsyncIterator[None]:
        """Limits the wait for answers, and converts each failure of the broker to a `RetryLaterError`."""
        try:
            async with asyncio.timeout(limits.OT_PUT_TIMEOUT_S):
                yield
        except ApiError as error:
            if error.code in WRONG_LAST_SEQUENCE:
                # Our own put may have been stored without an answer, or there is another owner. The next attempt shows
                # which.
                raise RetryLaterError(
                    codes.BROKER_AWAY, f"bucket {self._bucket}: {key} was put by another process"
                ) from error
            raise RetryLaterError(codes.BROKER_AWAY, f"bucket {self._bucket} refuses {key}: {error}") from error
        except (AnswerLostError, TimeoutError) as error:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"bucket {self._bucket} does not answer a request for {key}: {_reason(error)}"
            ) from error

    async def _put_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Put the entry if the key still has that revision; returns the new revision."""
        message = await self._connection.request(
            f"{self._prefix}{key}",
            entry.SerializeToString(),
            {"Nats-Expected-Last-Subject-Sequence": str(revision)},
            timeout_s=limits.OT_PUT_TIMEOUT_S,
        )
        return int(answered(message.data)["seq"])

    async def _stored(self, key: str) -> tuple[int, OtEntry | None]:
        """The revision of a key, which guards its next put, and its entry, read from the leader; 0 and None if there is
        none."""
        subject = f"{self._prefix}{key}"
        found = await unless_missing(
            self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"last_by_subj": subject}), NO_MESSAGE, NO_STREAM
        )
        if found is None:
            return 0, None
        stored = found["message"]
        return int(stored["seq"]), self._decode(subject, message_data(stored)).entry

    async def _reachable(self) -> None:
        await self._connection.connected()

    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._connection.on_loss(listener)

    async def _read_all(self) -> list[OtUpdate]:
        """The entries of all keys. An entry that is put meanwhile may be missing or appear twice, but watchers receive
        the put itself.

        Reads only the puts since the last read, which have higher sequences.
        """
        if self._contents.losses != self._connection.losses:
            # The server may have lost data before it came back.
            self._contents = _Contents(self._connection.losses)
        read = self._contents
        left = await self._read_behind(read) if read.last else 1
        while left:
            left = await read_page(
                self._connection,
                self._stream,
                f"{self._prefix}>",
                read.last,
                lambda message: self._take(read, message),
                timeout_s=limits.OT_PUT_TIMEOUT_S,
            )
        return [update for _, update in read.updates.values()]

    async def _read_behind(self, read: _Contents) -> int:
        """The number of messages to read after the last one that was read. If the server that answers has neither that
        one nor a newer one, everything is read again.
        """
        found = await read_next(
            self._connection, self._stream, f"{self._prefix}>", read.last - 1, timeout_s=limits.OT_PUT_TIMEOUT_S
        )
        if found is None:
            # The bucket was set back or emptied, or the server that answered does not have it yet.
            read.last = 0
            read.updates.clear()
            return 1
        message, left = found
        self._take(read, message)
        return left

    def _take(self, read: _Contents, message: PageMessage) -> None:
        update = self._decode(message.subject, message.data)
        # Another task may read at the same time, and may already have read more.
        if update.key not in read.updates or read.updates[update.key][0] < message.sequence:
            read.updates[update.key] = message.sequence, update
        read.last = max(read.last, message.sequence)

    def _decode(self, subject: str, data: bytes) -> OtUpdate:
        return decode_update(self._bucket, subject.removeprefix(self._prefix), data)


def open_jetstream_ot_stores(
    connection: BrokerConnection,
    pipeline: str,
    *,
    publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S,
) -> AbstractAsyncContextManager[RevisionedOtStores[JetStreamOtStore]]:
    """The OT stores of a pipeline over an open connection, which has to outlive them.

    Entries that are not flushed at the end are not published.
    """

    async def open_store(vertex: str, tasks: asyncio.TaskGroup) -> JetStreamOtStore:
        store = JetStreamOtStore(connection, pipeline, vertex, tasks, publish_interval_s)
        try:
            await store.create(pipeline)
        except JetStreamOtStore.failures as error:
            raise RetryLaterError(
                codes.BROKER_AWAY,
                f"the OT store of vertex {vertex} of pipeline {pipeline} cannot be created: {_reason(error)}. Is the "
                "broker running, with JetStream enabled?",
            ) from error
        return store

    async def delete(vertex: str | None) -> None:
        """Delete the OT buckets of a pipeline, or of one of its vertices."""
        try:
            for name in await owned_streams(connection.api, pipeline, vertex):
                if name.startswith("KV_"):
                    with step("watermark.delete"):
                        await connection.api(f"STREAM.DELETE.{name}")
        except JetStreamOtStore.failures as error:
            raise RetryLaterError(
                codes.BROKER_AWAY, f"the OT stores of pipeline {pipeline} cannot be removed: {_reason(error)}"
            ) from error

    return open_stores(open_store, delete)


def bucket_name(pipeline: str, vertex: str) -> str:
    """The key-value bucket of a vertex."""
    return f"{pipeline}-{vertex}-OT"


def _reason(error: Exception) -> str:
    return f"no answer in {limits.OT_PUT_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else str(error)
