"""OT stores in memory, with faults: for our tests and those of users.

`OtMemory` stands for the broker: if several `open_memory_ot_stores` get the same one, they see each other, as processes
do. Its methods are the faults that a broker can have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

from millstream import codes, limits
from millstream.errors import RetryLaterError
from millstream.record import LaneId
from millstream.watermark.revisions import RevisionedOtStore, RevisionedOtStores, open_stores
from millstream.watermark.store import OtUpdate, decode_update
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
        self._listeners: list[Callable[[], None]] = []
        """Called when watchers have to read everything again."""

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
        for listener in list(self._listeners):
            listener()

    def _bucket(self, pipeline: str, vertex: str) -> _Bucket:
        if self._away:
            raise RetryLaterError(codes.BROKER_AWAY, f"the OT store of {pipeline}/{vertex} is not available")
        return self._buckets.setdefault((pipeline, vertex), _Bucket())

    def _delete(self, pipeline: str, vertex: str | None) -> None:
        for name in [name for name in self._buckets if name[0] == pipeline and vertex in (None, name[1])]:
            del self._buckets[name]

    def _put(self, bucket: _Bucket, revision: int, key: str, entry: OtEntry) -> int:
        if bucket.revisions.get(key, 0) != revision:
            raise RetryLaterError(codes.BROKER_AWAY, f"lane {key} was put by another process")
        bucket.entries[key] = entry.SerializeToString()
        bucket.revisions[key] = revision + 1
        update = decode_update("in memory", key, bucket.entries[key])
        if self._held is not None:
            self._held.append((bucket, update))
        else:
            _tell(bucket, update)
        if self._answers_to_lose:
            self._answers_to_lose -= 1
            raise RetryLaterError(codes.BROKER_AWAY, f"lane {key}: no answer to a put")
        return revision + 1


class MemoryOtStore(RevisionedOtStore):
    """`OtStore` over an `OtMemory`."""

    failures = (RetryLaterError,)

    def __init__(
        self, memory: OtMemory, pipeline: str, vertex: str, tasks: asyncio.TaskGroup, interval_s: float
    ) -> None:
        super().__init__(vertex, f"the OT store of {pipeline}/{vertex}", tasks, interval_s)
        self._memory = memory
        self._pipeline = pipeline

    async def forget(self, lane: LaneId) -> None:
        self._revisions.pop(lane.key, None)
        bucket = self._bucket()
        bucket.entries.pop(lane.key, None)
        bucket.revisions.pop(lane.key, None)

    def _bucket(self) -> _Bucket:
        return self._memory._bucket(self._pipeline, self.vertex)

    def _answering(self, key: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def _stored(self, key: str) -> tuple[int, OtEntry | None]:
        bucket = self._bucket()
        data = bucket.entries.get(key)
        return bucket.revisions.get(key, 0), OtEntry.FromString(data) if data is not None else None

    async def _publish_after(self, revision: int, key: str, entry: OtEntry) -> int:
        return self._memory._put(self._bucket(), revision, key, entry)

    _take_over_after = _publish_after

    async def _read_all(self) -> list[OtUpdate]:
        return [decode_update(self.vertex, key, data) for key, data in self._bucket().entries.items()]

    @asynccontextmanager
    async def _hearing(self, queue: UpdateQueue) -> AsyncIterator[None]:
        bucket = self._bucket()
        bucket.watchers.append(queue)
        try:
            yield
        finally:
            bucket.watchers.remove(queue)

    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._memory._listeners.append(listener)
        return lambda: self._memory._listeners.remove(listener)


MemoryOtStores = RevisionedOtStores[MemoryOtStore]
"""`OtStores` over an `OtMemory`."""


def open_memory_ot_stores(
    memory: OtMemory, pipeline: str, *, publish_interval_s: float = limits.OT_PUBLISH_INTERVAL_S
) -> AbstractAsyncContextManager[MemoryOtStores]:
    """The OT stores of a pipeline. Entries that are not flushed at the end are not published."""

    async def open_store(vertex: str, tasks: asyncio.TaskGroup) -> MemoryOtStore:
        memory._bucket(pipeline, vertex)
        return MemoryOtStore(memory, pipeline, vertex, tasks, publish_interval_s)

    async def delete(vertex: str | None) -> None:
        memory._delete(pipeline, vertex)

    return open_stores(open_store, delete)


def _tell(bucket: _Bucket, update: OtUpdate) -> None:
    for watcher in bucket.watchers:
        watcher.on_update(update)
