"""OT stores in memory, with faults: for our tests and those of users.

`OtMemory` stands for the broker: if several `open_memory_ot_stores` get the same one, they see each other, as processes
do. Its methods are the faults that a broker can have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from millstream import codes, limits
from millstream.background import open_tasks
from millstream.errors import RetryLaterError
from millstream.record import LaneId
from millstream.watermark.publish import PublishingStore
from millstream.watermark.store import OtUpdate, check_own, decode_update, raise_epoch
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry


@dataclass(slots=True)
class _Bucket:
    entries: dict[str, bytes] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    """Number of puts of each lane."""
    watchers: list[UpdateQueue] = field(default_factory=list)


class OtMemory:
    """The storage that all processes share, and its faults."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._answers_to_lose = 0
        self._held: list[tuple[_Bucket, OtUpdate]] | None = None
        self._away = False

    def lose_answers(self, count: int) -> None:
        """Lose the answers to the next puts, which are stored."""
        self._answers_to_lose += count

    def hold_updates(self) -> None:
        """Withhold all updates from watchers from now on."""
        self._held = []

    def release_updates(self) -> None:
        """Send the watchers, late, all updates since `hold_updates`."""
        held, self._held = self._held or [], None
        for bucket, update in held:
            _tell(bucket, update)

    def stop(self) -> None:
        """Make the broker unavailable: puts and reads fail, and watchers miss what is published meanwhile."""
        self._away = True

    def start(self) -> None:
        """Make the broker available again, with everything it had stored. Watchers read everything again."""
        self._away = False
        for name, bucket in self._buckets.items():
            for watcher in bucket.watchers:
                _read_into(watcher, str(name), bucket)

    def _bucket(self, pipeline: str, vertex: str) -> _Bucket:
        if self._away:
            raise RetryLaterError(codes.BROKER_AWAY, f"the OT store of {pipeline}/{vertex} is not available")
        return self._buckets.setdefault((pipeline, vertex), _Bucket())

    def _delete(self, pipeline: str, vertex: str | None) -> None:
        for name in [name for name in self._buckets if name[0] == pipeline and vertex in (None, name[1])]:
            del self._buckets[name]

    def _put(self, bucket: _Bucket, key: str, entry: OtEntry, put_before: int | None) -> None:
        if self._away:
            raise RetryLaterError(codes.BROKER_AWAY, f"lane {key}: no answer to a put")
        stored = bucket.entries.get(key)
        check_own(entry, OtEntry.FromString(stored) if stored is not None else None, put_before)
        bucket.entries[key] = entry.SerializeToString()
        bucket.revisions[key] = bucket.revisions.get(key, 0) + 1
        update = decode_update("in memory", key, bucket.entries[key])
        if self._held is not None:
            self._held.append((bucket, update))
        else:
            _tell(bucket, update)
        if self._answers_to_lose:
            self._answers_to_lose -= 1
            raise RetryLaterError(codes.BROKER_AWAY, f"lane {key}: no answer to a put")


class MemoryOtStore(PublishingStore):
    """`OtStore` over an `OtMemory`."""

    def __init__(
        self, memory: OtMemory, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, interval_s: float
    ) -> None:
        super().__init__(vertex, tasks, interval_s)
        self._memory = memory
        self._pipeline = pipeline

    async def take_over(self, lane: LaneId, epoch: int) -> OtEntry | None:
        return await raise_epoch(
            lambda: self._read(lane.key), lambda guard, entry: self._put_after(lane.key, guard, entry), epoch
        )

    async def get_all(self) -> Mapping[str, OtUpdate]:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        return {key: decode_update(self._vertex, key, data) for key, data in bucket.entries.items()}

    async def stored(self, lane: LaneId) -> OtUpdate | None:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        data = bucket.entries.get(lane.key)
        return decode_update(self._vertex, lane.key, data) if data is not None else None

    async def forget(self, lane: LaneId) -> None:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        bucket.entries.pop(lane.key, None)
        bucket.revisions.pop(lane.key, None)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[OtUpdate]]:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        queue = UpdateQueue(self._statistics)
        _read_into(queue, self._vertex, bucket)
        bucket.watchers.append(queue)
        try:
            yield queue
        finally:
            bucket.watchers.remove(queue)

    def close(self) -> None:
        """End publishing."""
        self._publisher.cancel()

    async def _put(self, key: str, entry: OtEntry) -> None:
        self._put_to(self._memory._bucket(self._pipeline, self._vertex), key, entry)

    def _put_to(self, bucket: _Bucket, key: str, entry: OtEntry) -> None:
        before = self._put_epochs.get(key)
        self._put_epochs[key] = entry.epoch
        self._memory._put(bucket, key, entry, before)

    async def _read(self, key: str) -> tuple[int, OtEntry | None]:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        data = bucket.entries.get(key)
        return bucket.revisions.get(key, 0), OtEntry.FromString(data) if data is not None else None

    async def _put_after(self, key: str, guard: int, entry: OtEntry) -> None:
        bucket = self._memory._bucket(self._pipeline, self._vertex)
        if bucket.revisions.get(key, 0) != guard:
            raise RetryLaterError(codes.BROKER_AWAY, f"lane {key} was put by another process")
        self._put_to(bucket, key, entry)


class MemoryOtStores:
    """`OtStores` over an `OtMemory`."""

    def __init__(self, memory: OtMemory, pipeline: str, tasks: asyncio.TaskGroup, interval_s: float) -> None:
        self._memory = memory
        self._pipeline = pipeline
        self._tasks = tasks
        self._interval_s = interval_s
        self._stores: dict[str, MemoryOtStore] = {}

    async def store(self, vertex: str) -> MemoryOtStore:
        if vertex not in self._stores:
            self._memory._bucket(self._pipeline, vertex)
            self._stores[vertex] = MemoryOtStore(self._memory, self._pipeline, vertex, self._tasks, self._interval_s)
        return self._stores[vertex]

    async def delete(self, vertex: str | None = None) -> None:
        self._memory._delete(self._pipeline, vertex)

    def close(self) -> None:
        """End publishing."""
        for store in self._stores.values():
            store.close()


@asynccontextmanager
async def open_memory_ot_stores(
    memory: OtMemory, pipeline: str, *, publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S
) -> AsyncIterator[MemoryOtStores]:
    """The OT stores of a pipeline. Entries that are not flushed at the end are not published."""
    async with open_tasks() as tasks:
        stores = MemoryOtStores(memory, pipeline, tasks, publish_interval_s)
        try:
            yield stores
        finally:
            stores.close()


def _tell(bucket: _Bucket, update: OtUpdate) -> None:
    for watcher in bucket.watchers:
        watcher.on_update(update)


def _read_into(queue: UpdateQueue, name: str, bucket: _Bucket) -> None:
    queue.begin_reading()
    queue.finish_reading([decode_update(name, key, data) for key, data in bucket.entries.items()])
