"""The log for its queue: entries are appended at once, in memory, and become durable in groups.

    async with open_log(directory, identity, contents) as log:      # reads the log back into `contents`
        location = log.append(entry, body)                          # has its place, but is not written yet
        await log.sync()                                            # written and fsynced, with everything since

Above it: the queue. Below it: `writer`, in a thread of the log's own, so that a slow disk does not block the event
loop. The log does not know what windows are: it asks its `Contents` which segments are needed.

If there is no space for a write, `sync` raises `StorageFullError`; nothing is lost, and the next `sync` tries again.
Any other failure poisons the log: nothing more is acknowledged, every call raises, and the lane has to start again.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from millstream import codes
from millstream.durable import step
from millstream.errors import (
    REPAIR,
    DamageError,
    FencedError,
    InfrastructureError,
    MillstreamError,
    StorageFullError,
    UserError,
)
from millstream.files import directories_to_sync, make_private_directories
from millstream.limits import LOG_RESERVE_BYTES, LOG_SEGMENT_BYTES
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.entries import FORMAT, KEYS_FORMAT, entry_buffers, entry_length
from millstream_reduce.log.files import NO_SPACE, Files
from millstream_reduce.log.recovery import LogEnd, Reader, read_log
from millstream_reduce.log.segments import UNNAMED_SUFFIX, LogIdentity, check_claim, claim, segment_path
from millstream_reduce.log.writer import BeginSegment, LogWriter, WriteEntry
from millstream_reduce.values import Location

CHECKPOINT_SEGMENTS_MIN = 4
"""A checkpoint is considered when segments that only a restart reads add up to this many full ones."""
CHECKPOINT_SHARE = 4
"""A checkpoint is worthwhile if it frees this many times its own size."""
_TAKEOVERS_MAX = 10
"""The most segments that a replaced owner can begin while the log is opened: one of its fsyncs stops it."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The result of the entries so far."""

    needed: frozenset[int]
    """Segments with needed rows or entries."""
    inputs: Sequence[wal_pb2.InputPosition]
    closed_us: int
    last_hand_over: int


class Contents(Reader, Protocol):
    """What a log is kept for."""

    def reset(self) -> None:
        """Forget everything: the log is read from its beginning."""

    def recovered(self, end: LogEnd) -> None:
        """The whole log has been read. May raise, when it is not what it should be."""

    def summary(self) -> LogSummary:
        """As of the last entry appended."""

    def checkpoint(self) -> wal_pb2.Checkpoint:
        """As of the last entry appended."""


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """One log, now."""

    segments: int
    bytes: int
    """Size of all segments, including entries that are not written yet."""
    entries: int
    """Entries appended since the log was created."""
    unsynced_entries: int
    unsynced_bytes: int
    syncs: int
    """fsyncs of entries since the log was opened."""
    sync_s: float
    """Their total time."""
    written_bytes: int
    """Since the log was opened."""
    is_short: bool
    """Whether the disk was full, and has no free space yet."""


@dataclass(frozen=True, slots=True)
class LogSizes:
    """Bounds of one log."""

    segment_bytes: int = LOG_SEGMENT_BYTES
    """A segment that has reached this size is followed by a new one."""
    reserve_bytes: int = LOG_RESERVE_BYTES
    """Space that is reserved on the disk for entries that were admitted before the disk was full."""


@dataclass(frozen=True, slots=True)
class _Retention:
    """What the header of a new segment says about the earlier ones.

    A segment holds rows, which open windows and uncommitted hand-overs need, and entries, which a restart reads again
    to know those. With a checkpoint, reading begins with the new segment, and any without needed rows can be removed.
    """

    first: int
    """Segment with which reading begins."""
    kept: Sequence[int]
    """Segments that are kept, rising, without the new one."""


class Log:
    """An open log. Used by one event loop; created by `open_log`."""

    def __init__(
        self, directory: Path, identity: LogIdentity, contents: Contents, files: Files, sizes: LogSizes
    ) -> None:
        self.directory = directory
        self.identity = identity
        self._contents = contents
        self._files = files
        self._writer = LogWriter(directory, identity, files, sizes.reserve_bytes)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"log {identity}")
        self._segment_bytes = sizes.segment_bytes
        self._log_id = b""
        self.segment = 0
        """Number of the segment to which entries are appended."""
        self._header_end = 0
        self._lengths: dict[int, int] = {}
        """Lengths of the segments that belong to the log, the current one last."""
        self._first = 1
        self.sequence = 0
        """Log sequence number of the last entry appended."""
        self.durable = 0
        """Every entry up to this log sequence number is durable."""
        self._pending: deque[WriteEntry | BeginSegment] = deque()
        self.unsynced_bytes = 0
        self._flushing: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        self._checkpoint_from = 0
        """After a checkpoint was too large, the next is tried when this much can be freed."""

    @property
    def total_bytes(self) -> int:
        return sum(self._lengths.values())

    def segments(self) -> Sequence[int]:
        """Numbers of the segments that belong to the log, rising."""
        return tuple(self._lengths)

    @property
    def is_short(self) -> bool:
        """Whether the disk was full, and has no free space yet: nothing more should be appended."""
        return self._writer.is_short

    async def reserve(self) -> None:
        """Check whether the disk has free space again."""
        await self.in_thread(self._writer.reserve)

    def statistics(self) -> LogStatistics:
        writer = self._writer
        return LogStatistics(
            segments=len(self._lengths),
            bytes=self.total_bytes,
            entries=self.sequence,
            unsynced_entries=self.sequence - self.durable,
            unsynced_bytes=self.unsynced_bytes,
            syncs=writer.syncs,
            sync_s=writer.sync_s,
            written_bytes=writer.written_bytes,
            is_short=self.is_short,
        )

    def append(self, entry: wal_pb2.Entry, body: memoryview | bytes = b"", *, same_segment: bool = False) -> Location:
        """Give an entry its place. It is durable after the next `sync` that begins from now on.

        With `same_segment` no new segment begins before it, however long the current one gets: for entries whose
        contents the summary knows already. `body` must stay as it is.
        """
        self._check()
        entry.durable = self.durable
        meta = entry.SerializeToString()
        length = entry_length(len(meta), len(body))
        offset = self._lengths[self.segment]
        if not same_segment and offset > self._header_end and offset + length > self._segment_bytes:
            self.begin_segment()
            offset = self._lengths[self.segment]
        self.sequence += 1
        self._pending.append(WriteEntry(offset, length, entry_buffers(self.sequence, meta, body)))
        self._lengths[self.segment] += length
        self.unsynced_bytes += length
        return Location(self.segment, offset, length)

    def removable_bytes(self, *, pressed: bool = False) -> int:
        """What `begin_segment` would free now, as far as that is known before a checkpoint is made."""
        summary = self._contents.summary()
        plan = self._without_checkpoint(summary)
        freed = self.total_bytes - sum(self._lengths[n] for n in plan.kept)
        more = self._unneeded_bytes(plan, summary)
        return freed + (more if self._is_worth_a_checkpoint(more, pressed) else 0)

    def begin_segment(self, *, pressed: bool = False, anew: bool = False) -> None:
        """Begin a segment at the next `sync`, and have those removed that are not needed.

        A log that is `pressed` for room makes a checkpoint for whatever that frees, if it frees more than it takes.
        With `anew` it makes one whatever it frees: entries before do not count any more.
        """
        self._check()
        self._pending.append(self._planned_segment(pressed=pressed, anew=anew))

    async def sync(self) -> None:
        """Return when everything appended so far is durable. Entries may be appended meanwhile.

        Raises `StorageFullError` when there was no room, after which it may be called again; `FencedError` when the
        lane has another owner; `InfrastructureError` when a write or an fsync failed.
        """
        target = self.sequence
        while self.durable < target:
            self._check()
            flushing = self._flushing or self._start_flush()
            await asyncio.wait([flushing])
            error = flushing.exception()
            if isinstance(error, StorageFullError):
                raise StorageFullError(error.code, str(error)) from error
        self._check()

    def _check(self) -> None:
        failure = self._failure
        if isinstance(failure, MillstreamError):
            raise type(failure)(failure.code, str(failure)) from failure
        if failure is not None:
            raise type(failure)(str(failure)) from failure

    def _start_flush(self) -> asyncio.Future[None]:
        items, self._pending = self._pending, deque()
        target, size = self.sequence, self.unsynced_bytes

        def flushed(done: asyncio.Future[None]) -> None:
            self._flushing = None
            error = done.exception()
            if error is None:
                self.durable = target
                self.unsynced_bytes -= size
            elif isinstance(error, StorageFullError):
                self._pending.extendleft(reversed(items))
            else:
                self._failure = (
                    error if isinstance(error, Exception) else InfrastructureError(codes.CANNOT_WRITE, repr(error))
                )

        flushing = asyncio.get_running_loop().run_in_executor(self._executor, self._writer.flush, items)
        flushing.add_done_callback(flushed)
        self._flushing = flushing
        return flushing

    def _planned_segment(self, *, pressed: bool = False, anew: bool = False) -> BeginSegment:
        number = self.segment + 1
        summary = self._contents.summary()
        plan = self._without_checkpoint(summary)
        checkpoint = self._contents.checkpoint() if anew else self._worthwhile_checkpoint(plan, summary, pressed)
        if checkpoint is not None:
            plan = _Retention(number, [n for n in self._lengths if n in summary.needed])
        header = wal_pb2.Segment(
            format=FORMAT,
            log_id=self._log_id,
            number=number,
            pipeline=self.identity.pipeline,
            vertex=self.identity.vertex,
            partition=self.identity.partition,
            epoch=self.identity.epoch,
            sealed=[wal_pb2.Sealed(number=n, length=self._lengths[n]) for n in plan.kept],
            inputs=summary.inputs,
            closed_us=summary.closed_us,
            last_hand_over=summary.last_hand_over,
            first=plan.first,
            checkpoint=checkpoint,
            ledger_id=self.identity.ledger_id,
        )
        meta = wal_pb2.Entry(segment=header, durable=self.durable).SerializeToString()
        length = entry_length(len(meta), 0)
        self.sequence += 1
        removed = tuple(n for n in self._lengths if n not in plan.kept)
        self._lengths = {n: self._lengths[n] for n in plan.kept} | {number: length}
        self.segment, self._header_end, self._first = number, length, plan.first
        self.unsynced_bytes += length
        return BeginSegment(number, entry_buffers(self.sequence, meta, b""), removed)

    def _without_checkpoint(self, summary: LogSummary) -> _Retention:
        """What is kept if the next segment has none: every segment from the oldest needed one on, because a restart
        builds the windows up from all entries since."""
        first = max(self._first, min(summary.needed, default=self.segment + 1))
        return _Retention(first, [n for n in self._lengths if n >= first or n in summary.needed])

    def _unneeded_bytes(self, plan: _Retention, summary: LogSummary) -> int:
        """Of segments that stay only because a restart has to read them."""
        return sum(self._lengths[n] for n in plan.kept if n not in summary.needed)

    def _is_worth_a_checkpoint(self, more: int, pressed: bool) -> bool:
        least = 1 if pressed else CHECKPOINT_SEGMENTS_MIN * self._segment_bytes
        return more >= max(least, self._checkpoint_from)

    def _worthwhile_checkpoint(self, plan: _Retention, summary: LogSummary, pressed: bool) -> wal_pb2.Checkpoint | None:
        more = self._unneeded_bytes(plan, summary)
        if not self._is_worth_a_checkpoint(more, pressed):
            return None
        checkpoint = self._contents.checkpoint()
        if checkpoint.ByteSize() * CHECKPOINT_SHARE > more:
            self._checkpoint_from = 2 * more
            return None
        self._checkpoint_from = 0
        return checkpoint

    def open(self) -> None:
        """Read the log back and become its owner. Blocking; for `open_log`."""
        try:
            self._open()
        except OSError as error:
            message = f"{self.identity}: cannot open the log in {self.directory}: {error.strerror}"
            if error.errno in NO_SPACE:
                raise StorageFullError(codes.DISK_FULL, message) from error
            raise InfrastructureError(codes.CANNOT_WRITE, message) from error

    def _open(self) -> None:
        _make_directory(self.directory, self.identity, self._files)
        claim(self.directory, self.identity)
        for _ in range(_TAKEOVERS_MAX):
            self._contents.reset()
            end = self._read_back()
            self._settle(end)
            try:
                # What an earlier format says about open windows is not read again.
                self._writer.begin(self._planned_segment(anew=end.format < KEYS_FORMAT))
            except FencedError:
                # An earlier owner has begun a segment meanwhile. If there is none after ours, that was its last one.
                check_claim(self.directory, self.identity)
                continue
            self.durable, self.unsynced_bytes = self.sequence, 0
            self._remove_left_over(end)
            self._writer.reserve()
            return
        raise InfrastructureError(
            codes.LOG_SHARED,
            f"{self.identity}: another process keeps writing to {self.directory} as if it had a newer epoch: two "
            "lanes must not share a directory",
        )

    def _read_back(self) -> LogEnd:
        try:
            end = read_log(self.directory, self.identity, self._contents)
        except DamageError as error:
            raise DamageError(error.code, f"{self.identity}: {error}. {REPAIR}") from error
        self._contents.recovered(end)
        return end

    def _settle(self, end: LogEnd) -> None:
        """Continue where the log ends."""
        self._log_id = end.log_id or os.urandom(16)
        self.segment, self._first, self.sequence = end.newest, end.first, end.sequence
        self._lengths = dict(sorted(end.lengths.items()))
        if end.newest:
            # What was read may be only in the page cache, and its owner may have died before it synced.
            path = segment_path(self.directory, end.newest)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with step("log.end.sync", self.identity.vertex):
                    self._files.sync(descriptor)
            except OSError as error:
                raise InfrastructureError(
                    codes.FSYNC_FAILED, f"{self.identity}: fsync of {path} failed: {error.strerror}"
                ) from error
            finally:
                os.close(descriptor)

    def _remove_left_over(self, end: LogEnd) -> None:
        """Remove files that an earlier process left unfinished."""
        paths = [segment_path(self.directory, number) for number in end.left_over]
        # Segments that were never begun: their creator died, or was replaced.
        for path in (*paths, *self.directory.glob(f"*{UNNAMED_SUFFIX}")):
            with step("log.left_over.remove", self.identity.vertex):
                self._files.remove(path)

    async def close(self) -> None:
        """Let the current fsync finish. What was appended after the last `sync` may be lost."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._writer.close()
        self._executor.shutdown()

    async def in_thread(self, function: Callable[[], _T]) -> _T:
        """Run in the log's thread. When cancelled, returns only after the function has."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, function)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


@asynccontextmanager
async def open_log(
    directory: Path,
    identity: LogIdentity,
    contents: Contents,
    *,
    files: Files | None = None,
    sizes: LogSizes | None = None,
) -> AsyncIterator[Log]:
    """Open the log in `directory`, or make it; reads what is there into `contents`.

    The lane's mark must have been taken over under `identity.epoch` before. Raises `DamageError` for a log that cannot
    be read whole, `FencedError` when there is a newer owner, `UserError` for the log of another pipeline or lane.
    """
    log = Log(directory, identity, contents, files or Files(), sizes or LogSizes())
    try:
        await log.in_thread(log.open)
        yield log
    finally:
        await log.close()


def _make_directory(directory: Path, identity: LogIdentity, files: Files) -> None:
    """Create the log's directory and its parents durably."""
    try:
        for path in directories_to_sync(directory):
            with step("log.directory", identity.vertex):
                make_private_directories(path)
            with step("log.directory.sync", identity.vertex):
                files.sync_directory(path.parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(
            codes.LOG_OF_ANOTHER, f"{directory} cannot be created for the log: a file with that name exists"
        ) from error
