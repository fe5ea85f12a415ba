"""Reads the rows of a table: state by state (versions, or snapshots), file by file, row by row.

    files of a state ─► rows of the next file, in blocks ─► … ─► the next state, if there is one
                                                                   └─ not yet: the end, or checked again

Above it: the lane and the reader of a format, which block, in one thread. Below it: files, and positions.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from millstream import codes
from millstream.errors import DamageError, MillstreamError, RetryLaterError, UserError
from millstream.limits import TABLE_FILES_MAX
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.file.source.row_buffer import RowBuffer
from millstream_connectors.file.source.table_file import UNREADABLE, unreadable_file
from millstream_connectors.shared.failing import translating
from millstream_connectors.shared.reaching import RemoteLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceBatch

_log = logging.getLogger(__name__)


class TableFile(Protocol):
    """A file with rows."""

    @property
    def path(self) -> str:
        """The path that the table has for it."""

    @property
    def rows(self) -> int | None:
        """None if the table does not say."""


F = TypeVar("F", bound=TableFile)


class StateFiles(NamedTuple, Generic[F]):
    """The files of a state to read."""

    files: Sequence[F]
    skipped: str = ""
    """Why none is read: the operation that changed rows."""
    crc: int = 0
    """Checksum of what the state was read from, which differs if another one takes its place."""


class TableReader(ABC, Generic[F]):
    """One table. Blocking; used by one thread. Its methods raise Millstream errors."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of the client."""
    noun: ClassVar[str]
    """What a state is called."""
    removal: ClassVar[str]
    """What takes files away that are still to be read."""

    def __init__(self, where: str, named: str, *, skip_changes: bool) -> None:
        """`where` and `named`: the lane and the table, for messages."""
        self._where = where
        self.named = named
        self._skip_changes = skip_changes

    @abstractmethod
    def open(self) -> str:
        """Reach the table; returns its id."""

    def close(self) -> None:
        """Close connections."""

    def rows(self, file: F, skipped: int) -> Iterator[list[bytes]]:
        """The rows of a file after the first `skip`, as JSON objects, in blocks."""
        try:
            with self._stream(file) as stream:
                try:
                    yield from self._rows_in(stream, file, skipped)
                except UNREADABLE as error:
                    raise unreadable_file(self._where, f"{file.path} of {self.named}", error) from error
        except FileNotFoundError as error:
            raise DamageError(
                codes.SOURCE_FILE_CHANGED,
                f"{self._where}: {file.path} of {self.named} is missing: {self.removal} before it was read. Restore "
                "it, or start over with --fresh",
            ) from error
        except self.failures as error:
            raise self._error(error) from error

    @abstractmethod
    def _stream(self, file: F) -> AbstractContextManager[Any]:
        """A file, open."""

    @abstractmethod
    def _rows_in(self, stream: Any, file: F, skipped: int) -> Iterator[list[bytes]]:
        """The rows of an open file, as `rows`."""

    @abstractmethod
    def _error(self, error: BaseException) -> MillstreamError:
        """The Millstream error for one of `failures`."""

    def _errors(self) -> AbstractContextManager[None]:
        return translating(self.failures, self._error)

    def _changing(self, state: int, operation: str) -> StateFiles[F]:
        """A state that changes or removes rows. Raises `UserError` if `skipChanges` is not set."""
        if self._skip_changes:
            return StateFiles((), operation)
        raise self._unfit(
            f"{self.noun} {state} of {self.named} changes or removes rows ({operation}), but the source reads only "
            f"added rows. Rows of earlier {self.noun}s are kept. Set `skipChanges: true` to skip such {self.noun}s, or "
            "start over with --fresh to begin with the current rows of the table"
        )

    def _check_number(self, files: int) -> None:
        if files > TABLE_FILES_MAX:
            raise self._unfit(f"{self.named} has more than {TABLE_FILES_MAX} data files, the limit. Compact it")

    def _unfit(self, what: str) -> UserError:
        return UserError(codes.TARGET_UNFIT, f"{self._where}: {what}")


class TableSourceLane(RemoteLane, ABC, Generic[F]):
    """One lane of a table. See `SourceLane`."""

    def __init__(
        self, owner: SourceOwner, worker: Worker, table: TableReader[F], place: str, poll_every_s: float | None
    ) -> None:
        """`place`: the table, for messages. `poll_every_s`: None to end at the newest state."""
        super().__init__(owner, _log)
        self._worker = worker
        self._table = table
        self._place = place
        self._poll_every_s = poll_every_s
        # The position.
        self._id = ""
        self._whole = False
        """Whether all files of the state are read, not only those that it added."""
        self._done = 0
        self._row = 0
        # What is being read.
        self._files: Sequence[F] | None = None
        """Files of the state."""
        self._blocks: Iterator[list[bytes]] | None = None
        self._rows = RowBuffer()
        self._checked = False
        self._is_at_newest = False
        """Whether there was no later state when the table was looked at last."""
        self._ended = not self._owns(place)
        """For another lane that reads from the beginning."""

    async def open(self) -> None:
        """Go to the position of an earlier run. Reports problems that show immediately; if the store is away, `read`
        waits for it. Raises `DamageError` for an invalid position."""
        body = self._unpacked(self._owner.position)
        if body is not None:
            with self._restoring():
                self._id, self._whole = str(body["table"]), bool(body["whole"])
                self._done, self._row = int(body["files"]), int(body["row"])
                self._restore(body)
        if self._ended:
            return
        try:
            await self._worker.run(self._begin)
        except RetryLaterError as error:
            self._reaching.failed(error)

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        # Records in memory are returned without waiting, so other tasks would never run.
        await asyncio.sleep(0)
        clock = self._owner.clock
        until_s = clock.monotonic_s() + timeout_s
        while not self._draining and not self._ended:
            if self._rows:
                return self._take(records_max, bytes_max)
            if not await self._reaching.may_try(max(0.0, until_s - clock.monotonic_s())):
                break
            try:
                await self._worker.run(self._fill)
            except RetryLaterError as error:
                self._blocks = None
                self._reaching.failed(error)
        return SourceBatch(None, self._position(), ended=self._ended)

    def pending(self) -> int | None:
        """Rows of the current state and of later ones, as far as the table says."""
        later = self._later_rows()
        if self._files is None or later is None:
            return 0 if self._ended or self._is_at_newest else None
        left = [file.rows for file in self._files[self._done :]]
        known = [rows for rows in left if rows is not None]
        return max(0, sum(known) - self._row) + later if len(known) == len(left) else None

    @abstractmethod
    def pending_versions(self) -> int | None:
        """States that are not read to their end, of those that existed when the table was looked at last."""

    def close(self) -> None:
        """Called when the worker has ended."""
        self._table.close()

    # Called in the thread.

    @abstractmethod
    def _later_rows(self) -> int | None:
        """Rows that the states after the current one add; None if that is not known."""

    @abstractmethod
    def _restore(self, body: Mapping[str, Any]) -> None:
        """Go to the state in a position. Raises `KeyError` or similar for an invalid one."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """The state, as a position has it."""

    @abstractmethod
    def _begin_at_newest(self) -> None:
        """Go to the newest state, of which all files are read."""

    @abstractmethod
    def _check_history(self) -> None:
        """Check that the state in the position is in the history of the table."""

    @abstractmethod
    def _look(self) -> None:
        """Set `_files` to those of the current state, or of the next one; or call `_at_newest`."""

    @abstractmethod
    def _advance(self) -> None:
        """Called when all files of the state are done."""

    @property
    def _begun(self) -> bool:
        """Whether something of the current state was read, so that it exists."""
        return self._whole or self._done > 0 or self._row > 0

    def _position(self) -> bytes:
        if not self._id:
            return self._owner.position
        read = {"whole": self._whole, "files": self._done, "row": self._row}
        return self._packed({"table": self._id, **self._state(), **read})

    def _begin(self) -> None:
        """Reach the table, and check that it is the one in the position."""
        found = self._table.open()
        if not self._id:
            self._begin_at_newest()
            self._id = found
        elif found != self._id:
            raise self._replaced(f"its id is now {found}, and was {self._id}")
        else:
            self._check_history()
        self._checked = True

    def _use(self, state: str, found: StateFiles[F]) -> None:
        """Read these files next, from the position on. `state`: its name in messages."""
        if found.skipped:
            _log.warning(
                "lane %s: skips %s of %s, which changes or removes rows (%s)",
                self._owner.lane, state, self._place, found.skipped,
            )  # fmt: skip
        if self._done > len(found.files):
            raise self._replaced(f"{state} has fewer files than before")
        self._files = found.files

    def _fill(self) -> None:
        """One step: a block of rows, the next file, or the next state."""
        if not self._checked:
            self._begin()
        if self._files is None:
            self._is_at_newest = False
            self._look()
            return
        if self._done == len(self._files):
            self._advance()
            self._files = None
            return
        if self._blocks is None:
            self._blocks = self._table.rows(self._files[self._done], self._row)
        block = next(self._blocks, None)
        self._reaching.worked()
        if block is None:
            self._blocks = None
            self._done, self._row = self._done + 1, 0
        else:
            self._rows.add(block)

    def _at_newest(self) -> None:
        """Called when there is no later state."""
        self._is_at_newest = True
        self._reaching.worked()
        if self._poll_every_s is None:
            self._ended = True
        else:
            self._reaching.rest(self._poll_every_s)

    # In memory.

    def _take(self, records_max: int, bytes_max: int) -> SourceBatch:
        assert self._files is not None, "a row comes from a file"
        source = f"{self._place}, {self._files[self._done].path}"
        now_us = self._owner.clock.now_us()
        taken = self._rows.take(records_max, bytes_max, now_us=now_us, source=source, before=self._row)
        self._row += taken.rows
        return SourceBatch(taken.frame, self._position(), invalid=taken.invalid)

    def _replaced(self, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: {self._table.named} is not the one that was read before: {what}. Records that "
            "were already read are kept. Put the table back as it was, or start over with --fresh",
        )
