"""Lanes whose target keeps a position, and refuses records only within a transaction.

    write ─► one transaction: position, records after it, each frame converted when its turn comes
                └─ refused ─► halved, under savepoints, until it is known which records are
                                └─► those before the first one

A record that the database refuses is found by halving the batch, and that attempt is rolled back. Then everything
before the first refused record is committed, and nothing after it until the delivery has decided about it: if the lane
stops there, later records are in the same order as without the attempt. The fact that a record was set aside is
committed with the position that passes it. So after a crash the record is refused again, and sent again to a fallback
that had not stored it.

Above it: lanes of databases. Below it: nothing; a lane connects, commits and judges errors in its own way.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from millstream import codes
from millstream.errors import UserError
from millstream.record import Position
from millstream_connectors.shared.kept import PositionLane
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFailure, SinkFrame, WriteResult, exact_position

T = TypeVar("T")


class Refusal(NamedTuple):
    """A database's refusal of a record."""

    reason: str
    """The reason, from a small set."""
    detail: str


@dataclass(frozen=True, slots=True)
class _Row(Generic[T]):
    """A record that has to be written."""

    end: Position
    """The lane's position after it."""
    made: T
    item: int
    """Index of its frame in the write."""
    row: int


@dataclass(frozen=True, slots=True)
class TransactionPart(Generic[T]):
    """The contents of one transaction."""

    made: Iterable[Sequence[T]]
    """The records, in order, in pieces that may be empty. They can be read once, and may be converted only when they
    are read: that raises `UnfitError` if one cannot be converted."""
    end: Position
    frame: str
    """Name of the frame at or before the end; empty if it is unknown."""
    refused: Sequence[tuple[Position, str, str]] = ()
    """Records that are set aside with it: the end of each, the reason and the detail."""

    def records(self) -> list[T]:
        """All records, for a lane that has to know them before it begins."""
        return [one for made in self.made for one in made]


class UnfitError(Exception):
    """A record of a write cannot be converted, so its transaction must not be committed."""


@dataclass(slots=True)
class _Write(Generic[T]):
    """One call of `write`."""

    frames: Sequence[SinkFrame]
    end: Position
    frame: str
    new: list[tuple[int, Sequence[int], Sequence[T]]] = field(default_factory=list)
    """The records to write of the frames that are converted so far: their frame, their indexes in it, and their
    converted form."""
    refused: list[tuple[Position, str, str]] = field(default_factory=list)
    failures: list[list[SinkFailure]] = field(init=False)
    """Failures by frame: those from `refused`, and of records that were set aside before."""

    def __post_init__(self) -> None:
        self.failures = [[] for _ in self.frames]

    def rows(self, alone: Callable[[T], T]) -> list[_Row[T]]:
        """The records to write, one by one, for a batch with refused records."""
        return [
            _Row(exact_position(self.frames[number], self.frames[number].indexes()[row] + 1), alone(one), number, row)
            for number, rows, made in self.new
            for row, one in zip(rows, made, strict=True)
        ]

    def result(self) -> WriteResult:
        """The result of the write."""
        return WriteResult(self.failures if any(self.failures) else ())


def _failure(row: int, reason: str, detail: str) -> SinkFailure:
    return SinkFailure(row, reason, retryable=False, detail=detail, shows_value=True)


class RefusableLane(PositionLane[T]):
    """A lane whose database may refuse any record."""

    def __init__(self, owner: SinkOwner) -> None:
        super().__init__(owner, sys.maxsize)
        self._refused: dict[Position, tuple[str, str]] = {}
        self._rest: TransactionPart[T] | None = None

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        async with self._session():
            await self._finish()
            # Only now is the target's position known.
            reached, name = self._reached(frames, end)
            write: _Write[T] = _Write(frames, *((self._durable, "") if reached <= self._durable else (reached, name)))
            if not await self._tried(write):
                await self._without_refused(write)
        return write.result()

    @property
    def is_ripe(self) -> bool:
        return self._rest is not None

    @abstractmethod
    async def _transact(self, part: TransactionPart[T]) -> None:
        """One transaction: records, those that are set aside, and the position, which never moves back. If a record is
        refused or unfit, it is rolled back, and the connection remains usable. Raises `FencedError` and
        `UnfitError`."""

    @abstractmethod
    def _trying(self) -> AbstractAsyncContextManager[Callable[[Sequence[T]], Awaitable[None]]]:
        """A transaction that is rolled back. It yields a function that writes further records, all of them or none."""

    @abstractmethod
    def _refusal(self, error: Exception) -> Refusal | None:
        """The refusal that an error describes; None if it is about something else."""

    def _alone(self, made: T) -> T:
        """The converted form of a record in a batch with refused records."""
        return made

    def _taken_over(self, position: Position, refused: dict[Position, tuple[str, str]]) -> None:
        """Notes the stored state of the lane in the target, which belongs to this owner now."""
        if self._owner.fallback:
            return
        self._durable = max(self._durable, position)
        self._refused = refused
        if self._rest is not None and self._rest.end <= self._durable:
            self._rest = None

    def _made(self, write: _Write[T]) -> Iterator[Sequence[T]]:
        """The records to write, frame by frame, each converted when it is asked for. Raises `UnfitError` at the first
        frame with a record that cannot be converted."""
        for number in range(len(write.new), len(write.frames)):
            self._sort(write, number, write.frames[number])
            if write.refused:
                raise UnfitError
            yield write.new[number][2]

    def _sort(self, write: _Write[T], number: int, item: SinkFrame) -> None:
        """Sorts the records of a frame into those to write and those that are refused."""
        converted = self._convert(item)
        indexes = item.indexes()
        for row, index in enumerate(indexes if self._refused else ()):
            end = exact_position(item, index + 1)
            if end in self._refused and not self._is_new(end):
                reason, detail = self._refused[end]
                write.failures[number].append(_failure(row, reason, detail))
        for failure in converted.failures:
            end = exact_position(item, indexes[failure.index] + 1)
            if self._is_new(end):
                write.failures[number].append(failure)
                write.refused.append((end, failure.reason, failure.detail))
        rows = converted.rows
        start = bisect_left(rows, True, key=lambda row: self._is_new(exact_position(item, indexes[row] + 1)))
        write.new.append((number, rows[start:], converted.made[start:]))

    def _is_new(self, end: Position) -> bool:
        # A fallback gets only some records, and perhaps different ones when they are offered again.
        return self._owner.fallback or end > self._durable

    async def _tried(self, write: _Write[T]) -> bool:
        """Whether everything is committed; False if a record is refused, and nothing is committed."""
        try:
            await self._commit(TransactionPart(self._made(write), write.end, write.frame))
        except UnfitError:
            return False
        except Exception as error:
            if self._refusal(error) is None:
                raise
            return False
        return True

    async def _without_refused(self, write: _Write[T]) -> None:
        """Find the records that the database refuses, commit the records before them, and keep the rest until the next
        call."""
        for number in range(len(write.new), len(write.frames)):
            self._sort(write, number, write.frames[number])
        rows = write.rows(self._alone)
        bad = await self._find(rows)
        for row, refusal in bad:
            write.failures[row.item].append(_failure(row.row, *refusal))
            write.refused.append((row.end, *refusal))
        if not write.refused:
            # The cause has disappeared meanwhile, or does not affect single writes.
            await self._commit(TransactionPart([[row.made for row in rows]], write.end, write.frame))
            return
        # A whole delivery is one transaction, which has to wait for the decision about these records.
        first = Position(0) if self._owner.whole else min(end for end, _, _ in write.refused)
        before = [row for row in rows if row.end < first]
        if before:
            last = before[-1]
            await self._commit(TransactionPart([[row.made for row in before]], last.end, write.frames[last.item].name))
        refused = {id(row) for row, _ in bad}
        following = [row.made for row in rows if row.end >= first and id(row) not in refused]
        self._rest = TransactionPart([following], write.end, write.frame, write.refused)

    async def _find(self, rows: Sequence[_Row[T]]) -> list[tuple[_Row[T], Refusal]]:
        """The rows that the database refuses, each written after the earlier ones. The attempt is rolled back."""
        found: list[tuple[_Row[T], Refusal]] = []
        async with self._trying() as attempt:
            open_ = [rows] if rows else []
            while open_:
                part = open_.pop()
                try:
                    await attempt([row.made for row in part])
                except Exception as error:
                    refusal = self._refusal(error)
                    if refusal is None:
                        raise
                    if len(part) == 1:
                        found.append((part[0], refusal))
                    else:
                        half = len(part) // 2
                        open_ += [part[half:], part[:half]]
        return found

    async def _finish(self) -> None:
        if self._rest is None:
            return
        rest = self._rest
        try:
            if rest.end > self._durable:
                await self._commit(rest)
        except Exception as error:
            if self._refusal(error) is not None:
                # It was accepted before; the lane continues from its mark, and encounters the record as if for the
                # first time.
                what = f"{self._owner.where}: the database refuses a record that it accepted before: {error}"
                raise UserError(codes.SINK_REFUSED, what) from error
            raise
        self._refused.update({at: (reason, detail) for at, reason, detail in rest.refused})
        self._rest = None

    async def _commit(self, part: TransactionPart[T]) -> None:
        if part.end <= self._durable:
            # Only a fallback may have records then.
            part = replace(part, made=[made for made in part.made if made])
            if not part.made:
                return
        await self._transact(part)
        self._durable = max(self._durable, part.end)
