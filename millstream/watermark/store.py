"""The OT store, in which the lanes of a vertex publish their watermarks: its interface, and the values that it uses.

Above it: the lanes of the vertex process, and the readers and writers of its neighbours (`fetch.py`). Below it: the
implementations in JetStream and Redis (`millstream/buffers`) and in memory (`memory.py`), which pass one contract suite
(`tests/contract/watermark`).

Every entry is a true statement about data that was committed before the entry was published. So it is harmless to see
an entry twice, or one that was never stored. But a reader must not miss the newest entry permanently.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError, FencedError, RetryLaterError
from millstream.limits import OT_RETRY_INTERVAL_S
from millstream.pauses import Pauses, until_done
from millstream.record import BufferId, LaneId
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True)
class OtUpdate:
    """An entry that a lane published."""

    key: str
    """`LaneId.key` of the lane, unique inside the vertex."""
    entry: OtEntry

    @cached_property
    def outputs(self) -> Mapping[BufferId, BufferState]:
        """The buffers that the lane writes."""
        return {BufferId(state.edge, state.partition): state for state in self.entry.outputs}

    @cached_property
    def inputs(self) -> Mapping[BufferId, BufferState]:
        """The inputs that the lane reads: buffers, or its source's split."""
        return {BufferId(state.edge, state.partition): state for state in self.entry.inputs}

    @property
    def consumed_records(self) -> int:
        """Records of all inputs that the lane has processed."""
        return sum(state.records for state in self.entry.inputs)

    def supersedes(self, older: OtUpdate) -> bool:
        """Whether this is newer than `older`, or has the same progress with a different idle flag.

        The values in the entries of one owner only grow, so within an epoch each of them gives the order.
        """
        if self.entry.epoch != older.entry.epoch:
            return self.entry.epoch > older.entry.epoch
        mine, theirs = _progress(self.entry), _progress(older.entry)
        return mine > theirs or (mine == theirs and self.entry.idle != older.entry.idle)


def decode_update(bucket: str, key: str, data: bytes) -> OtUpdate:
    """The update that a bucket holds under `key`. Raises `DamageError` for bytes that are not an entry."""
    try:
        return OtUpdate(key, OtEntry.FromString(data))
    except DecodeError as error:
        raise DamageError(
            codes.WATERMARK_UNREADABLE,
            f"the watermark of lane {key} in bucket {bucket} cannot be read ({len(data)} bytes: {error}); "
            "`millstream repair --accept-loss` removes it, and the lane publishes it again when it starts",
        ) from error


@dataclass(slots=True)
class OtStatistics:
    """Running totals of one open store. Read by metrics, tests and the screen."""

    published: int = 0
    """Entries stored and acknowledged."""
    coalesced: int = 0
    """Entries replaced by a newer one before they were sent."""
    put_failures: int = 0
    """Puts that had to be repeated."""
    fenced: int = 0
    """Lanes whose publishing ended because a newer owner publishes."""
    updates: int = 0
    """Updates given to watchers."""
    rereads: int = 0
    """How often a watcher has read the whole bucket."""
    last_error: str = ""
    """Why the last put failed; empty after a success."""


OtListener: TypeAlias = Callable[[OtUpdate], None]
"""Receives each update of a store, which may concern any of its lanes."""
NewEntry: TypeAlias = OtEntry | Callable[[], OtEntry]
"""An entry to put, or a function that creates it at the time of the put, from the state at that time. Most entries of a
busy lane are superseded before they are put, so creating them would be wasted work."""


class OtStore(Protocol):
    """The OT store of one vertex."""

    @property
    def vertex(self) -> str:
        """The vertex whose lanes publish here."""

    def statistics(self) -> OtStatistics:
        """Totals since the store was opened."""

    def publish(self, lane: LaneId, entry: NewEntry, *, soon: bool = True) -> None:
        """Pass in the newest entry of a lane of this process (do not change it afterwards). It is stored in the
        background.

        The store puts it immediately if nothing was published within the last `limits.OT_PUBLISH_INTERVAL_S`. Otherwise
        it puts only the newest entry, at the end of that interval. Unless `soon`, the interval is
        `limits.OT_LITTLE_INTERVAL_S`. A put is repeated until the entry is stored, or until the store holds a newer
        epoch.
        """

    async def take_over(self, lane: LaneId, epoch: int) -> OtEntry | None:
        """Become the publisher of this lane, after it was taken over in the ledger: from now on, entries of older
        epochs are not stored. Returns the previous entry; None if there was none, or if it is from another ledger's
        lane.

        Repeats the request until the broker answers.
        """

    async def flush(self) -> None:
        """Return when every published entry is stored. Waits while the broker is unavailable."""

    async def get_all(self) -> Mapping[str, OtUpdate]:
        """The newest stored entry of every lane, by lane key. Raises `RetryLaterError` if the broker is unavailable."""

    async def stored(self, lane: LaneId) -> OtUpdate | None:
        """The last entry that the lane has published. Raises `DamageError` if it cannot be read, and `RetryLaterError`
        if the broker is unavailable."""

    async def forget(self, lane: LaneId) -> None:
        """Remove the entry of a lane, which must have no owner now. Raises `RetryLaterError`."""

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[OtUpdate]]:
        """All stored entries, then every change, forever. An entry of a lane is never followed by an older one.

        Survives restarts of the broker: missed entries are found by reading everything again. A watcher that takes
        updates slowly gets the newest one of each lane.
        """


class OtStores(Protocol):
    """Where a pipeline's OT stores live."""

    async def store(self, vertex: str) -> OtStore:
        """The OT store of `vertex`. Creates it if it does not exist; returns the same object for every call."""

    async def delete(self, vertex: str | None = None) -> None:
        """Remove all OT stores of the pipeline, or that of one vertex."""


async def newest(store: OtStore) -> Mapping[str, OtUpdate]:
    """The newest stored entry of every lane, by lane key. Repeats the request until the broker answers."""
    return await _until_available(store.get_all, f"read the watermarks of {store.vertex}")


async def forget(store: OtStore, lane: LaneId) -> None:
    """Remove the entry of a lane without an owner. Repeats the request until the broker answers."""
    await _until_available(partial(store.forget, lane), f"remove the watermark of {lane}")


async def _until_available(request: Callable[[], Awaitable[_T]], what: str) -> _T:
    pauses = Pauses(OT_RETRY_INTERVAL_S, OT_RETRY_INTERVAL_S)
    return await until_done(request, RetryLaterError, partial(_log.warning, "cannot %s now: %s", what), pauses)


async def follow(store: OtStore, listeners: Collection[OtListener]) -> None:
    """Pass every update of a store to all listeners, until cancelled: one watch serves all lanes of a process."""
    async with store.watch() as updates:
        async for update in updates:
            for listener in listeners:
                listener(update)


def check_own(entry: OtEntry, stored: OtEntry | None, put_before: int | None) -> None:
    """Check that an owner may replace `stored` with `entry`. `put_before`: the epoch of its last put for the lane.

    Raises `FencedError` if another owner publishes. Two owners can have the same epoch if a ledger was set back while
    an owner was still running. The one that is behind would then withdraw a promise. An entry that an owner finds
    before its first put is from a ledger that was rebuilt since (`OtStore.take_over`).
    """
    if stored is None or stored.epoch < entry.epoch:
        return
    if stored.epoch > entry.epoch:
        raise FencedError(
            codes.LANE_TAKEN_OVER, f"the publisher has epoch {stored.epoch}, this owner has epoch {entry.epoch}"
        )
    if put_before == entry.epoch and _progress(stored) > _progress(entry):
        raise FencedError(codes.LANE_TAKEN_OVER, f"another owner with epoch {entry.epoch} publishes, and is ahead")


def _progress(entry: OtEntry) -> tuple[bool, int, int, int, int]:
    written = sum(state.sequence for state in entry.outputs)
    read = sum(state.sequence for state in entry.inputs)
    return entry.ended, entry.watermark_us, read, sum(state.records for state in entry.inputs), written
