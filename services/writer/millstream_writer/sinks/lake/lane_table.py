"""A table as the place of one lane's commits: who may write, how far the lane is, what fits.

The state of the table names, for each lane, its owner and its position. Each commit of a lane is based on a state that
named this owner, and the catalog or log refuses it if that is no longer so. What a client calls that, and what it
refuses, the classes of the two formats say.

Above it: the file sink's lane, in its worker thread. Below it: the client of a format.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

from millstream import codes
from millstream.errors import DamageError, FencedError, RetryLaterError, UserError
from millstream.record import Position
from millstream_writer.connector import SinkOwner
from millstream_writer.sinks.kept import Kept, fenced

T = TypeVar("T")
_CONFLICTS_MAX = 20
"""How often a commit is repeated at once, when others have changed the table."""


class Fault(NamedTuple):
    """What of a table does not fit the settings."""

    loc: tuple[str | int, ...]
    what: str
    expected: str


class ConflictError(Exception):
    """Another commit was faster. This one has no effect."""


class LaneTable(ABC, Generic[T]):
    """One lane's access to a table, under one epoch. Blocking; used by one thread. `T`: the client's table."""

    def __init__(self, owner: SinkOwner, target: str, remedy: str) -> None:
        """`target` names the table in messages; `remedy` is how a user lets a lane begin without what is kept."""
        self._owner = owner
        self.target = target
        self.remedy = remedy
        self._application = f"millstream/{owner.pipeline}/{owner.name}"
        self._name = secrets.randbits(62)
        """Of this owner."""
        self._table: T | None = None
        """In the state from which the next commit is made; None when it has to be read again."""
        self._position = owner.start
        self._taken_over = False

    # Opening: `look`, then `take_over`.

    def look(self) -> Kept | None:
        """How far the lane is by the table, which is created if it does not exist. Raises errors of ours."""
        with self._errors():
            table = self._opened()
            kept = self._kept(table)
            if kept is None or kept.position <= self._owner.start:
                return kept and kept._replace(position=self._owner.start)
            return self._with_frame(table, kept)

    def take_over(self) -> Position:
        """Fence every earlier owner; returns the lane's certain position. Raises errors of ours."""
        for _ in range(_CONFLICTS_MAX):
            try:
                with self._errors():
                    table = self._opened()
                    kept = self._kept(table)
                    self._check_owner(kept)
                    reached = self._owner.start if kept is None else max(self._owner.start, kept.position)
                    self._claim(table, reached)
            except ConflictError:
                self._table = None
                continue
            except BaseException:
                self._table = None
                raise
            self._taken_over = True
            self._position = reached
            return reached
        raise self._busy()

    # Writing.

    def begin(self, extension: str) -> list[bytes]:
        """The rows of a commit, in memory."""
        return []

    def append(self, file: list[bytes], data: bytes, partition: str) -> int:
        """Keep it until the commit."""
        file.append(data)
        return len(data)

    def finish(self, file: list[bytes], after: Position, end: Position, extension: str, frame: str) -> None:
        """Commit the rows and the position behind them. After `RetryLaterError` it may be called again."""
        for _ in range(_CONFLICTS_MAX):
            try:
                if self._table is None or not self._is_certain(self._table):
                    # What became of the last commit is not known.
                    self._table = None
                    reached = self._regain()
                    if reached >= end and not self._owner.fallback:
                        return
                with self._errors():
                    self._commit(file, max(end, self._position), frame)
                return
            except ConflictError:
                self._table = None
            except BaseException:
                self._table = None
                raise
        raise self._busy()

    def discard(self, file: list[bytes]) -> None:
        """It is in memory alone."""

    def close(self) -> None:
        """There is no connection to close."""

    # Of a format.

    @abstractmethod
    def _opened(self) -> T:
        """The table in its newest state, which fits; kept in `_table`."""

    @abstractmethod
    def _kept(self, table: T) -> Kept | None:
        """What the table says of the lane, without the name of a frame where that takes a search."""

    def _with_frame(self, table: T, kept: Kept) -> Kept:
        """`kept`, with the name of the frame."""
        return kept

    @abstractmethod
    def _claim(self, table: T, position: Position) -> None:
        """A commit without records: the lane belongs to this owner, and is at `position`. Raises `ConflictError`."""

    @abstractmethod
    def _is_certain(self, table: T) -> bool:
        """The state in hand is known to name this owner, at `_position`."""

    @abstractmethod
    def _regain(self) -> Position:
        """How far the lane is, if it is still this owner's, read from the table's newest state."""

    @abstractmethod
    def _commit(self, file: list[bytes], end: Position, frame: str) -> None:
        """One commit: the rows, and the position behind them. Raises `ConflictError`."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[object]:
        """Makes what the client raises `ConflictError` or an error of ours."""

    # Their parts.

    def _check_fit(self, faults: Sequence[Fault]) -> None:
        if faults:
            said = "; ".join(f"{fault.what} (expected: {fault.expected})" for fault in faults)
            raise UserError(codes.TARGET_UNFIT, f"{self._owner.where}: {self.target} does not fit: {said}")

    def _check_owner(self, kept: Kept | None) -> None:
        """Raises where the lane is no longer this owner's. The first time, `check_kept` has looked at the rest."""
        owner = self._owner
        if kept is None:
            if self._taken_over:
                raise self._lost()
            return
        if kept.owner == str(self._name):
            return
        if self._taken_over or kept.epoch >= owner.epoch or kept.run != owner.ledger_id:
            raise self._fenced()

    def _lost(self) -> DamageError:
        return DamageError(
            codes.TARGET_POSITION_LOST,
            f"{self._owner.where}: the lane has written into {self.target}, up to sequence "
            f"{self._position.sequence}, and the table knows nothing of it any more: it was removed or replaced. "
            "Nothing was written now. Put it back; or start the pipeline again, and the lane continues after its mark "
            "in the existing table",
        )

    def _fenced(self) -> FencedError:
        return fenced(self._owner, self.target)

    def _busy(self) -> RetryLaterError:
        what = f"{self._owner.where}: other writers changed {self.target} each time that the lane was to commit"
        return RetryLaterError(codes.TARGET_AWAY, what)
