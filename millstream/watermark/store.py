"""The OT store: where the lanes of a vertex publish their watermarks. The boundary, and the values that cross it.

Above it: the lanes of the vertex process, and the readers and writers of its neighbours (`fetch.py`). Below it:
JetStream (`jetstream.py`) or memory (`memory.py`), which pass one contract suite (`tests/contract/watermark`).

Every entry is a true statement about something that had been committed before it was published. So it does no harm to
see one twice, or one that was never stored; what must not happen is to miss the newest one permanently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

from google.protobuf.message import DecodeError

from millstream import codes
from millstream.clock import START_OF_TIME_US
from millstream.errors import DamageError, FencedError, RetryLaterError
from millstream.limits import OT_RETRY_INTERVAL_S
from millstream.record import BufferId, LaneId
from millstream.wire.watermark.v1.ot_pb2 import BufferState, OtEntry

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtUpdate:
    """What a lane published."""

    key: str
    """`LaneId.key` of the lane, unique inside the vertex."""
    entry: OtEntry

    @cached_property
    def outputs(self) -> Mapping[BufferId, BufferState]:
        """The buffers the lane writes."""
        return {BufferId(state.edge, state.partition): state for state in self.entry.outputs}

    @cached_property
    def inputs(self) -> Mapping[BufferId, BufferState]:
        """What the lane reads: buffers, or its source's split."""
        return {BufferId(state.edge, state.partition): state for state in self.entry.inputs}

    @property
    def consumed_records(self) -> int:
        """Records of all its inputs that the lane is done with."""
        return sum(state.records for state in self.entry.inputs)

    def supersedes(self, older: OtUpdate) -> bool:
        """Whether this is newer than what is known of the lane, or the same and said differently.

        The entries of one owner only ever grow, so within an epoch any of their parts tells the order.
        """
        if self.entry.epoch != older.entry.epoch:
            return self.entry.epoch > older.entry.epoch
        mine, theirs = _progress(self.entry), _progress(older.entry)
        return mine > theirs or (mine == theirs and self.entry.idle != older.entry.idle)


def decode_update(bucket: str, key: str, data: bytes) -> OtUpdate:
    """The update a bucket holds under `key`. Raises `DamageError` for bytes that are not an entry."""
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
    """Puts that had to be tried again."""
    fenced: int = 0
    """Lanes whose publishing ended because a newer owner publishes."""
    updates: int = 0
    """Updates handed to watchers."""
    rereads: int = 0
    """Times a watcher has read the whole bucket."""
    last_error: str = ""
    """Why the last put failed; empty after a success."""


NewEntry: TypeAlias = OtEntry | Callable[[], OtEntry]
"""What is to be put; or what makes it when it is put, of what is true then. Most of what a busy lane has to say is
superseded before that."""


class OtStore(Protocol):
    """The OT store of one vertex."""

    @property
    def vertex(self) -> str: ...

    def statistics(self) -> OtStatistics: ...

    def publish(self, lane: LaneId, entry: NewEntry, *, soon: bool = True) -> None:
        """Hand over the newest entry of an own lane (not to be changed afterwards); stored without being waited for.

        At once when nothing was published within the last `limits.OT_PUBLISH_INTERVAL_S`, else at its end; only the
        newest one then. One that is not wanted `soon` has `limits.OT_LITTLE_INTERVAL_S`. Tried again until it is
        stored, or until a newer epoch is found there.
        """

    async def take_over(self, lane: LaneId, epoch: int) -> OtEntry | None:
        """Become who publishes of this lane, once it was taken over in the ledger: of older epochs nothing is stored
        from now on. Returns what had been promised until then; None where nothing was, or by another ledger's lane.

        Asks until the broker answers.
        """

    async def flush(self) -> None:
        """Return when everything handed over is stored. Waits as long as the broker is away."""

    async def get_all(self) -> Mapping[str, OtUpdate]:
        """The newest stored entry of every lane, by lane key. Raises `RetryLaterError` when the broker is away."""

    async def stored(self, lane: LaneId) -> OtUpdate | None:
        """What the lane has published last. Raises `DamageError` when it cannot be read, `RetryLaterError` when the
        broker is away."""

    async def forget(self, lane: LaneId) -> None:
        """Remove what the lane has published; it must have no owner now. Raises `RetryLaterError`."""

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[OtUpdate]]:
        """What is stored, then every change, forever. Nothing older than what it gave before of the same lane.

        Survives restarts of the broker: whatever was missed is found by reading everything again. A watcher that is
        slow to take updates is given the newest of each lane.
        """


class OtStores(Protocol):
    """Where a pipeline's OT stores live."""

    async def store(self, vertex: str) -> OtStore:
        """The OT store of `vertex`, made when it does not exist; the same object for every call."""

    async def delete(self, vertex: str | None = None) -> None:
        """Remove all OT stores of the pipeline, or that of one vertex."""


class OtListener(Protocol):
    """Something that wants to know of updates: a `WatermarkFetcher`, one side of a `BufferFill`."""

    def observe(self, update: OtUpdate) -> None: ...


Read = Callable[[], Awaitable[tuple[int, OtEntry | None]]]
"""What is stored of a lane, and what a put that replaces just that is guarded with. Raises `RetryLaterError`."""
PutAfter = Callable[[int, OtEntry], Awaitable[None]]
"""Stores an entry if what is stored has that guard. Raises `RetryLaterError` when it is not known to be stored."""


async def raise_epoch(read: Read, put_after: PutAfter, epoch: int) -> OtEntry | None:
    """`OtStore.take_over` for any store: what is stored is put again, under the new epoch.

    1. Nothing is stored: an entry that promises nothing keeps the place.
    2. It is of this epoch or a newer one: left from a ledger that was rebuilt since. It is left alone.
    3. It is the very entry that was put before without an answer: done.
    """
    raised: OtEntry | None = None
    before: OtEntry | None = None
    while True:
        try:
            guard, stored = await read()
            if raised is not None and stored == raised:
                return before
            if stored is not None and stored.epoch >= epoch:
                return None
            before, raised = stored, OtEntry(watermark_us=START_OF_TIME_US)
            if stored is not None:
                raised.CopyFrom(stored)
            raised.epoch = epoch
            await put_after(guard, raised)
        except RetryLaterError as error:
            _log.debug("cannot take over a lane's watermark now: %s", error)
            await asyncio.sleep(OT_RETRY_INTERVAL_S)
        else:
            return before


async def newest(store: OtStore) -> Mapping[str, OtUpdate]:
    """The newest stored entry of every lane, by lane key; asks until the broker answers."""
    while True:
        try:
            return await store.get_all()
        except RetryLaterError as error:
            _log.warning("cannot read the watermarks of %s now: %s", store.vertex, error)
        await asyncio.sleep(OT_RETRY_INTERVAL_S)


async def forget(store: OtStore, lane: LaneId) -> None:
    """Remove what a lane without an owner has published; asks until the broker answers."""
    while True:
        try:
            return await store.forget(lane)
        except RetryLaterError as error:
            _log.warning("cannot remove the watermark of %s now: %s", lane, error)
        await asyncio.sleep(OT_RETRY_INTERVAL_S)


async def follow(store: OtStore, listeners: Iterable[OtListener]) -> None:
    """Hand every update of a store to all listeners, until cancelled: one watch serves all lanes of a process."""
    targets = list(listeners)
    async with store.watch() as updates:
        async for update in updates:
            for target in targets:
                target.observe(update)


def check_own(entry: OtEntry, stored: OtEntry | None, put_before: int | None) -> None:
    """Whether an owner may put `entry` over what is stored. `put_before`: the epoch of what it has put of the lane.

    Raises `FencedError` where another owner publishes. Of two that have one epoch, as happens where a ledger was set
    back below an owner that lives on, the one that is behind would take a promise back. What an owner finds before it
    has put anything is from a ledger that was rebuilt since (`raise_epoch`).
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
