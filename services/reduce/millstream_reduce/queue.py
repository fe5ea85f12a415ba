"""The persistent bounded queue (PBQ) of a reduce lane: from frames to windows that are handed over.

    frames ─► append ─► log ─► sync ─► the lane commits the input positions, and the late records
                │
             windows ─► close, early ─► hand-over in the log ─► sync ─► computed ─► committed ─► segments are deleted

`append`, `close` and `early` return at once: their effect is in memory, in the order of the log. It is durable when a
`sync` that began after them returns; only then may the lane publish it. After a restart the log is read back, and
`unacknowledged` and `pending` return what the lane's mark does not know yet.

Above it: the lane, which passes its mark to the queue after each commit. Below it: `log` and the windowing. It does not
know what the windows are computed for, or which code reads the buffers.

Bounds: bytes that are not durable yet, and bytes of the log. `room` waits for both. A hand-over is always accepted,
because only hand-overs free space again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from millstream import codes
from millstream.errors import REPAIR, DamageError, FencedError, RetryLaterError, StorageFullError
from millstream.ledger.protocol import Witness
from millstream.ledger.witness import from_messages
from millstream.limits import (
    HAND_OVER_BYTES_MAX,
    HAND_OVER_PIECES_MAX,
    HAND_OVER_WINDOWS_MAX,
    LOG_BYTES_MAX,
    LOG_SEGMENT_BYTES,
    LOG_UNSYNCED_BYTES_MAX,
    MIB,
)
from millstream.pauses import Pauses, RepeatedFailure, until_done
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce import batches
from millstream_reduce.earlier_keys import StoredKeys
from millstream_reduce.log.damage import time_text
from millstream_reduce.log.files import Files
from millstream_reduce.log.log import Log, LogSizes, LogStatistics, open_log
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.milestones import Milestones, SessionMembership
from millstream_reduce.origins import HandOverOrigin
from millstream_reduce.queue_contents import AppendResult, QueueContents
from millstream_reduce.queued_frames import QueuedFrame, positions_of, rows_within
from millstream_reduce.results import ResultFiles
from millstream_reduce.values import WindowContents, WindowTable
from millstream_reduce.windowing import Keys, Windowing

__all__ = ["AppendResult", "LogIdentity", "Queue", "QueueLimits", "QueueStatistics", "QueuedFrame", "open_queue"]

_log = logging.getLogger(__name__)

_RESERVE_MORE_BYTES = 16 * MIB
_LEFT_BYTES_MAX = 4096
"""Unneeded bytes that may be left, rather than beginning a segment because of them."""
_RETRY_FIRST_S = 0.05
_RETRY_LAST_S = 1.0
"""A write that found no space is tried again after the first, then double, up to the last pause."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of one queue."""

    log_bytes_max: int = LOG_BYTES_MAX
    """Bytes of all segments at which nothing more is admitted."""
    unsynced_bytes_max: int = LOG_UNSYNCED_BYTES_MAX
    """Bytes in memory that are not durable, at which nothing more is admitted."""
    segment_bytes: int = LOG_SEGMENT_BYTES
    hand_over_windows_max: int = HAND_OVER_WINDOWS_MAX
    hand_over_bytes_max: int = HAND_OVER_BYTES_MAX
    hand_over_pieces_max: int = HAND_OVER_PIECES_MAX

    def __post_init__(self) -> None:
        if self.log_bytes_max < 4 * self.segment_bytes:
            # Segments are removed as a whole: with fewer of them, one open window could fill the log.
            raise ValueError(
                f"a log of {self.log_bytes_max} bytes has space for fewer than 4 segments of {self.segment_bytes}"
            )


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue, now."""

    open_windows: int
    oldest_end_us: int | None
    """End of the first open window."""
    open_rows: int
    """Records that open windows need."""
    pending_hand_overs: int
    """Hand-overs that are not committed."""
    pending_rows: int
    last_hand_over: int
    log: LogStatistics
    log_bytes_max: int
    full: str
    """The reason why the queue accepts nothing; empty while it has space."""


class Queue:
    """An open queue. Used by one event loop; created by `open_queue`."""

    def __init__(
        self, log: Log, contents: QueueContents, results: ResultFiles, limits: QueueLimits, *, keep_late: bool
    ) -> None:
        self._milestones = Milestones() if contents.input_is_kept else None
        self._joined = SessionMembership(())
        self._log = log
        self._contents = contents
        self._windowing = contents.windowing
        self._results = results
        self._limits = limits
        self._keep_late = keep_late
        self._freed = asyncio.Event()
        self._warned_full = False

    # In

    def append(self, frames: Sequence[QueuedFrame], watermark_us: int) -> AppendResult:
        """Append frames, at least one, in order; those of one edge must follow what was appended of it before.

        Raises `DamageError` for a frame whose columns cannot be read.
        """
        batch = batches.batch_of_frames([item.frame for item in frames])
        times = batches.event_times(batch)
        keys = batches.key_codes(batch) if self._windowing.needs_keys else None
        placed = self._windowing.sort(times, keys, self._joined.among(frames) if self.is_behind else None)
        milestone = None
        if self._milestones is not None:
            milestone = self._milestones.before(
                self._contents.sequences,
                self._windowing.closed_us,
                sum(item.size for item in frames),
                depends=self._windowing.depends_on_closing(times),
                joined=[
                    wal_pb2.Joined(edge=item.edge, sequence=item.sequence, rows=rows)
                    for item, rows in rows_within(frames, placed.joined)
                ],
            )
        late = rows_within(frames, placed.late) if self._keep_late else ()
        late_frames = [item.frame.take(rows) for item, rows in late]
        if placed.order is not None:
            batch, times = batches.taken(batch, placed.order), times[placed.order]
            keys = Keys(keys.codes[placed.order], keys.values) if keys is not None else None
        append = wal_pb2.Append(
            inputs=positions_of(frames),
            rows=batch.num_rows,
            closed_us=self._windowing.closed_us,
            late=len(placed.late),
            outside=len(placed.outside),
            late_frames=[frame.encode() for frame in late_frames],
            traceparent=next((item.frame.traceparent for item in frames if item.frame.traceparent), ""),
            ingest_time_us=min(item.frame.ingest_time_us for item in frames),
            has_keys="keys" in batch.schema.names,
            has_headers="headers" in batch.schema.names,
            value_fields=batches.value_fields_of(batch),
            late_admitted=int(np.count_nonzero(times < watermark_us)),
            milestone=milestone,
            hand_over=self._contents.last_hand_over,
        )
        location = self._log.append(wal_pb2.Entry(append=append), batches.encoded(batch) if batch.num_rows else b"")
        if batch.num_rows:
            self._windowing.add(times, keys, location)
        appended = AppendResult(append, late_frames)
        if location.segment not in self._contents.starts:
            self._contents.forget_segments(self._log.segments())
        self._contents.note_append(appended, location)
        return appended

    def close(self, watermark_us: int) -> list[wal_pb2.HandOver]:
        """Freeze the windows that the watermark has closed, in hand-overs of bounded size, numbered on."""
        return self._hand_over(self._frozen(partial(self._windowing.close, watermark_us)))

    def early(self, rows_min: int = 1) -> list[wal_pb2.HandOver]:
        """Freeze what open windows contain so far, for those with this many new rows since their last early results."""
        return self._hand_over(self._frozen(partial(self._windowing.early, rows_min=rows_min)), early_rows=rows_min)

    def rows_to_early(self, rows_min: int) -> int:
        """As `Windowing.rows_to_early`."""
        return self._windowing.rows_to_early(rows_min)

    def recall(self, milestones: Iterable[wal_pb2.Milestone]) -> None:
        """What is committed of milestones: what they say was decided about records is not decided again while the
        input is read again."""
        self._joined = SessionMembership(milestones)

    def retrace(self, milestone: wal_pb2.Milestone) -> None:
        """Repeat what was done at this milestone, up to which everything has been read again. Its results are
        committed, so nothing is handed over."""
        self._discard(self._frozen(partial(self._windowing.close, milestone.closed_us)))
        if milestone.early:
            self._discard(self._frozen(partial(self._windowing.early, rows_min=max(milestone.early_rows, 1))))
        if self._log.removable_bytes() >= self._limits.segment_bytes // 2:
            self._begin_segment()

    def retraced(self) -> None:
        """Everything that the mark knows has been repeated: record that in the header of a new segment."""
        self._contents.is_behind = False
        self._joined = SessionMembership(())
        self._begin_segment()

    async def sync(self) -> None:
        """Return when everything appended and handed over so far is durable. Both may go on meanwhile.

        Waits for room on a full disk, however long. Raises `FencedError` when the lane has another owner, and
        `InfrastructureError` when a write or an fsync failed: nothing more will be acknowledged then.
        """
        await self._once_there_is_room(self._log.sync)

    async def _once_there_is_room(self, write: Callable[[], Awaitable[None]], advice: str = "") -> None:
        """Write, as often as it takes on a full disk. `advice`: follows what the log says about that."""
        full = RepeatedFailure()

        def report(error: StorageFullError) -> None:
            full.warn(_log, "", f"{error}{advice}")

        await until_done(write, StorageFullError, report, Pauses(_RETRY_FIRST_S, _RETRY_LAST_S))
        full.over(_log, f"{self._log.identity}: ")

    async def room(self, timeout_s: float | None = None) -> bool:
        """Wait until something may be appended, at most so long; whether it may.

        Windows should be closed meanwhile: where only a watermark that moves makes room, nothing else will.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._room()
        except TimeoutError:
            return False
        return True

    async def _room(self) -> None:
        while self._log.unsynced_bytes >= self._limits.unsynced_bytes_max:
            await self.sync()
        pauses = Pauses(_RETRY_FIRST_S, _RETRY_LAST_S)
        while self._log.is_short:
            self._say_full()
            await self.sync()
            await self._log.reserve()
            if self._log.is_short:
                await pauses.wait()
        # Only what follows determines which of the windows were closed, while the input is read again.
        while self._log.total_bytes >= self._limits.log_bytes_max and not self.is_behind:
            if self._log.removable_bytes(pressed=True):
                self._begin_segment(pressed=True)
                await self.sync()
                continue
            self._say_full()
            self._freed.clear()
            await self._freed.wait()
        self._warned_full = False

    # Out

    def pending(self) -> list[wal_pb2.HandOver]:
        """Hand-overs that are not committed, in order. Those that existed at the opening are durable."""
        return [item.hand_over for item in self._contents.pending.values()]

    def unacknowledged(self) -> list[AppendResult]:
        """What the log contains beyond the lane's mark, in order."""
        return [item.appended for item in self._contents.unacknowledged]

    def records_known(self) -> int:
        """See `QueueContents`."""
        return self._contents.records_known()

    def positions(self) -> dict[str, int]:
        """How far each edge has been read into the log: the sequence of its last frame."""
        return dict(self._contents.sequences)

    def witnesses(self, edge: str) -> list[Witness]:
        """The last frame of each upstream lane that was read into the log."""
        return from_messages(self._contents.read.get(edge, ()))

    def releasable(self) -> Mapping[str, int]:
        """Sequences up to which no frame is needed by an open window, or by one that is not committed. For lanes that
        keep their input until then; exact to a segment."""
        needed = min(self._contents.summary().needed, default=None)
        positions = self._contents.sequences if needed is None else self._contents.starts.get(needed, {})
        done = {position.edge: position.sequence for position in self._contents.progress.inputs}
        return {edge: min(sequence, done.get(edge, 0)) for edge, sequence in positions.items()}

    async def committed(self, progress: mark_pb2.ReduceProgress) -> None:
        """The lane's mark now says `progress`: free what is no longer needed."""
        # The caller goes on changing its own, also while a file is removed.
        progress = deepcopy(progress)
        if not self._contents.committed(progress):
            return
        oldest = self._results.oldest
        if oldest is not None and oldest <= progress.hand_over:
            await self._log.in_thread(lambda: self._results.remove(progress.hand_over))
        if self._log.removable_bytes() >= self._limits.segment_bytes // 2:
            self._begin_segment()
            await self.sync()
        self._freed.set()

    async def leave(self) -> None:
        """Delete what is not needed before the queue is closed; a queue without contents leaves one short segment."""
        if self._log.removable_bytes() > _LEFT_BYTES_MAX:
            self._begin_segment()
            # A full disk, or a new owner, may prevent it: the next owner then does it.
            with suppress(RetryLaterError, FencedError):
                await self._log.sync()

    async def write_result(self, number: int, data: bytes) -> None:
        """Keep the results of a hand-over until it is committed: durable at the return. Waits for room."""
        write = partial(self._log.in_thread, lambda: self._results.write(number, data))
        await self._once_there_is_room(write, "; trying again until there is space")

    async def read_result(self, number: int) -> bytes | None:
        """What was kept of a hand-over; None without anything. Raises `DamageError` when it is damaged."""
        return await self._log.in_thread(lambda: self._results.read(number))

    # Told

    @property
    def is_behind(self) -> bool:
        """The log has lost what the lane's mark counts on, and the input is kept: call `recall`, read the input again
        from `positions` to each milestone, call `retrace` there, and `retraced` where the mark stands."""
        return self._contents.is_behind

    @property
    def closed_us(self) -> int:
        """Windows that ended up to this time, including lateness, are closed for whatever is appended next."""
        return self._windowing.closed_us

    @property
    def open_windows(self) -> int:
        """Number of windows that contain records and are not closed."""
        return self._windowing.open_windows()

    @property
    def directory(self) -> Path:
        """The directory of the segments that hand-overs name."""
        return self._log.directory

    def oldest_end_us(self) -> int | None:
        """End of the first open window; None if there is none. Hand-overs are not included."""
        return self._windowing.oldest_end_us()

    def origin_of(self, hand_over: wal_pb2.HandOver, now_us: int) -> HandOverOrigin:
        """Where the records in a hand-over come from; if nothing is known, from now."""
        return self._contents.origins.of(hand_over, now_us)

    def statistics(self) -> QueueStatistics:
        pending = self._contents.pending.values()
        return QueueStatistics(
            open_windows=self._windowing.open_windows(),
            oldest_end_us=self._windowing.oldest_end_us(),
            open_rows=self._windowing.open_rows(),
            pending_hand_overs=len(pending),
            pending_rows=sum(item.rows for item in pending),
            last_hand_over=self._contents.last_hand_over,
            log=self._log.statistics(),
            log_bytes_max=self._limits.log_bytes_max,
            full=self._full_text() if self._log.is_short or self._log.total_bytes >= self._limits.log_bytes_max else "",
        )

    def _frozen(self, freeze: Callable[[int], Sequence[WindowContents]]) -> Iterator[WindowTable]:
        """What `freeze` gives, which freezes so many windows at most, until it gives nothing."""
        while contents := freeze(self._limits.hand_over_windows_max):
            yield from self._groups(WindowTable.of(contents))

    def _hand_over(self, groups: Iterator[WindowTable], *, early_rows: int = 0) -> list[wal_pb2.HandOver]:
        """Log a hand-over for each of the groups, which are of one moment. `early_rows`: as given to `early`."""
        hand_overs: list[wal_pb2.HandOver] = []
        group = next(groups, None)
        while group is not None:
            following = next(groups, None)
            hand_over = self._message(group)
            hand_over.more = following is not None
            if early_rows and not hand_overs and self._milestones is not None:
                hand_over.milestone.CopyFrom(
                    self._milestones.early(self._contents.sequences, self._windowing.closed_us, early_rows)
                )
            self._contents.new_hand_over(hand_over, self._log.segment)
            self._log.append(wal_pb2.Entry(hand_over=hand_over), same_segment=True)
            hand_overs.append(hand_over)
            group = following
        return hand_overs

    def _discard(self, groups: Iterator[WindowTable]) -> None:
        for group in groups:
            self._log.append(wal_pb2.Entry(hand_over=self._message(group)), same_segment=True)

    def _message(self, group: WindowTable) -> wal_pb2.HandOver:
        return wal_pb2.HandOver(closed_us=self._windowing.closed_us, table=group.message())

    def _groups(self, windows: WindowTable) -> Iterator[WindowTable]:
        """As many windows at a time as the limits allow, at least one."""
        limits = self._limits
        row_bytes = np.array([self._contents.row_bytes(segment) for segment in windows.entries[:, 0].tolist()])
        of_pieces = windows.piece_rows * row_bytes[windows.piece_entries] if len(row_bytes) else np.zeros(0)
        bounds = windows.bounds
        sizes = np.concatenate((np.zeros(1), np.cumsum(of_pieces)))[bounds]
        first = 0
        while first < len(windows):
            size, pieces = sizes[first] + limits.hand_over_bytes_max, bounds[first] + limits.hand_over_pieces_max
            by_size = int(np.searchsorted(sizes, size, side="right")) - 1
            by_pieces = int(np.searchsorted(bounds, pieces, side="right")) - 1
            last = max(first + 1, min(by_size, by_pieces, first + limits.hand_over_windows_max, len(windows)))
            yield windows if last - first == len(windows) else windows[first:last]
            first = last

    def _begin_segment(self, *, pressed: bool = False) -> None:
        self._log.begin_segment(pressed=pressed)
        self._contents.forget_segments(self._log.segments())

    def _say_full(self) -> None:
        if not self._warned_full:
            self._warned_full = True
            _log.warning("%s: %s", self._log.identity, self._full_text())

    def _full_text(self) -> str:
        """The reason why the queue accepts nothing."""
        if self._log.is_short:
            return f"the disk of {self._log.directory} is full: nothing is admitted until there is space"
        used, room = self._log.total_bytes, self._limits.log_bytes_max
        text = f"the log in {self._log.directory} is full ({used:,} of {room:,} bytes)"
        if pending := self._contents.pending:
            windows = sum(item.windows for item in pending.values())
            return f"{text}: {windows} windows that were handed over are not committed yet"
        oldest = self._windowing.oldest_end_us()
        if oldest is None:
            return f"{text}: it contains records that the lane has not committed yet"
        return (
            f"{text}, and nothing can be handed over: {self._windowing.open_windows()} open windows hold "
            f"{self._windowing.open_rows():,} records. The first ends at {time_text(oldest)}, and the watermark has "
            f"closed windows up to {time_text(self.closed_us)}. Give the log more space (groupBy.storage), or shorten "
            "the windows; another input that is idle or lags may hold the watermark back"
        )


@asynccontextmanager
async def open_queue(
    directory: Path,
    identity: LogIdentity,
    windowing: Windowing,
    progress: mark_pb2.ReduceProgress,
    *,
    limits: QueueLimits | None = None,
    keep_late: bool = False,
    input_is_kept: bool = False,
    files: Files | None = None,
) -> AsyncIterator[Queue]:
    """Open the queue whose log is in `directory`, or make it. The log is read back in a thread.

    `progress` is that of the lane's mark, taken over under `identity.epoch`; `windowing` is new, without open windows.
    With `keep_late`, late records are kept as frames; otherwise counted. With `input_is_kept`, a log that is gone or
    behind the mark is not damage: see `Queue.is_behind`.

    Raises `DamageError`, `FencedError` and `UserError` as `open_log` does, and `DamageError` when the log has lost what
    the mark counts on.
    """
    limits = limits or QueueLimits()
    files = files or Files()
    mark = deepcopy(progress)
    contents = QueueContents(windowing, mark, str(identity), input_is_kept, StoredKeys(directory))
    # What may wait in memory, a take of the lane beyond it, and hand-overs must fit the reserve.
    sizes = LogSizes(limits.segment_bytes, limits.unsynced_bytes_max + _RESERVE_MORE_BYTES)
    async with open_log(directory, identity, contents, files=files, sizes=sizes) as log:
        results = ResultFiles(directory, files, identity)
        await log.in_thread(results.load)
        await log.in_thread(lambda: results.remove(mark.hand_over))
        if mark.result_records and await log.in_thread(lambda: results.read(mark.hand_over + 1)) is None:
            raise DamageError(
                codes.RESULTS_LOST,
                f"{identity}: {mark.result_records} results of hand-over {mark.hand_over + 1} are committed, and the "
                f"others, which {directory} should hold, are gone. {REPAIR}",
            )
        queue = Queue(log, contents, results, limits, keep_late=keep_late)
        yield queue
        await queue.leave()
