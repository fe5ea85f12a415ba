"""A table as the target of one lane's commits: ownership, position and schema.

The state of the table names, for each lane, its owner and its position. Each commit of a lane is based on a state that
named this owner, and the catalog or log refuses it if that has changed. The classes of the two formats define how their
clients express this.

Above it: the file sink's lane, in its worker thread. Below it: the client of a format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

from millstream import codes
from millstream.errors import DamageError, RetryLaterError
from millstream.record import Position
from millstream_connectors.lake.settings import TableCommits
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.kept import TargetPosition, fenced, unknown
from millstream_writer.connector import SinkOwner

T = TypeVar("T")
_CONFLICTS_MAX = 20
"""How often a commit is immediately repeated if others have changed the table."""


class TableField(NamedTuple):
    """A column of a table."""

    kind: str
    """Its type, as the format names it."""
    nullable: bool


def column_faults(
    wanted: Mapping[str, TableField], there: Mapping[str, TableField], settings: TableCommits
) -> Iterator[Fault]:
    """What in the columns of a table does not fit the columns that are written to it."""
    for name, column in wanted.items():
        loc, found = settings.place_of(name), there.get(name)
        if found is None:
            if settings.schema_mode == "strict":
                yield Fault(loc, f"the table has no column `{name}`", "`schemaMode: merge`, or a column that it has")
        elif found.kind != column.kind:
            what = f"column `{name}` of the table has the type {found.kind}"
            yield Fault(loc, what, f"a column of the type {column.kind}")
        elif column.nullable and not found.nullable:
            yield Fault(loc, f"column `{name}` of the table accepts no nulls", "a column that accepts nulls")
    for name, found in there.items():
        if name not in wanted and not found.nullable:
            yield Fault(("columns",), f"column `{name}` of the table accepts no nulls", f"`{name}` among `columns`")


class ConflictError(Exception):
    """Another commit was faster. This one had no effect."""


class LaneTable(ABC, Generic[T]):
    """One lane's access to a table, under one epoch. Blocking; used by one thread, except that another one may call
    `begin` and `append`, which concern only the file. `T`: the client's table class."""

    def __init__(self, owner: SinkOwner, target: str) -> None:
        """`target` names the table in messages."""
        self._owner = owner
        self.target = target
        self._application = f"millstream/{owner.pipeline}/{owner.name}"
        self.name = str(int(owner.identity, 16) >> 2)
        """A number: Delta has signed ones of 64 bits for it."""
        self._table: T | None = None
        """Position in the state that the next commit is based on; None if it has to be read again."""
        self._position = owner.start
        self._taken_over = False

    # Opening: `look`, then `take_over`.

    def look(self) -> TargetPosition | None:
        """The lane's position in the table, which is created if it does not exist. Raises Millstream errors."""
        with self._errors():
            table = self._opened()
            kept = self._kept(table)
            if kept is None and self._must_exist:
                raise self._lost()
            if kept is None or kept.position <= self._owner.start:
                return kept and kept._replace(position=self._owner.start)
            return self._with_frame(table, kept)

    def take_over(self) -> Position:
        """Fence every earlier owner; returns the lane's certain position. Raises Millstream errors."""
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

    def begun(self) -> None:
        """A commit is made as a whole, so a former owner has fixed no end."""

    # Writing.

    def begin(self, extension: str) -> list[bytes]:
        """The rows of a commit, in memory."""
        return []

    def append(self, file: list[bytes], data: bytes, partition: str) -> int:
        """Keep the rows until the commit."""
        file.append(data)
        return len(data)

    def finish(self, file: list[bytes], after: Position, end: Position, extension: str, frame: str) -> None:
        """Commit the rows and the position after them. After `RetryLaterError` it may be called again."""
        for _ in range(_CONFLICTS_MAX):
            try:
                if self._table is None or not self._is_certain(self._table):
                    # The outcome of the last commit is unknown.
                    self._table = None
                    if self._regain() >= end and not self._owner.fallback:
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
        """The file is only in memory."""

    def close(self) -> None:
        """There is no connection to close."""

    # Implemented by a format.

    @property
    @abstractmethod
    def remedy(self) -> str:
        """How a user lets the lane continue after its mark, whatever position the table has."""

    @abstractmethod
    def _opened(self) -> T:
        """The table in its newest state, which fits the settings; stored in `_table`."""

    @abstractmethod
    def _kept(self, table: T) -> TargetPosition | None:
        """The lane's position in the table, without the name of a frame if that requires a search."""

    def _with_frame(self, table: T, kept: TargetPosition) -> TargetPosition:
        """`kept`, with the name of the frame."""
        return kept

    @abstractmethod
    def _claim(self, table: T, position: Position) -> None:
        """Commit, without records, that the lane belongs to this owner and is at `position`. Raises `ConflictError`."""

    def _is_certain(self, table: T) -> bool:
        """Whether the current state is known to name this owner, at `_position`: it was created or checked by it."""
        return True

    def _regain(self) -> Position:
        """The lane's position in the table's newest state. Raises if the lane no longer belongs to this owner."""
        return self.take_over()

    @abstractmethod
    def _commit(self, file: list[bytes], end: Position, frame: str) -> None:
        """One commit: the rows, and the position after them. Raises `ConflictError`."""

    @abstractmethod
    def _errors(self) -> AbstractContextManager[object]:
        """Converts errors of the client to `ConflictError` or a Millstream error."""

    # Parts of these.

    def _check_fit(self, faults: Iterable[Fault]) -> None:
        check_fit(f"{self._owner.where}: {self.target} does not fit", faults)

    def _check_owner(self, kept: TargetPosition | None) -> None:
        """Raises if the lane no longer belongs to this owner. The first time, `check_kept` checks the rest."""
        owner = self._owner
        if kept is None:
            if self._must_exist:
                raise self._lost()
            return
        if kept.owner == self.name:
            return
        if self._taken_over or kept.epoch >= owner.epoch or kept.run != owner.ledger_id:
            raise fenced(owner, self.target)

    @property
    def _must_exist(self) -> bool:
        """Whether the table, and the lane's position in it, must exist: the lane has used it before."""
        return self._taken_over or self._owner.must_be_known

    def _lost(self) -> DamageError:
        return unknown(self._owner, self.target, self.remedy)

    def _busy(self) -> RetryLaterError:
        what = f"{self._owner.where}: other writers changed {self.target} each time the lane tried to commit"
        return RetryLaterError(codes.TARGET_AWAY, what)
