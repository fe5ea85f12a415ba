"""The contents of a queue's log: open windows, hand-overs, and what the mark does not say yet. No I/O.

Above it: the queue, which appends, and the log, which reads back. Below it: the windowing. Both ways lead to the same
state: reading back builds what appending had built, as far as the log goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from millstream import codes
from millstream.errors import REPAIR, DamageError
from millstream.frame import Frame
from millstream.ledger.witness import from_messages, merged
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce import batches
from millstream_reduce.earlier_keys import KeyOfRow, is_ambiguous, renamed
from millstream_reduce.log.entries import FORMAT, KEYS_FORMAT
from millstream_reduce.log.log import LogSummary
from millstream_reduce.log.recovery import LogEnd
from millstream_reduce.origins import Origins
from millstream_reduce.values import Location, WindowTable
from millstream_reduce.windowing import Windowing
from millstream_reduce.windows import encoding


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome for the records of one `append`."""

    message: wal_pb2.Append
    """What the log says about them: `rows` are in a window now."""
    late_frames: Sequence[Frame]
    """The late records, if the queue keeps them."""

    @property
    def records(self) -> int:
        return sum(position.records for position in self.message.inputs)

    @property
    def bytes(self) -> int:
        """Their stored size in the ledgers."""
        return sum(position.bytes for position in self.message.inputs)


@dataclass(frozen=True, slots=True)
class _Unacknowledged:
    appended: AppendResult
    segment: int
    """Where that is said: in an entry, or in a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Pending:
    hand_over: wal_pb2.HandOver
    segments: frozenset[int]
    windows: int
    rows: int
    released: int


@dataclass(slots=True)
class _Size:
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class QueueContents:
    """The state of a queue. Implements the log's `Contents`."""

    windowing: Windowing
    progress: mark_pb2.ReduceProgress
    """Progress of the lane's mark at the opening."""
    where: str
    input_is_kept: bool
    """Whether what the log has lost can be read again."""
    key_of_row: KeyOfRow
    """The keys of the rows in the log."""
    is_behind: bool = False
    """Whether the log has lost what the lane's mark says is in it."""
    sequences: dict[str, int] = field(default_factory=dict)
    """How far each edge has been read."""
    read: dict[str, list[mark_pb2.Witness]] = field(default_factory=dict)
    """By edge: the last frame that was read of each upstream lane."""
    last_hand_over: int = 0
    _logged_hand_over: int = 0
    """The last hand-over that the log itself had when it was read back."""
    pending: dict[int, _Pending] = field(default_factory=dict)
    """Hand-overs that are not committed, by number, rising."""
    unacknowledged: deque[_Unacknowledged] = field(default_factory=deque)
    """What the mark does not say yet, in the order of the log."""
    origins: Origins = field(default_factory=Origins)
    """Where the records in the log come from."""
    sizes: dict[int, _Size] = field(default_factory=dict)
    """Rows in each segment and their size, for segments with entries of this queue's lifetime."""
    starts: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """How far each edge had been read when a segment began."""
    _format: int = FORMAT
    """Of the segment that is read."""
    _pristine: bytes | None = None
    _begun: bool = False

    # Reading back

    def reset(self) -> None:
        if self._pristine is None:
            self._pristine = self.windowing.checkpoint()
        else:
            self.windowing.restore(self._pristine)
        for noted in (
            self.sequences,
            self.read,
            self.pending,
            self.unacknowledged,
            self.sizes,
            self.starts,
            self.origins,
        ):
            noted.clear()
        self.last_hand_over = 0
        self._begun = False

    def begin(self, header: wal_pb2.Segment) -> None:
        self._format = header.format
        self.starts[header.number] = {position.edge: position.sequence for position in header.inputs}
        self.last_hand_over = max(header.last_hand_over, self.last_hand_over)
        if self._begun:
            return
        self._begun = True
        if header.HasField("checkpoint"):
            self.windowing.restore(header.checkpoint.open)
            for hand_over in header.checkpoint.hand_overs:
                self._note_hand_over(hand_over, header.number)
            for append in header.checkpoint.unacknowledged:
                self._note_unacknowledged(appended_of(append), header.number)
        self._move_closed(header.closed_us)
        self.sequences.update(self.starts[header.number])
        self.read.update({position.edge: list(position.read) for position in header.inputs})

    def replay(self, entry: wal_pb2.Entry, location: Location, body: memoryview) -> None:
        if entry.WhichOneof("kind") == "hand_over":
            hand_over = entry.hand_over
            self.windowing.closed(WindowTable.of_hand_over(hand_over), hand_over.closed_us)
            self._note_hand_over(hand_over, location.segment)
            return
        append = entry.append
        # Rows are placed under the watermark under which they were admitted.
        self._move_closed(append.closed_us)
        if append.rows:
            batch = batches.decoded(body, append)
            keys = batches.key_codes(batch, plainly=self._format < KEYS_FORMAT) if self.windowing.needs_keys else None
            self.windowing.add(batches.event_times(batch), keys, location)
        self.note_append(appended_of(append), location)

    def recovered(self, end: LogEnd) -> None:
        """Raises `DamageError` if the log has lost what the lane's mark says is in it."""
        done = {position.edge: position.sequence for position in self.progress.inputs}
        missing = [
            f"edge {edge} up to stream sequence {sequence} (the log has it up to {self.sequences.get(edge, 0)})"
            for edge, sequence in done.items()
            if sequence > self.sequences.get(edge, 0)
        ]
        if self.progress.hand_over > self.last_hand_over:
            missing.append(
                f"windows handed over up to number {self.progress.hand_over} (the log knows {self.last_hand_over})"
            )
        beyond = range(self.progress.hand_over + 1, self.last_hand_over + 1)
        gone = [number for number in beyond if number not in self.pending]
        if gone and not missing:
            raise DamageError(
                codes.LEDGER_CUT,
                f"{self.where}: the results of hand-overs {gone[0]} to {gone[-1]} were committed, and the lane's mark "
                f"in the ledger says that those up to number {self.progress.hand_over} were: the ledger was set back. "
                f"{REPAIR}",
            )
        if missing and (not self.input_is_kept or self.progress.closing):
            # In the middle of windows of one moment, the input does not say which of them are committed.
            state = f"ends with segment {end.newest}" if end.newest else "is empty"
            raise DamageError(
                codes.LOG_BEHIND_LEDGER,
                f"{self.where}: the log {state} and has lost what the lane's mark in the ledger counts on: "
                f"{'; '.join(missing)}. {REPAIR}",
            )
        self._logged_hand_over = self.last_hand_over
        self.last_hand_over = max(self.last_hand_over, self.progress.hand_over)
        self.is_behind = bool(missing)
        if not missing:
            # While it is being rebuilt, it may contain the rest of windows that are committed.
            self.windowing.replayed()
            self._move_closed(self.progress.closed_us)
        if end.format < KEYS_FORMAT:
            self._rename_keys()

    def _rename_keys(self) -> None:
        """From now on, different keys have different names."""

        def name_of(key: bytes, location: Location, row: int) -> bytes:
            return self.key_of_row(location, row) if is_ambiguous(key) else key

        if self.windowing.needs_keys:
            self.windowing.restore(encoding.renamed(self.windowing.checkpoint(), name_of))
        for number, pending in self.pending.items():
            self.pending[number] = replace(pending, hand_over=renamed(pending.hand_over, self.key_of_row))

    # As of the last entry

    def records_known(self) -> int:
        """Records of windows that are not committed, of those that the mark counts. Where the input is kept, the mark
        says the same."""
        known = self.windowing.open_rows() - sum(item.appended.message.rows for item in self.unacknowledged)
        return known + sum(item.released for item in self.pending.values())

    def summary(self) -> LogSummary:
        needed = set(self.windowing.live_segments())
        for pending in self.pending.values():
            needed |= pending.segments
        needed.update(item.segment for item in self.unacknowledged)
        return LogSummary(
            needed=frozenset(needed),
            inputs=[
                wal_pb2.InputPosition(edge=edge, sequence=sequence, read=self.read.get(edge, ()))
                for edge, sequence in sorted(self.sequences.items())
            ],
            closed_us=self.windowing.closed_us,
            # A log that is being rebuilt may have read everything again, and not yet dropped all the results.
            last_hand_over=self._logged_hand_over if self.is_behind else self.last_hand_over,
        )

    def checkpoint(self) -> wal_pb2.Checkpoint:
        return wal_pb2.Checkpoint(
            open=self.windowing.checkpoint(),
            hand_overs=[item.hand_over for item in self.pending.values()],
            unacknowledged=[item.appended.message for item in self.unacknowledged],
        )

    def note_append(self, appended: AppendResult, location: Location) -> None:
        """Records are in the log, at this place."""
        append = appended.message
        if location.segment not in self.starts:
            self.starts[location.segment] = dict(self.sequences)
        for position in append.inputs:
            self.sequences[position.edge] = max(position.sequence, self.sequences.get(position.edge, 0))
            self.read[position.edge] = merged(self.read.get(position.edge, ()), from_messages(position.read))
        self._note_unacknowledged(appended, location.segment)
        if append.rows:
            self.origins.note(location, append.ingest_time_us, append.traceparent)
        size = self.sizes.setdefault(location.segment, _Size())
        size.rows += append.rows
        size.bytes += location.length

    def new_hand_over(self, hand_over: wal_pb2.HandOver, segment: int) -> None:
        """Number it; it will be in this segment."""
        hand_over.number = self.last_hand_over + 1
        self._note_hand_over(hand_over, segment)

    def committed(self, progress: mark_pb2.ReduceProgress) -> bool:
        """The mark has advanced this far. Returns whether that completes a hand-over."""
        self.progress = progress
        while self.unacknowledged and not _is_beyond(self.unacknowledged[0].appended, progress):
            self.unacknowledged.popleft()
        done = [number for number in self.pending if number <= progress.hand_over]
        for number in done:
            del self.pending[number]
        return bool(done)

    def forget_segments(self, existing: Iterable[int]) -> None:
        """Keep the notes of these segments only."""
        kept = set(existing)
        self.origins.keep(kept)
        for notes in (self.sizes, self.starts):
            for number in [number for number in notes if number not in kept]:
                del notes[number]

    def set_back(self, open_windows: bytes, closed_us: int) -> None:
        """Go on as if windows had been closed up to there only; `open_windows` is a checkpoint that says so.

        What was decided stays: which records were late, and which windows were handed over.
        """
        self.windowing.restore(open_windows)
        for item in self.unacknowledged:
            message = item.appended.message
            message.closed_us = min(message.closed_us, closed_us)
        for pending in self.pending.values():
            pending.hand_over.closed_us = min(pending.hand_over.closed_us, closed_us)

    def row_bytes(self, segment: int) -> float:
        """The average size of a row of a segment; of all segments if that is unknown."""
        size = self.sizes.get(segment)
        if size is None or not size.rows:
            rows = sum(item.rows for item in self.sizes.values())
            return sum(item.bytes for item in self.sizes.values()) / rows if rows else 0.0
        return size.bytes / size.rows

    def _note_unacknowledged(self, appended: AppendResult, segment: int) -> None:
        if _is_beyond(appended, self.progress):
            self.unacknowledged.append(_Unacknowledged(appended, segment))

    def _note_hand_over(self, hand_over: wal_pb2.HandOver, segment: int) -> None:
        self.last_hand_over = max(self.last_hand_over, hand_over.number)
        if hand_over.number > self.progress.hand_over:
            windows = WindowTable.of_hand_over(hand_over)
            segments = frozenset({segment, *windows.entries[:, 0].tolist()})
            self.pending[hand_over.number] = _Pending(
                hand_over, segments, len(windows), int(windows.rows.sum()), int(windows.released.sum())
            )

    def _move_closed(self, closed_us: int) -> None:
        if closed_us > self.windowing.closed_us:
            self.windowing.closed((), closed_us)


def appended_of(append: wal_pb2.Append) -> AppendResult:
    """The `append` that an entry of the log describes."""
    return AppendResult(append, [Frame.decode(data) for data in append.late_frames])


def _is_beyond(appended: AppendResult, progress: mark_pb2.ReduceProgress) -> bool:
    """Whether the mark does not say that these records are durable."""
    done = {position.edge: position.sequence for position in progress.inputs}
    return any(position.sequence > done.get(position.edge, 0) for position in appended.message.inputs)
