"""OT stores in JetStream: one key-value bucket per vertex, one key per lane.

    publish ── put, guarded by the revision of the own put before ──► KV_<pipeline>-<vertex>-OT   (file, history 1)
                       │                                                        │
                       └─ the message itself: a plain subscription              └─ all keys, once a second
                                              └────────► watcher ◄───────────────────┘

A watcher has no consumer on the server, so a broker restart has nothing to lose and thousands of watchers cost it
nothing: it hears puts on their subject, before they are stored, and reads the bucket from time to time for what it may
have missed. A put is guarded, so an owner that was replaced while it slept cannot put its old entry over the last one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StorageType, StreamConfig

from millstream import limits
from millstream.errors import DamageError, EnvironmentFault, FencedError, RetryLaterError
from millstream.record import LaneId
from millstream.watermark.background import open_tasks
from millstream.watermark.publish import CoalescingPublisher
from millstream.watermark.store import OtStatistics, OtUpdate, decode_update
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

_log = logging.getLogger(__name__)

_WRONG_REVISION = (10071, 10164)
_NO_STREAM = 10059
_OWNER_PIPELINE = "millstream.pipeline"
_OWNER_VERTEX = "millstream.vertex"
_READ_BATCH = 1000
"""Keys asked for in one request."""


class JetStreamOtStore:
    """`OtStore` over one key-value bucket."""

    def __init__(
        self, connection: Client, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, interval_s: float
    ) -> None:
        self._connection = connection
        self._jetstream = connection.jetstream(timeout=limits.OT_PUT_TIMEOUT_S)
        self._vertex = vertex
        self._bucket = bucket_name(pipeline, vertex)
        self._stream = f"KV_{self._bucket}"
        self._prefix = f"$KV.{self._bucket}."
        self._revisions: dict[str, int] = {}
        self._statistics = OtStatistics()
        self._publisher = CoalescingPublisher(self._put, self._statistics, tasks, interval_s=interval_s)

    @property
    def vertex(self) -> str:
        return self._vertex

    def statistics(self) -> OtStatistics:
        return self._statistics

    def publish(self, lane: LaneId, entry: OtEntry) -> None:
        self._publisher.publish(lane.key, entry)

    async def flush(self) -> None:
        await self._publisher.flush()

    async def get_all(self) -> Mapping[str, OtUpdate]:
        try:
            return {update.key: update for update in await self._read_all()}
        except (nats.errors.Error, OSError) as error:
            raise RetryLaterError(f"bucket {self._bucket} cannot be read: {error!r}") from error

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[OtUpdate]]:
        queue = UpdateQueue(self._statistics)

        async def heard(message: Msg) -> None:
            try:
                queue.heard(self._decode(message.subject, message.data))
            except DamageError as error:
                queue.fail(error)

        subscription = await self._connection.subscribe(f"{self._prefix}>", cb=heard)
        try:
            async with open_tasks() as tasks:
                rereading = tasks.create_task(self._reread(queue), name=f"read of {self._bucket}")
                try:
                    yield queue
                finally:
                    queue.close()
                    rereading.cancel()
        finally:
            if not self._connection.is_closed:
                await subscription.unsubscribe()

    def close(self) -> None:
        """End publishing."""
        self._publisher.cancel()

    async def create(self, pipeline: str, replicas: int) -> None:
        """Make the bucket, or see that it is this vertex's."""
        owner = {_OWNER_PIPELINE: pipeline, _OWNER_VERTEX: self._vertex}
        try:
            info = await self._jetstream.stream_info(self._stream)
        except nats.js.errors.NotFoundError:
            info = await self._jetstream.add_stream(
                StreamConfig(
                    name=self._stream,
                    subjects=[f"{self._prefix}>"],
                    storage=StorageType.FILE,
                    num_replicas=replicas,
                    max_msgs_per_subject=1,
                    allow_direct=True,
                    allow_rollup_hdrs=True,
                    deny_delete=True,
                    metadata=owner,
                )
            )
        found = info.config.metadata or {}
        if any(found.get(name) != value for name, value in owner.items()):
            raise EnvironmentFault(
                f"bucket {self._bucket} belongs to vertex {found.get(_OWNER_VERTEX)} of pipeline "
                f"{found.get(_OWNER_PIPELINE)}, and vertex {self._vertex} of pipeline {pipeline} needs that name; "
                "rename one of the two"
            )
        if info.config.num_replicas != replicas:
            await self._jetstream.update_stream(info.config.evolve(num_replicas=replicas))

    async def _put(self, key: str, entry: OtEntry) -> None:
        subject = f"{self._prefix}{key}"
        try:
            revision = self._revisions.pop(key, None)
            if revision is None:
                revision = await self._revision_before(subject, entry.epoch)
            receipt = await self._jetstream.publish(
                subject,
                entry.SerializeToString(),
                headers={"Nats-Expected-Last-Subject-Sequence": str(revision)},
            )
        except nats.js.errors.APIError as error:
            if error.err_code in _WRONG_REVISION:
                # An own put that was stored and not answered, or another owner: the next attempt finds out.
                raise RetryLaterError(f"bucket {self._bucket}: {key} was put by somebody else") from error
            raise RetryLaterError(f"bucket {self._bucket} refuses {key}: {error!r}") from error
        except (nats.errors.Error, OSError) as error:
            raise RetryLaterError(f"bucket {self._bucket} does not answer: {error!r}") from error
        self._revisions[key] = receipt.seq

    async def _revision_before(self, subject: str, epoch: int) -> int:
        """What the key's next put is guarded with. Read from the leader; raises `FencedError` below a newer epoch."""
        try:
            stored = await self._jetstream.get_last_msg(self._stream, subject)
        except nats.js.errors.NotFoundError as error:
            if error.err_code == _NO_STREAM:
                raise
            return 0
        update = self._decode(subject, stored.data or b"")
        if update.entry.epoch > epoch:
            raise FencedError(f"epoch {update.entry.epoch} publishes, this owner has epoch {epoch}")
        return stored.seq or 0

    async def _reread(self, queue: UpdateQueue) -> None:
        while not queue.closed:
            queue.begin_reading()
            try:
                stored = await self._read_all()
            except (nats.errors.Error, OSError) as error:
                _log.debug("bucket %s cannot be read, trying until it can: %r", self._bucket, error)
                queue.abandon_reading()
                await asyncio.sleep(limits.OT_RETRY_INTERVAL_S)
            except DamageError as error:
                queue.fail(error)
                return
            else:
                queue.finish_reading(stored)
                await asyncio.sleep(limits.OT_REREAD_INTERVAL_S)

    async def _read_all(self) -> list[OtUpdate]:
        """Every key. One that is put again while this reads may be missed or come twice; its watcher hears of it."""
        answers = await self._connection.subscribe(self._connection.new_inbox())
        try:
            updates: list[OtUpdate] = []
            after = 0
            while True:
                request = {"seq": after + 1, "batch": _READ_BATCH, "next_by_subj": f"{self._prefix}>"}
                await self._connection.publish(
                    f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(request).encode(), reply=answers.subject
                )
                while True:
                    answer = await answers.next_msg(limits.OT_PUT_TIMEOUT_S)
                    headers = answer.headers or {}
                    status = headers.get("Status")
                    if status is not None:
                        break
                    updates.append(self._decode(headers["Nats-Subject"], answer.data))
                    after = int(headers["Nats-Sequence"])
                if status == "404" or (status == "204" and headers.get("Nats-Num-Pending", "0") == "0"):
                    return updates
                if status != "204":
                    raise nats.errors.Error(f"direct get of {self._stream}: status {status}")
        finally:
            if not self._connection.is_closed:
                await answers.unsubscribe()

    def _decode(self, subject: str, data: bytes) -> OtUpdate:
        return decode_update(self._bucket, subject.removeprefix(self._prefix), data)


class JetStreamOtStores:
    """`OtStores` over one connection."""

    def __init__(
        self, connection: Client, pipeline: str, tasks: asyncio.TaskGroup, replicas: int, interval_s: float
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._tasks = tasks
        self._replicas = replicas
        self._interval_s = interval_s
        self._stores: dict[str, JetStreamOtStore] = {}
        self._opening = asyncio.Lock()

    async def store(self, vertex: str) -> JetStreamOtStore:
        async with self._opening:
            if vertex not in self._stores:
                store = JetStreamOtStore(self._connection, self._pipeline, vertex, self._tasks, self._interval_s)
                try:
                    await store.create(self._pipeline, self._replicas)
                except (nats.errors.Error, OSError) as error:
                    raise RetryLaterError(
                        f"the OT store of vertex {vertex} of pipeline {self._pipeline} cannot be made: {error!r}; "
                        "is the broker up, and has it JetStream?"
                    ) from error
                self._stores[vertex] = store
            return self._stores[vertex]

    async def delete(self) -> None:
        jetstream = self._connection.jetstream(timeout=limits.OT_PUT_TIMEOUT_S)
        names: list[str] = []
        seen = 0
        try:
            while page := await jetstream.streams_info(offset=seen):
                seen += len(page)
                names += [info.config.name or "" for info in page if _is_bucket_of(self._pipeline, info.config)]
            for name in names:
                await jetstream.delete_stream(name)
        except (nats.errors.Error, OSError) as error:
            raise RetryLaterError(f"the OT stores of pipeline {self._pipeline} cannot be removed: {error!r}") from error

    def close(self) -> None:
        """End publishing."""
        for store in self._stores.values():
            store.close()


@asynccontextmanager
async def open_jetstream_ot_stores(
    connection: Client,
    pipeline: str,
    *,
    replicas: int = 1,
    publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S,
) -> AsyncIterator[JetStreamOtStores]:
    """The OT stores of a pipeline over an open connection, which has to outlive them.

    What is not flushed at the end is not published.
    """
    async with open_tasks() as tasks:
        stores = JetStreamOtStores(connection, pipeline, tasks, replicas, publish_interval_s)
        try:
            yield stores
        finally:
            stores.close()


def _is_bucket_of(pipeline: str, config: StreamConfig) -> bool:
    return (config.name or "").startswith("KV_") and (config.metadata or {}).get(_OWNER_PIPELINE) == pipeline


def bucket_name(pipeline: str, vertex: str) -> str:
    """The key-value bucket of a vertex."""
    return f"{pipeline}-{vertex}-OT"
