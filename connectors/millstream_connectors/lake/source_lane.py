"""A lane that reads the rows of a table: state by state, file by file, row by row.

    files of a state ─► rows of the next file, in blocks ─► … ─► the next state, if there is one
                                                                   └─ not yet: the end, or checked again

Above it: a source lane. Below it: the lane of a format, whose methods block, in one thread.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from millstream import codes
from millstream.errors import DamageError, RetryLaterError
from millstream.frame import build_frame
from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.file.source.disk import Worker
from millstream_connectors.file.source.lane import owner_of
from millstream_connectors.shared.reaching import Reaching
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch

_SHOWN_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


class TableFile(Protocol):
    """A file with rows."""

    @property
    def path(self) -> str: ...

    @property
    def rows(self) -> int | None:
        """None if the table does not say."""


F = TypeVar("F", bound=TableFile)


class TableSourceLane(ABC, Generic[F]):
    """One lane of a table. See `SourceLane`."""

    def __init__(self, owner: SourceOwner, worker: Worker, place: str, named: str, poll_every_s: float | None) -> None:
        """`place` and `named`: the table, for messages. `poll_every_s`: None to end at the newest state."""
        self._owner = owner
        self._worker = worker
        self._place = place
        self._named = named
        self._poll_every_s = poll_every_s
        self._reaching = Reaching(owner.clock, _log)
        # The position.
        self._done = 0
        self._row = 0
        # What is being read.
        self._files: Sequence[F] | None = None
        """Files of the state."""
        self._blocks: Iterator[list[bytes]] | None = None
        self._values: list[bytes] = []
        self._next = 0
        self._checked = False
        self._is_at_newest = False
        """Whether there was no later state when the table was looked at last."""
        self._draining = False
        self._ended = owner_of(place, owner.partitions) != owner.lane.partition
        """For another lane that reads from the beginning."""

    @property
    def replayable(self) -> bool:
        return True

    @abstractmethod
    def resume(self, position: bytes) -> None:
        """Go to a position of an earlier run. Raises `DamageError` for an invalid one."""

    async def open(self) -> None:
        """Reports problems that show immediately. If the store is away, `read` waits for it."""
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
            if self._next < len(self._values):
                return self._take(records_max, bytes_max)
            if not await self._reaching.may_try(max(0.0, until_s - clock.monotonic_s())):
                break
            try:
                await self._worker.run(self._fill)
            except RetryLaterError as error:
                self._blocks = None
                self._reaching.failed(error)
        return SourceBatch(None, self._position(), ended=self._ended)

    async def committed(self, position: bytes) -> None:
        """Nothing outside needs an acknowledgement."""

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

    def is_held_up(self) -> bool:
        return self._reaching.is_away

    async def drain(self) -> None:
        self._draining = True

    # Called in the thread.

    @abstractmethod
    def _later_rows(self) -> int | None:
        """Rows that the states after the current one add; None if that is not known."""

    @abstractmethod
    def _begin(self) -> None:
        """Reach the table, and check that it is the one in the position; sets `_checked`."""

    @abstractmethod
    def _look(self) -> None:
        """Set `_files` to those of the current state, or of the next one; or call `_at_newest`."""

    @abstractmethod
    def _advance(self) -> None:
        """Called when all files of the state are done."""

    @abstractmethod
    def _rows(self, file: F, skipped: int) -> Iterator[list[bytes]]:
        """The rows of a file after the first `skip`, as JSON objects, in blocks."""

    @abstractmethod
    def _position(self) -> bytes:
        """The lane's position."""

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
            self._blocks = self._rows(self._files[self._done], self._row)
        block = next(self._blocks, None)
        self._reaching.worked()
        if block is None:
            self._blocks = None
            self._done, self._row = self._done + 1, 0
        else:
            self._values, self._next = block, 0

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
        size, begin = 0, self._next
        values: list[bytes] = []
        invalid: list[InvalidRecord] = []
        while self._next < len(self._values) and len(values) < records_max:
            value = self._values[self._next]
            if values and size + len(value) > bytes_max:
                break
            self._next += 1
            if len(value) > RECORD_BYTES_MAX:
                assert self._files is not None, "a row comes from a file"
                row = self._row + self._next - begin
                place = f"{self._place}, {self._files[self._done].path}, row {row}"
                reason = f"{place}: its JSON has {len(value)} bytes; the limit is 7 MiB"
                invalid.append(InvalidRecord(value[:_SHOWN_BYTES], reason, place))
                continue
            size += len(value) + 16
            values.append(value)
        self._row += self._next - begin
        now_us = self._owner.clock.now_us()
        frame = build_frame(values, array("q", [now_us]) * len(values), ingest_time_us=now_us) if values else None
        return SourceBatch(frame, self._position(), invalid=tuple(invalid))

    def _replaced(self, what: str) -> DamageError:
        return DamageError(
            codes.SOURCE_FILE_CHANGED,
            f"lane {self._owner.lane}: {self._named} is not the one that was read before: {what}. Records that were "
            "already read are kept. Put the table back as it was, or start over with --fresh",
        )
