"""The file sink: finished files in a directory, with each record exactly once in one of them.

    write ─► convert ─► growing file ─► full, old or requested? ─► sealed ─► written, fsynced, renamed ─► durable
                        (memory and a hidden file)

Records that a lane has accepted and not finished are in memory and in a hidden file. Both are lost after a crash, and
the lane offers the records again from its mark. The names of finished files contain their positions, so records in them
that are offered again are not written twice.

Above it: the delivery. Below it: `directory` and `bucket` (who may write, how files become visible) and `formats`.
Everything that touches the disk runs in one worker thread per lane. Where files are finished by requests (a bucket, a
table), another thread does that, one file at a time, while the worker fills the next file.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from millstream import codes
from millstream.errors import DamageError, RetryLaterError
from millstream.limits import MIB
from millstream.record import Position
from millstream_connectors.file.settings import FileSink, Rolling
from millstream_connectors.file.sink.directory import HIDDEN, LaneDirectory
from millstream_connectors.file.sink.formats import Body, Csv, FileFormat, JsonLines, Lines, StorableRows
from millstream_connectors.file.sink.names import PartitionOf
from millstream_connectors.shared.kept import TargetPosition, check_kept
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import (
    Guarantee,
    SinkFrame,
    SinkLane,
    WriteResult,
    exact_end,
    exact_position,
    frame_at,
)

WRITE_BYTES = 1 * MIB
"""A growing file is written to disk in pieces of at least this size; only sealed files are written to the end."""

_T = TypeVar("_T")


class FileTarget(Protocol):
    """Where one lane puts its files, under one epoch: a directory, a prefix in an object store, or a table. Blocking.
    Files are finished by one thread; another one may call `begin` and `append` for the next file meanwhile, where the
    lane has a finisher."""

    def begin(self, extension: str) -> Any:
        """A new unfinished file. Raises `RetryLaterError` if there is no space."""

    def append(self, file: Any, data: bytes, partition: str) -> int:
        """Write some or all of `data` into that partition of the file; returns the number of bytes. Raises
        `RetryLaterError` if nothing could be written."""

    def finish(self, file: Any, after: Position, end: Position, extension: str, frame: str) -> None:
        """Make the file visible, complete and durable. After `RetryLaterError` it may be called again.

        `frame` is the name of the frame with its last record.
        """

    def discard(self, file: Any) -> None:
        """Remove an unfinished file, as far as that is possible."""

    def close(self) -> None:
        """The lane is not used any more."""


class KeepingTarget(FileTarget, Protocol):
    """A target that keeps the lane's position itself. Opened by `look`, then `take_over`."""

    @property
    def target(self) -> str:
        """Its name for messages."""

    @property
    def name(self) -> str:
        """The name of this owner in the target."""

    @property
    def remedy(self) -> str:
        """How a user lets the lane continue after its mark, whatever position the target has."""

    def look(self) -> TargetPosition | None:
        """The lane's position; None if there is none. Raises Millstream errors."""

    def take_over(self) -> Position:
        """Fence every earlier owner; returns the lane's certain position. Raises Millstream errors."""

    def begun(self) -> Position | None:
        """The end of the first file, if a former owner has fixed it."""


@dataclass(slots=True)
class _File:
    """One file, from its first record until it is visible; with partitions, one per partition."""

    after: Position
    begun_s: float
    bodies: dict[str, Body[Any]] = field(default_factory=dict)
    """Bodies by partition."""
    records: int = 0
    size: int = 0
    unwritten: deque[tuple[str, bytes]] = field(default_factory=deque)
    """Pieces to write, each with its partition."""
    unwritten_bytes: int = 0
    unfinished: Any = None
    """The target's file. None until the target has a part of it."""

    def keep(self, partition: str, data: bytes) -> None:
        if data:
            self.unwritten.append((partition, data))
            self.unwritten_bytes += len(data)


class _Sealed(NamedTuple):
    """A file that gets no more records."""

    file: _File
    end: Position
    frame: str
    """Name of the frame with its last record."""
    covers: Position
    """Position of the lane when the file is finished: `end`, or behind it if no record lies between."""


class FileSinkLane:
    """The lane's files. The methods with an underscore and no `async` run in the worker thread, one at a time."""

    collects = True

    def __init__(
        self,
        target: FileTarget,
        file_format: FileFormat[Any],
        rolling: Rolling,
        owner: SinkOwner,
        finished: Position | None,
        *,
        worker: ThreadPoolExecutor,
        finisher: ThreadPoolExecutor | None = None,
        begun: Position | None = None,
        partition_of: PartitionOf | None = None,
    ) -> None:
        """`finished`: the lane's position from its finished files; None to write everything that is offered.
        `finisher`: a thread that finishes files while the next one grows; without it, the worker does. `begun`: the end
        of the first file, if a former owner has fixed it. For an owner of whole deliveries, files end only at a
        flush."""
        self._whole = owner.whole
        self._target = target
        self._format = file_format
        self._rolling = rolling
        self.delivery_records_max = rolling.max_records or sys.maxsize
        self._finished = finished
        self._clock = owner.clock
        self._worker = worker
        self._finisher = finisher
        self._finishing: Future[None] | None = None
        """The first of the sealed files, while the finisher has it."""
        self._failed = False
        """Whether the last attempt to finish a file failed. Then no record is accepted before the next one."""
        self._partition_of = partition_of
        self._begun = begun
        self._durable = owner.start if finished is None else max(owner.start, finished)
        """Everything before it is in finished files."""
        self._taken = self._durable
        self._taken_frame = ""
        self._chain = self._durable
        self._sealed: deque[_Sealed] = deque()
        self._growing: _File | None = None

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE if self._finished is None else Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    @property
    def in_progress(self) -> Position | None:
        return self._durable if self._finishing is None else max(self._durable, self._sealed[-1].covers)

    @property
    def is_ripe(self) -> bool:
        file = self._growing
        full = file is not None and (file.records >= self.delivery_records_max or file.size >= self._rolling.max_bytes)
        return full or self._is_old()

    async def reach(self) -> Position:
        return self._durable

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        return await self._run(self._write, frames, end)

    async def flush(self) -> None:
        await self._run(self._flush)

    async def tick(self) -> None:
        # Most ticks have nothing to do, and need no thread.
        if not self._whole and (self._sealed or self._is_old()):
            await self._run(self._tick)

    async def _run(self, call: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *arguments)

    def _write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        # 1. Data that could not be stored last time is stored first: memory stays bounded by one write, and no record
        #    of this write is accepted while the disk is full.
        self._store()
        # 2. Take all records into memory. Nothing can fail here for lack of disk space.
        failures = []
        for item in frames:
            converted = self._format.convert(item.frame)
            failures.append(converted.failures)
            self._take(item, converted)
        taken = exact_end(frames, end)
        if self._begun is not None and taken >= self._begun:
            # Its last records went elsewhere, or were dropped.
            self._end_begun()
        if taken > self._taken:
            # The lane may be past the last frame with records for this sink, whose name would then be wrong.
            is_last = bool(frames) and frames[-1].sequence == frame_at(taken)
            self._taken, self._taken_frame = taken, frames[-1].name if is_last else ""
        if self._growing is None and self._sealed:
            self._sealed[-1] = self._sealed[-1]._replace(covers=max(self._sealed[-1].covers, self._taken))
        # 3. Store as much as possible. A full disk is not a failure of this write: the next call reports it.
        with suppress(RetryLaterError):
            if self._whole:
                self._write_out_large()
            else:
                self._tick()
        return WriteResult(failures if any(failures) else ())

    def _take(self, item: SinkFrame, converted: StorableRows[Any]) -> None:
        """Add the records that are not in a finished file, and seal files as they fill."""
        indexes = item.indexes()
        start, rows = 0, converted.rows
        if self._finished is not None:
            finished = self._finished
            start = bisect_left(rows, True, key=lambda row: exact_position(item, indexes[row] + 1) > finished)
        record_size = max(1.0, converted.size / max(1, len(rows)))
        while start < len(rows):
            file = self._growing
            if file is None:
                file = _File(self._chain, self._clock.monotonic_s())
                self._growing = file
            room = min(
                self.delivery_records_max - file.records, int((self._rolling.max_bytes - file.size) / record_size)
            )
            stop = len(rows) if self._whole else min(len(rows), start + max(1, room))
            if self._begun is not None:
                # Whatever its size: the file has the same records as before.
                end = self._begun
                stop = bisect_left(rows, True, key=lambda row: exact_position(item, indexes[row] + 1) > end)
                if stop <= start:
                    self._end_begun()
                    continue
            self._add(file, item, converted, start, stop)
            file.records += stop - start
            file.size += int(record_size * (stop - start))
            start = stop
            if self._begun is not None:
                continue
            full = file.records >= self.delivery_records_max or file.size >= self._rolling.max_bytes
            if start < len(rows) or (full and not self._whole):
                self._seal(exact_position(item, indexes[rows[stop - 1]] + 1), item.name)

    def _add(self, file: _File, item: SinkFrame, converted: StorableRows[Any], start: int, stop: int) -> None:
        """Rows of a frame, each in its partition."""
        if self._partition_of is None:
            self._add_run(file, "", converted, start, stop)
            return
        times = item.frame.event_times_us()
        names = [self._partition_of(times[converted.rows[place]]) for place in range(start, stop)]
        first = start
        for place in range(start + 1, stop + 1):
            if place == stop or names[place - start] != names[first - start]:
                self._add_run(file, names[first - start], converted, first, place)
                first = place

    def _add_run(self, file: _File, partition: str, converted: StorableRows[Any], start: int, stop: int) -> None:
        body = file.bodies.get(partition)
        if body is None:
            body = file.bodies[partition] = self._format.begin()
        file.keep(partition, body.add(converted.content, start, stop))

    def _end_begun(self) -> None:
        """Seal the file whose end a former owner has fixed."""
        end, self._begun = self._begun, None
        assert end is not None, "a former owner has fixed an end"
        if self._growing is None:
            # Without records, as before.
            self._growing = _File(self._chain, self._clock.monotonic_s())
        self._seal(end, "")

    def _seal(self, end: Position, frame: str) -> None:
        """Seal the growing file; it contains everything up to `end`, which is in `frame`."""
        file = self._growing
        if file is None:
            return
        for partition, body in file.bodies.items():
            file.keep(partition, body.finish())
        # If names do not count (in a fallback), records from before the end of the last file may be offered again.
        self._chain = max(end, file.after)
        self._sealed.append(_Sealed(file, self._chain, frame, self._chain))
        self._growing = None

    def _tick(self) -> None:
        if self._is_old():
            self._seal(self._taken, self._taken_frame)
        self._store()

    def _flush(self) -> None:
        if self._begun is None:
            self._seal(self._taken, self._taken_frame)
        self._store(wait=True)

    def _is_old(self) -> bool:
        file = self._growing
        return (
            file is not None
            and self._begun is None
            and self._clock.monotonic_s() - file.begun_s >= self._rolling.max_age_s
        )

    def _store(self, *, wait: bool = False) -> None:
        """Finish sealed files and write large growing ones to disk. After a failure, the next call continues. With a
        finisher, the last file may still be in its hands, unless `wait` is set."""
        while self._sealed:
            sealed = self._sealed[0]
            if not self._is_finished(sealed, wait=wait or len(self._sealed) > 1):
                return
            self._sealed.popleft()
            self._durable = max(self._durable, sealed.covers)
        if self._growing is None:
            if self._begun is None:
                self._durable = self._taken
        else:
            self._write_out_large()

    def _is_finished(self, sealed: _Sealed, *, wait: bool) -> bool:
        """Finish a file; False if the finisher still has it, and `wait` is not set."""
        if self._finisher is None:
            self._finish(sealed)
            return True
        if self._finishing is None:
            self._finishing = self._finisher.submit(self._finish, sealed)
        if not wait and not self._failed and not self._finishing.done():
            return False
        finishing, self._finishing = self._finishing, None
        self._failed = True
        finishing.result()
        self._failed = False
        return True

    def _finish(self, sealed: _Sealed) -> None:
        file = sealed.file
        self._target.finish(self._write_out(file), file.after, sealed.end, self._format.extension, sealed.frame)

    def _write_out_large(self) -> None:
        if self._growing is not None and self._growing.unwritten_bytes >= WRITE_BYTES:
            self._write_out(self._growing)

    def _write_out(self, file: _File) -> Any:
        if file.unfinished is None:
            file.unfinished = self._target.begin(self._format.extension)
        while file.unwritten:
            partition, data = file.unwritten[0]
            written = self._target.append(file.unfinished, data, partition)
            file.unwritten_bytes -= written
            if written < len(data):
                file.unwritten[0] = partition, data[written:]
            else:
                file.unwritten.popleft()
        return file.unfinished

    def discard(self) -> None:
        """Remove unfinished files. The lane is not used afterwards."""
        for file in (*(sealed.file for sealed in self._sealed), self._growing):
            if file is not None and file.unfinished is not None:
                self._target.discard(file.unfinished)


def format_of(spec: FileSink) -> FileFormat[Any]:
    if spec.format == "jsonl":
        return JsonLines()
    if spec.format == "lines":
        return Lines()
    if spec.format == "csv":
        return Csv(spec.columns)
    if spec.format == "avro":
        from millstream_connectors.file.sink.avro import Avro

        return Avro(spec.columns)
    from millstream_connectors.file.sink.parquet import Parquet

    return Parquet(spec.columns)


async def _check_past(directory: LaneDirectory, owner: SinkOwner, finished: Position) -> None:
    """Records in the files after the mark are skipped when they are offered again, so they must be the ones that were
    stored."""
    noted = directory.noted
    # Files from before notes had frame names are accepted without a check.
    if noted is None or not noted.frame or not owner.start < finished == noted.file.end:
        return
    sequence = frame_at(finished)
    held = await owner.held_instead(sequence, noted.frame)
    if held is None:
        return
    raise DamageError(
        codes.SINK_AHEAD,
        f"{owner.where}: {noted.file} ends with frame {noted.frame} at sequence {sequence}, but the buffer now holds "
        f"{held} there, and the lane's mark is at {owner.start.sequence}: the pipeline's data is older than this "
        "file, or was rewritten since. No record was skipped or written. Restore the data directory that belongs to "
        f"the file; or move all files away together with {HIDDEN}, then `{directory.by_hand}`, and the records after "
        "the mark are written as they are now",
    )


@asynccontextmanager
async def open_file_sink(spec: FileSink, file_format: FileFormat[Any], owner: SinkOwner) -> AsyncIterator[SinkLane]:
    """Open the directory for one lane and fence every earlier owner.

    In a fallback, the positions in the names of finished files do not count: it gets only some of a lane's records, and
    perhaps different ones when they are offered again. There, a duplicate record is better than a lost one.

    Raises `DamageError` if the files are ahead of the lane's mark by frames that its buffer does not hold, or if the
    directory should know the lane and does not.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="file-sink")
    loop = asyncio.get_running_loop()
    directory = LaneDirectory(owner.base_dir / spec.path, owner)
    lane: FileSinkLane | None = None
    try:
        await loop.run_in_executor(worker, directory.open)
        await owner.note_target()
        finished = None
        if not owner.fallback:
            finished = await loop.run_in_executor(worker, directory.finished) or owner.start
            await _check_past(directory, owner, finished)
        lane = FileSinkLane(
            directory,
            file_format,
            spec.rolling,
            owner,
            finished,
            worker=worker,
        )
        yield lane
    finally:
        # In the worker, after what it is still doing: a cancelled call continues there.
        try:
            if lane is not None:
                await asyncio.shield(loop.run_in_executor(worker, lane.discard))
        finally:
            worker.submit(directory.close)
            worker.shutdown(wait=False)


@asynccontextmanager
async def open_keeping_sink(
    target: KeepingTarget,
    file_format: FileFormat[Any],
    rolling: Rolling,
    owner: SinkOwner,
    partition_of: PartitionOf | None = None,
) -> AsyncIterator[SinkLane]:
    """Open a target that keeps the lane's position, and fence every earlier owner. Raises as `SinkConnector.open`
    does."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="keeping-sink")
    finisher = ThreadPoolExecutor(1, thread_name_prefix="keeping-sink-finish")
    loop = asyncio.get_running_loop()
    try:
        kept = await loop.run_in_executor(finisher, target.look)
        if kept is not None:
            await check_kept(owner, kept, target.target, target.remedy, ours=kept.owner == target.name)
        reached = await loop.run_in_executor(finisher, target.take_over)
        await owner.note_target()
        yield FileSinkLane(
            target,
            file_format,
            rolling,
            owner,
            None if owner.fallback else reached,
            worker=worker,
            finisher=finisher,
            begun=target.begun(),
            partition_of=partition_of,
        )
    finally:
        # After what it is still doing: a cancelled call continues there.
        finisher.submit(target.close)
        worker.shutdown(wait=False)
        finisher.shutdown(wait=False)
