"""A lane that reads the rows of a query in the order of their cursor, page by page.

    rows that wait ─► batch, position after it
         ▲
         └── pages, while none wait: what a subclass fetches, from the cursor of the last row on

Above it: a source lane. Below it: a subclass, which knows the database.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.frame import build_frame
from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.reaching import RemoteLane
from millstream_reader.connector import SourceOwner
from millstream_reader.source import InvalidRecord, SourceBatch

CursorT = TypeVar("CursorT", bound="tuple[object, ...]")


class QueryRow(NamedTuple, Generic[CursorT]):
    """One row of a query."""

    cursor: CursorT
    size: int
    """Bytes of the value."""
    value: bytes
    """The row as a JSON object; only its beginning if it is larger than a record may be."""


class QueryLane(RemoteLane, ABC, Generic[CursorT]):
    """One lane. See `SourceLane`."""

    def __init__(self, owner: SourceOwner, log: logging.Logger) -> None:
        super().__init__(owner, log)
        self._at: CursorT | None = None
        """Cursor of the last row that was returned."""
        self._end: CursorT | None = None
        """Cursor of the last row to read, if the first run has fixed it; empty if there were no rows."""
        self._waiting: deque[QueryRow[CursorT]] = deque()
        self._finished = False

    async def open(self) -> None:
        """Errors: those of `SourceConnector.open`."""
        self._restore()
        await self._connect()

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> SourceBatch:
        if not self._waiting and not self._finished and not self._draining:
            await self._fill(timeout_s)
        values: list[bytes] = []
        invalid: list[InvalidRecord] = []
        size = 0
        while self._waiting and len(values) < records_max:
            row = self._waiting[0]
            if values and size + row.size > bytes_max:
                break
            self._waiting.popleft()
            self._at = row.cursor
            if row.size > RECORD_BYTES_MAX:
                place = f"the row with the cursor ({', '.join(map(str, row.cursor))})"
                reason = f"{place}: its JSON has {row.size} bytes; the limit is {RECORD_BYTES_MAX}"
                invalid.append(InvalidRecord(row.value, reason, place))
                continue
            size += row.size
            values.append(row.value)
        now_us = self._owner.clock.now_us()
        frame = build_frame(values, array("q", [now_us]) * len(values), ingest_time_us=now_us) if values else None
        return SourceBatch(frame, self._position(), self._finished and not self._waiting, tuple(invalid))

    def pending(self) -> int | None:
        """Rows of a page that wait; None if later rows were not counted."""
        return len(self._waiting) if self._finished else None

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    async def _fill(self, timeout_s: float) -> None:
        """Fetch rows, up to the timeout."""
        until_s = self._now_s() + timeout_s
        if not await self._reaching.may_try(timeout_s):
            return
        try:
            with on_failure(self.close), self._translated():
                await self._connect()
                await self._advance(until_s)
        except RetryLaterError as error:
            self._reaching.failed(error)

    def _check_end(self) -> None:
        """Note whether all rows up to the end were returned."""
        self._finished = self._finished or self._end == () or (self._end is not None and self._end == self._at)

    def _repeated(self, columns: Sequence[str], cursor: Sequence[object]) -> UserError:
        """The error for several rows with the same cursor."""
        return UserError(
            codes.TARGET_UNFIT,
            f"{self._where}: several rows have the cursor ({', '.join(columns)}) = ({', '.join(map(str, cursor))}), so "
            "a position cannot separate them. Name columns that together identify a row, for example with the "
            "primary key last",
        )

    @abstractmethod
    def _restore(self) -> None:
        """Continue at the position of the lane's mark."""

    @abstractmethod
    def _position(self) -> bytes:
        """The position after the last row that was returned."""

    @abstractmethod
    async def _connect(self) -> None:
        """Ensure a connection on which the query was checked. Raises Millstream errors."""

    @abstractmethod
    async def _advance(self, until_s: float) -> None:
        """Fetch a page, if there is one before that time. Raises Millstream errors and those of the client."""

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Converts errors of the client to Millstream errors."""
