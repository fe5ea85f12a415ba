"""The common part of OT stores, whose technology gives each entry a revision. The revision of the previous put guards a
put.

    publish ── put after revision n ──► stored, revision n + 1
    watcher ◄── puts as they happen ──── and everything, read again from time to time and after a lost connection

An owner that was replaced while it was paused has an old revision, so it cannot put its old entry over a newer one.

Above it: vertices, which know `OtStore`. Below it: a technology, which implements the abstract methods.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import ClassVar, Generic, TypeVar

from millstream.background import beside, open_tasks
from millstream.clock import START_OF_TIME_US
from millstream.errors import DamageError, InfrastructureError, RetryLaterError
from millstream.limits import OT_RETRY_INTERVAL_S
from millstream.pauses import RepeatedFailure
from millstream.record import LaneId
from millstream.watermark.publish import CoalescingPublisher
from millstream.watermark.store import NewEntry, OtStatistics, OtUpdate, check_own
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

_log = logging.getLogger(__name__)


class RevisionedOtStore(ABC):
    """The part of an `OtStore` that does not depend on the technology."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of requests that may succeed later."""

    def __init__(self, vertex: str, name: str, tasks: asyncio.TaskGroup, interval_s: float) -> None:
        """`name`: the store's name, for the log. `interval_s`: the interval between two puts of a lane."""
        self.vertex = vertex
        self._name = name
        self._revisions: dict[str, int] = {}
        """Revision of this process's last put, by lane key."""
        self._put_epochs: dict[str, int] = {}
        """Epoch of this process's last put, answered or not, by lane key."""
        self._statistics = OtStatistics()
        self._publisher = CoalescingPublisher(self._put, self._statistics, tasks, interval_s=interval_s)

    def statistics(self) -> OtStatistics:
        return self._statistics

    def publish(self, lane: LaneId, entry: NewEntry, *, soon: bool = True) -> None:
        self._publisher.publish(lane.key, entry, soon=soon)

    async def flush(self) -> None:
        await self._publisher.flush()

    def close(self) -> None:
        """End publishing."""
        self._publisher.cancel()

    async def take_over(self, lane: LaneId, epoch: int) -> OtEntry | None:
        """Put the stored entry again, under the new epoch.

        1. No entry is stored: put an entry that promises nothing.
        2. The entry has this epoch or a newer one: it is left from a ledger that was rebuilt since. Leave it unchanged.
        3. The entry is the one that an earlier attempt put without an answer: done.
        """
        raised: OtEntry | None = None
        before: OtEntry | None = None
        failure = RepeatedFailure()
        while True:
            try:
                revision, stored = await self._read(lane.key)
                if raised is not None and stored == raised:
                    return before
                if stored is not None and stored.epoch >= epoch:
                    return None
                before, raised = stored, OtEntry(watermark_us=START_OF_TIME_US)
                if stored is not None:
                    raised.CopyFrom(stored)
                raised.epoch = epoch
                await self._replace(lane.key, revision, raised)
            except RetryLaterError as error:
                if line := failure.line(f"a lane's watermark cannot be taken over now: {error}"):
                    _log.log(logging.WARNING if failure.lasts else logging.DEBUG, "%s", line)
                await asyncio.sleep(OT_RETRY_INTERVAL_S)
            else:
                return before

    async def get_all(self) -> Mapping[str, OtUpdate]:
        async with self._answering("all lanes"):
            return {update.key: update for update in await self._read_all()}

    async def stored(self, lane: LaneId) -> OtUpdate | None:
        _, entry = await self._read(lane.key)
        return None if entry is None else OtUpdate(lane.key, entry)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[OtUpdate]]:
        queue = UpdateQueue(self._statistics)
        async with self._hearing(queue), beside(self._reread(queue), f"read of {self._name}"):
            try:
                yield queue
            finally:
                queue.close()

    async def _put(self, key: str, entry: OtEntry) -> None:
        """Store one entry. Raises `RetryLaterError` if it may not be stored, and `FencedError` if a newer epoch is
        stored."""
        async with self._answering(key):
            revision = self._revisions.pop(key, None)
            if revision is None:
                revision, stored = await self._stored(key)
                check_own(entry, stored, self._put_epochs.get(key))
            self._put_epochs[key] = entry.epoch
            self._revisions[key] = await self._publish_after(revision, key, entry)

    async def _read(self, key: str) -> tuple[int, OtEntry | None]:
        async with self._answering(key):
            return await self._stored(key)

    async def _replace(self, key: str, revision: int, entry: OtEntry) -> None:
        async with self._answering(key):
            self._put_epochs[key] = entry.epoch
            self._revisions[key] = await self._take_over_after(revision, key, entry)

    async def _reread(self, queue: UpdateQueue) -> None:
        """Read everything at the start, after each lost connection, and from time to time."""
        rereads = queue.rereads
        forget = self._on_loss(rereads.on_loss)
        try:
            while not queue.closed:
                await self._reachable()
                rereads.begin()
                queue.begin_reading()
                try:
                    queue.finish_reading(await self._read_all())
                except self.failures as error:
                    _log.debug("%s cannot be read; retrying: %r", self._name, error)
                    queue.abandon_reading()
                    await rereads.retry()
                else:
                    await rereads.next()
        except (DamageError, InfrastructureError) as error:
            queue.fail(error)
        finally:
            forget()

    @abstractmethod
    async def forget(self, lane: LaneId) -> None:
        """See `OtStore.forget`. The revision of the lane's last put no longer counts."""

    @abstractmethod
    def _answering(self, key: str) -> AbstractAsyncContextManager[None]:
        """Limits the wait for answers, and converts each failure of the server to a `RetryLaterError`."""

    @abstractmethod
    async def _stored(self, key: str) -> tuple[int, OtEntry | None]:
        """The current revision of a lane, which the next put has to follow, and its entry; 0 and None if there is
        none."""

    @abstractmethod
    async def _publish_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """Put the entry if the lane still has that revision, as a durable step; returns the new revision."""

    @abstractmethod
    async def _take_over_after(self, revision: int, key: str, entry: OtEntry) -> int:
        """The same, as the durable step of a takeover."""

    @abstractmethod
    async def _read_all(self) -> list[OtUpdate]:
        """The entries of all lanes. An entry that is put meanwhile may be missing or appear twice."""

    def _hearing(self, queue: UpdateQueue) -> AbstractAsyncContextManager[object]:
        """Passes puts to the queue as they happen, during the block. Reading finds the puts that were missed, so a
        technology that announces none only shows them later."""
        return nullcontext()

    async def _reachable(self) -> None:  # noqa: B027 - most technologies have nothing to wait for
        """Return when a request to the server may succeed; immediately if only the request itself can show that."""

    @abstractmethod
    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever a connection is lost, until the returned function is called."""


StoreT = TypeVar("StoreT", bound=RevisionedOtStore)


class RevisionedOtStores(Generic[StoreT]):
    """`OtStores` of a technology."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        open_store: Callable[[str, asyncio.TaskGroup], Awaitable[StoreT]],
        delete: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self._tasks = tasks
        self._open_store = open_store
        self._delete = delete
        self._stores: dict[str, StoreT] = {}
        self._opening = asyncio.Lock()

    async def store(self, vertex: str) -> StoreT:
        async with self._opening:
            if vertex not in self._stores:
                self._stores[vertex] = await self._open_store(vertex, self._tasks)
            return self._stores[vertex]

    async def delete(self, vertex: str | None = None) -> None:
        await self._delete(vertex)

    def close(self) -> None:
        """End publishing."""
        for store in self._stores.values():
            store.close()


@asynccontextmanager
async def open_stores(
    open_store: Callable[[str, asyncio.TaskGroup], Awaitable[StoreT]], delete: Callable[[str | None], Awaitable[None]]
) -> AsyncIterator[RevisionedOtStores[StoreT]]:
    """The OT stores of a pipeline. Entries that are not flushed at the end are not published.

    `open_store`: returns the store of a vertex, which publishes in the task group, and creates it if it does not exist.
    `delete`: as `OtStores.delete`.
    """
    async with open_tasks() as tasks:
        stores = RevisionedOtStores(tasks, open_store, delete)
        try:
            yield stores
        finally:
            stores.close()
