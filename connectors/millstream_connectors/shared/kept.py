"""The position that a target keeps of a lane: whether the lane may continue from it, and which records follow it.

    write ─► converted ─► records after the position, up to the first one that cannot be written ─► committed
                              └─ the rest ─► committed by the next call, after that record was handled

Above it: the lanes of sinks that keep a position in their target. Below it: nothing; a lane reads and writes the
position in the way of its target, in the transaction of the records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from millstream import codes
from millstream.errors import DamageError, FencedError
from millstream.json_parser import parse_json
from millstream.record import Position
from millstream_connectors.shared.encoding_lane import encoded, of_rows
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import (
    Guarantee,
    SinkFailure,
    SinkFrame,
    WriteResult,
    exact_end,
    exact_position,
    frame_at,
)

T = TypeVar("T")


class TargetPosition(NamedTuple):
    """A lane's position in its target."""

    run: str
    epoch: int
    owner: str
    """Begins with the owner's identity. Where an abandoned connection could commit late, a new name follows whenever
    the lane is opened."""
    position: Position
    frame: str
    """Name of the frame with the last record."""


def parse_kept(text: bytes | str) -> TargetPosition:
    """The position in a JSON object; its owner may be absent. Raises `ValueError`."""
    try:
        found = parse_json(text)
        run, owner, frame, (sequence, record) = found["run"], found.get("owner", ""), found["frame"], found["at"]
        if not all(isinstance(name, str) for name in (run, owner, frame)):
            raise TypeError(text)
        return TargetPosition(run, int(found["epoch"]), owner, Position(int(sequence), int(record)), frame)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(text) from error


async def check_kept(owner: SinkOwner, kept: TargetPosition, target: str, remedy: str, *, ours: bool) -> None:
    """Raises unless `owner` may write after the position that `target` keeps of the lane. `remedy` removes the
    position; `ours`: this lane itself wrote it, and lost the answer.

    A target of another run, one that is ahead of the buffer, and one that has lost confirmed records are damage; a
    newer owner ends this one.
    """
    if kept.run != owner.ledger_id:
        raise DamageError(
            codes.SINK_AHEAD,
            f"{owner.where}: another run of the pipeline wrote to {target}, up to sequence {kept.position.sequence} "
            f"of lane {owner.name}. Nothing was written now. Run with the data directory of that run; or check the "
            f"records that it wrote, and then start over: {remedy}",
        )
    if not ours and kept.epoch >= owner.epoch:
        raise fenced(owner, target)
    if owner.fallback:
        # A fallback gets only some records, and perhaps different ones when they are offered again.
        return
    if kept.position < owner.start:
        raise DamageError(
            codes.SINK_BEHIND,
            f"{owner.where}: {target} is at sequence {kept.position.sequence} of lane {owner.name}, but had "
            f"confirmed sequence {owner.start.sequence}: it was restored from an older copy, or lost data that it "
            "had acknowledged. Nothing was written now. Restore it to a later state; or continue without these "
            f"records: {remedy}",
        )
    if not kept.frame or not owner.start < kept.position:
        return
    sequence = frame_at(kept.position)
    held = await owner.held_instead(sequence, kept.frame)
    if held is not None:
        raise DamageError(
            codes.SINK_AHEAD,
            f"{owner.where}: {target} has records of frame {kept.frame} at sequence {sequence}, but the buffer now "
            f"holds {held} there, and the lane's mark is at {owner.start.sequence}: the pipeline's data is older "
            f"than {target}, or was rewritten since. Nothing was written now. Restore the data directory that "
            f"belongs to it; or check the records after the mark, and then continue from it: {remedy}",
        )


def unknown(owner: SinkOwner, target: str, remedy: str) -> DamageError:
    """The error if `target` has no position of a lane that has used it before. `remedy`: how a user lets the lane
    continue after its mark there, or in another target."""
    return DamageError(
        codes.TARGET_POSITION_LOST,
        f"{owner.where}: lane {owner.name} has written to {target}, and its mark is at sequence {owner.mark.sequence}, "
        "but this one has no trace of the lane: it is on another disk or machine, or it was removed or replaced. "
        "Nothing was written now. If the former one still exists, bring it back, or run the lane where it is. "
        "Otherwise, what the former one has after the mark will be written again: look at it, and then let the lane "
        f"continue: {remedy}",
    )


def fenced(owner: SinkOwner, target: str) -> FencedError:
    """The error if another owner has opened the lane since."""
    return FencedError(codes.OUTPUT_TAKEN_OVER, f"{owner.where}: another owner writes lane {owner.name} to {target}")


@dataclass(frozen=True, slots=True)
class ConvertedRecords(Generic[T]):
    """The converted records of one frame."""

    rows: Sequence[int]
    """Their indexes in the frame, ascending."""
    made: Sequence[T]
    """The converted form of each."""
    failures: Sequence[SinkFailure]
    """Failures of the other records, the same at every attempt."""


class _Piece(NamedTuple, Generic[T]):
    """Records of a frame that have to be written."""

    item: SinkFrame
    rows: Sequence[int]
    made: Sequence[T]

    def split(self, count: int) -> tuple[_Piece[T], _Piece[T]]:
        head, tail = slice(None, count), slice(count, None)
        return (
            _Piece(self.item, self.rows[head], self.made[head]),
            _Piece(self.item, self.rows[tail], self.made[tail]),
        )

    def before(self, limit: Position) -> int:
        """How many of them end before this position."""
        indexes = self.item.indexes()
        return bisect_left(self.rows, True, key=lambda row: exact_position(self.item, indexes[row] + 1) >= limit)

    @property
    def end(self) -> Position:
        return exact_position(self.item, self.item.indexes()[self.rows[-1]] + 1)


class _Rest(NamedTuple, Generic[T]):
    """Records that a write left for the next call."""

    pieces: Sequence[_Piece[T]]
    end: Position
    frame: str


class PositionLane(ABC, Generic[T]):
    """The common part of lanes whose target keeps a position."""

    def __init__(self, owner: SinkOwner, records_max: int) -> None:
        """`records_max`: maximum number in one delivery."""
        self._owner = owner
        self.delivery_records_max = records_max
        self._durable = owner.start

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE if self._owner.fallback else Guarantee.EXACTLY_ONCE_TRANSACTIONAL

    @property
    def durable(self) -> Position | None:
        return self._durable

    collects = False

    @property
    @abstractmethod
    def is_ripe(self) -> bool:
        """Whether a write has left records, which the next call commits."""

    async def reach(self) -> Position:
        async with self._session():
            return self._durable

    async def flush(self) -> None:
        if self.is_ripe:
            async with self._session():
                await self._finish()

    async def tick(self) -> None:
        await self.flush()

    async def open(self) -> None:
        """Connect, and take the lane over."""
        async with self._session():
            pass

    def _reached(self, frames: Sequence[SinkFrame], end: Position) -> tuple[Position, str]:
        """Set the lane's position after a write, and the name of the frame with its last record, if it is known."""
        reached = exact_end(frames, end)
        return reached, frames[-1].name if frames and frames[-1].sequence == frame_at(reached) else ""

    @abstractmethod
    def _convert(self, item: SinkFrame) -> ConvertedRecords[T]:
        """Converts a frame's records."""

    @abstractmethod
    def _session(self) -> AbstractAsyncContextManager[object]:
        """Takes the lane over, and sets `_durable` to the target's position. Converts errors to Millstream errors."""

    @abstractmethod
    async def _finish(self) -> None:
        """Commit the records that a write left: its refused records have been handled."""


class KeptLane(PositionLane[T]):
    """A lane in which records can be refused only before anything is written."""

    def __init__(self, owner: SinkOwner, records_max: int) -> None:
        super().__init__(owner, records_max)
        self._rest: _Rest[T] | None = None

    @property
    def is_ripe(self) -> bool:
        return self._rest is not None

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        async with self._session():
            await self._finish()
            # Only now is the target's position known.
            converted = [await self._made_of(item) for item in frames]
            pieces = [self._new(item, found) for item, found in zip(frames, converted, strict=True)]
            reached, name = self._reached(frames, end)
            first = min(self._refused(frames, converted), default=None)
            if first is None:
                await self._put(pieces, reached, name)
            elif self._owner.whole:
                self._rest = _Rest(pieces, reached, name)
            else:
                parts = [piece.split(piece.before(first)) for piece in pieces]
                before = [part for part, _ in parts if part.rows]
                if before:
                    await self._put(before, before[-1].end, before[-1].item.name)
                self._rest = _Rest([part for _, part in parts], reached, name)
        failures = [found.failures for found in converted]
        return WriteResult(failures if any(failures) else ())

    @abstractmethod
    async def _commit(self, made: Sequence[T], end: Position, frame: str) -> None:
        """One transaction: these records, and the position after them."""

    async def _made_of(self, item: SinkFrame) -> ConvertedRecords[T]:
        """Converts a frame's records, with their values and keys encoded if there is a format."""
        if self._owner.encoders is None:
            return self._convert(item)
        fit, rows, misfits = await encoded(self._owner.encoders, item)
        if fit is None:
            return ConvertedRecords((), (), misfits)
        found = self._convert(fit)
        failures = [*misfits, *of_rows(rows, found.failures)]
        failures.sort(key=lambda failure: failure.index)
        return ConvertedRecords([rows[row] for row in found.rows], found.made, failures)

    def _new(self, item: SinkFrame, found: ConvertedRecords[T]) -> _Piece[T]:
        piece = _Piece(item, found.rows, found.made)
        if self._owner.fallback or not found.rows or item.sequence > frame_at(self._durable):
            # A fallback gets only some records, and perhaps different ones when they are offered again.
            return piece
        indexes = item.indexes()
        start = bisect_left(found.rows, True, key=lambda row: exact_position(item, indexes[row] + 1) > self._durable)
        return piece.split(start)[1]

    def _refused(self, frames: Sequence[SinkFrame], converted: Sequence[ConvertedRecords[T]]) -> Iterator[Position]:
        """The ends of records that cannot be written and are after the position."""
        for item, found in zip(frames, converted, strict=True):
            for failure in found.failures:
                end = exact_position(item, item.indexes()[failure.index] + 1)
                if end > self._durable:
                    yield end

    async def _finish(self) -> None:
        if self._rest is not None:
            # Some of the records may already be in the target: the answer to an earlier attempt may be lost.
            fresh = [self._new(item, ConvertedRecords(rows, made, ())) for item, rows, made in self._rest.pieces]
            await self._put(fresh, self._rest.end, self._rest.frame)
            self._rest = None

    async def _put(self, pieces: Sequence[_Piece[T]], reached: Position, frame: str) -> None:
        made: list[T] = []
        if self._owner.whole:
            if reached > self._durable:
                await self._move([one for piece in pieces for one in piece.made], reached, frame)
            return
        for whole in pieces:
            piece = whole
            while piece.rows:
                part, piece = piece.split(self.delivery_records_max - len(made))
                made += part.made
                if len(made) == self.delivery_records_max:
                    await self._move(made, part.end, part.item.name)
                    made = []
        if made or reached > self._durable:
            await self._move(made, reached, frame)

    async def _move(self, made: Sequence[T], end: Position, frame: str) -> None:
        if end <= self._durable:
            # In a fallback, records are written whatever its position.
            end, frame = self._durable, ""
        await self._commit(made, end, frame)
        self._durable = end
