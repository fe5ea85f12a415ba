"""A stored log, for people: its contents, and all faults at once. Read only, even while it is in use.

Above it: `millstream wal`. Below it: segments, read as far as they can be. It does not know which hand-overs are
committed, because the lane's mark says that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millstream import codes
from millstream.errors import DamageError
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log import damage
from millstream_reduce.log.entries import EntryError, StoredEntry, read_entry, segment_number, whole_entries
from millstream_reduce.log.recovery import proof_of_damage
from millstream_reduce.log.segments import (
    OWNERS,
    mapped,
    owner_epochs,
    read_header,
    segment_numbers,
    segment_path,
)
from millstream_reduce.values import WindowTable

_ATTEMPTS_MAX = 5
"""A log in use may delete a segment while it is inspected."""


@dataclass(slots=True)
class SegmentInspection:
    """One segment."""

    number: int
    file: str
    bytes: int
    state: str
    """newest, sealed, rows only (a checkpoint replaces its entries), or left over (no longer part of the log)."""
    epoch: int = 0
    entries: int = 0
    """Entries after the header."""
    rows: int = 0
    late: int = 0
    hand_overs: int = 0


@dataclass(frozen=True, slots=True)
class HandOverInspection:
    """One hand-over of the log."""

    number: int
    segment: int
    closed_us: int
    windows: WindowTable

    @property
    def rows(self) -> int:
        return int(self.windows.rows.sum())


@dataclass(slots=True)
class LogInspection:
    """One log."""

    directory: Path
    lane: str = ""
    log_id: str = ""
    epoch: int = 0
    owner: str = ""
    """Process id and host of the newest owner, which may be gone."""
    segments: list[SegmentInspection] = field(default_factory=list)
    inputs: dict[str, int] = field(default_factory=dict)
    """How far each edge has been read: the stream sequence of its last frame."""
    closed_us: int | None = None
    hand_overs: dict[int, HandOverInspection] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)
    """Hand-overs whose results are kept until all of them are committed."""
    torn_bytes: int = 0
    """Bytes after the last complete entry: being written now, or torn by a crash and never reported durable."""
    faults: list[str] = field(default_factory=list)


def find_logs(directory: Path) -> list[Path]:
    """The directory, if it contains a log, and those below it that do."""
    return sorted({path.parent for path in directory.rglob("*.wal") if segment_number(path.name) is not None})


def inspect_log(directory: Path, *, verify: bool) -> LogInspection:
    """Inspect a log. With `verify` the checksum of every entry is computed."""
    for _ in range(_ATTEMPTS_MAX):
        before = segment_numbers(directory)
        try:
            return _inspect(directory, before, verify)
        except FileNotFoundError:
            if segment_numbers(directory) == before:
                raise
    raise DamageError(codes.LOG_UNSTEADY, f"{directory}: its segments changed during every attempt; try again")


def _inspect(directory: Path, numbers: list[int], verify: bool) -> LogInspection:
    found = LogInspection(directory)
    of_results = (path.name.partition(".")[0] for path in directory.glob("*.result"))
    found.results = sorted({int(number) for number in of_results if number.isdecimal()})
    newest = _inspect_newest(found, numbers)
    if newest is None:
        return found
    lengths = {sealed.number: sealed.length for sealed in newest.sealed}
    for number, length in lengths.items():
        _check_length(found, number, length, present=number in numbers)
    last_sequence: int | None = None
    for number in numbers:
        if number - 1 not in numbers:
            last_sequence = None
        path = segment_path(directory, number)
        try:
            with mapped(path) as data:
                segment = SegmentInspection(number, path.name, len(data), _state(number, newest, lengths))
                found.segments.append(segment)
                if segment.state != "left over":
                    last_sequence = _inspect_segment(
                        found, segment, newest, data[: lengths.get(number)], last_sequence, verify
                    )
        except DamageError as error:
            found.faults.append(str(error))
            last_sequence = None
    return found


def _inspect_newest(found: LogInspection, numbers: list[int]) -> wal_pb2.Segment | None:
    path = segment_path(found.directory, numbers[-1])
    try:
        with mapped(path) as data:
            newest = read_header(path, data).segment
    except DamageError as error:
        found.faults.append(f"{error}: without it, it is unknown which segments belong to the log")
        return None
    found.lane = f"{newest.pipeline}/{newest.vertex}/window.{newest.partition}"
    found.log_id, found.epoch = newest.log_id.hex(), newest.epoch
    owner = found.directory / OWNERS / str(max(owner_epochs(found.directory), default=0))
    found.owner = owner.read_text(encoding="utf-8", errors="replace").strip() if owner.exists() else ""
    return newest


def _check_length(found: LogInspection, number: int, length: int, *, present: bool) -> None:
    path = segment_path(found.directory, number)
    size = path.stat().st_size if present else 0
    if size < length:
        fault = f"has {size} bytes, and had {length} when it was sealed" if present else "is missing"
        found.faults.append(f"{path} {fault}. {damage.affected(found.directory, number, size, length)}")


def _state(number: int, newest: wal_pb2.Segment, lengths: dict[int, int]) -> str:
    if number == newest.number:
        return "newest"
    if number not in lengths:
        return "left over"
    return "rows only" if number < newest.first else "sealed"


def _inspect_segment(
    found: LogInspection,
    segment: SegmentInspection,
    newest: wal_pb2.Segment,
    data: memoryview,
    last_sequence: int | None,
    verify: bool,
) -> int | None:
    """Returns the log sequence number from which the next segment continues; None if unknown."""
    is_whole = True
    for item in _entries(data, verify):
        if isinstance(item, EntryError):
            if segment.state == "newest" and proof_of_damage(data, item.offset, (last_sequence or 0) + 1) is None:
                found.torn_bytes = len(data) - item.offset
                break
            path = segment_path(found.directory, segment.number)
            affected = damage.affected(found.directory, segment.number, item.offset, item.offset + 1)
            found.faults.append(f"{path}, {item}. {affected}")
            is_whole, last_sequence = False, None
            continue
        if last_sequence is not None and item.sequence != last_sequence + 1:
            found.faults.append(
                f"{segment_path(found.directory, segment.number)}, offset {item.offset}: the log sequence number is "
                f"{item.sequence}, after {last_sequence}"
            )
        last_sequence = item.sequence
        _note(found, segment, newest, item)
    return last_sequence if is_whole else None


def _entries(data: memoryview, verify: bool) -> Iterator[StoredEntry | EntryError]:
    """The entries in order; if one cannot be read, why, and then those that can be read after it."""
    offset = 0
    while offset < len(data):
        try:
            entry = read_entry(data, offset, check=verify)
        except EntryError as fault:
            yield fault
            following = next(whole_entries(data, offset + 1), None)
            if following is None:
                return
            entry = following
        yield entry
        offset = entry.end


def _note(found: LogInspection, segment: SegmentInspection, newest: wal_pb2.Segment, entry: StoredEntry) -> None:
    try:
        message = entry.message()
        kind = message.WhichOneof("kind")
        if (entry.offset == 0) != (kind == "segment"):
            raise EntryError(entry.offset, f"an entry of the kind {kind} does not belong here")
    except EntryError as fault:
        found.faults.append(f"{segment_path(found.directory, segment.number)}, {fault}")
        return
    if kind == "segment":
        header = message.segment
        segment.epoch = header.epoch
        if header.log_id != newest.log_id or header.number != segment.number:
            found.faults.append(
                f"{segment_path(found.directory, segment.number)} is segment {header.number} of the log "
                f"{header.log_id.hex()}, not segment {segment.number} of {newest.log_id.hex()}"
            )
        _note_inputs(found, header.inputs, header.closed_us)
        for hand_over in header.checkpoint.hand_overs:
            _note_hand_over(found, segment.number, hand_over)
        return
    segment.entries += 1
    if kind == "append":
        segment.rows += message.append.rows
        segment.late += message.append.late
        _note_inputs(found, message.append.inputs, message.append.closed_us)
    else:
        segment.hand_overs += 1
        _note_hand_over(found, segment.number, message.hand_over)


def _note_inputs(found: LogInspection, inputs: Iterable[wal_pb2.InputPosition], closed_us: int) -> None:
    for position in inputs:
        found.inputs[position.edge] = max(position.sequence, found.inputs.get(position.edge, 0))
    found.closed_us = max(closed_us, closed_us if found.closed_us is None else found.closed_us)


def _note_hand_over(found: LogInspection, segment: int, hand_over: wal_pb2.HandOver) -> None:
    found.closed_us = max(hand_over.closed_us, found.closed_us or hand_over.closed_us)
    if not hand_over.number:
        return
    try:
        windows = WindowTable.of_hand_over(hand_over)
    except DamageError as error:
        found.faults.append(f"{segment_path(found.directory, segment)}, hand-over {hand_over.number}: {error}")
        return
    found.hand_overs[hand_over.number] = HandOverInspection(hand_over.number, segment, hand_over.closed_us, windows)
