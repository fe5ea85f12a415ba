"""The common part of OT stores whose server gives each entry a revision. The revision of the previous put guards a put.

    publish ── put after revision n ──► stored, revision n + 1
    watcher ◄── puts as they happen ──── and everything, read again from time to time and after a lost connection

An owner that was replaced while it was paused has an old revision, so it cannot put its old entry over a newer one.

Above it: vertices, which know `OtStore`. Below it: a technology, which implements the abstract methods.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

from millstream.errors import DamageError, InfrastructureError
from millstream.record import LaneId
from millstream.watermark.publish import PublishingStore
from millstream.watermark.store import OtUpdate, check_own, raise_epoch
from millstream.watermark.updates import UpdateQueue
from millstream.wire.watermark.v1.ot_pb2 import OtEntry

_log = logging.getLogger(__name__)


class RevisionedOtStore(PublishingStore):
    """The part of an `OtStore` that does not depend on the technology."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of requests that may succeed later."""

    def __init__(self, vertex: str, name: str, tasks: asyncio.TaskGroup, interval_s: float) -> None:
        """`name`: the store's name, for the log."""
        super().__init__(vertex, tasks, interval_s)
        self._name = name
        self._revisions: dict[str, int] = {}
        """Revision of this process's last put, by lane key."""

    async def take_over(self, lane: LaneId, epoch: int) -> OtEntry | None:
        return await raise_epoch(
            lambda: self._read(lane.key), lambda revision, entry: self._replace(lane.key, revision, entry), epoch
        )

    def close(self) -> None:
        """End publishing."""
        self._publisher.cancel()

    async def _put(self, key: str, entry: OtEntry) -> None:
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

    @abstractmethod
    async def _reachable(self) -> None:
        """Return when a request to the server may succeed."""

    @abstractmethod
    def _on_loss(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever a connection is lost, until the returned function is called."""
