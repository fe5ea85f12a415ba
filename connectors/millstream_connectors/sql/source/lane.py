"""Rows of a table or a query, in the order of their cursor, after the cursor in the lane's mark.

    the greatest cursor ─► pages up to it ─► frames ─► the end; or, with `follow`, the same again

The end is fixed when the lane is opened for the first time, and is part of its position. Each page is a separate
transaction, so the database holds nothing open while rows are processed. Above it: a source lane. Below it: the
statements (`query`), in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.errors import UserError
from millstream_connectors.shared.failing import on_failure, translating
from millstream_connectors.shared.faults import Fault, check_fit
from millstream_connectors.shared.query_lane import QueryLane
from millstream_connectors.sql.client import SqlThread, open_sql_thread
from millstream_connectors.sql.settings import SqlSource
from millstream_connectors.sql.source.query import Query, RepeatedError
from millstream_connectors.sql.source.values import Cursor, packed, unpacked
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

_log = logging.getLogger(__name__)


class SqlSourceLane(QueryLane[Cursor]):
    """One lane. See `SourceLane`."""

    kind = "sql"

    def __init__(self, spec: SqlSource, owner: SourceOwner, way: SqlThread) -> None:
        super().__init__(owner, _log)
        self._spec = spec
        self._way = way
        self._query = Query(spec, owner.lane.partition, owner.partitions)
        self._known: list[str] | None = None
        """The cursor's columns, from the position."""
        self._read: Cursor | None = None
        """Cursor of the last row that was read."""

    def close(self) -> None:
        self._way.close()

    def _restore(self) -> None:
        body = self._unpacked(self._owner.position)
        if body is None:
            return
        with self._restoring():
            self._known = list(map(str, body["cursor"]))
            self._at = None if body["at"] is None else unpacked(body["at"])
            self._end = None if body["end"] is None else unpacked(body["end"])
            if any(found and len(found) != len(self._known) for found in (self._at, self._end)):
                raise ValueError(self._known)
        self._read = self._at
        if self._spec.follow:
            self._end = None

    def _position(self) -> bytes:
        return self._packed(
            {
                "cursor": self._query.cursor,
                "at": None if self._at is None else packed(self._at),
                "end": None if self._end is None else packed(self._end),
            }
        )

    async def _connect(self) -> None:
        if self._way.is_open:
            return
        spec, query, way = self._spec, self._query, self._way
        await way.open()
        with on_failure(way.close), way.translated():
            check_fit(self._where, await way.run(query.prepare))
            if self._known is not None and self._known != list(query.cursor):
                raise UserError(
                    codes.SOURCE_CHANGED,
                    f"{self._where}: the cursor is now ({', '.join(query.cursor)}), and was "
                    f"({', '.join(self._known)}) in earlier runs; change it back, or start over with --fresh",
                )
            if self._end is None and not spec.follow:
                self._end = () if query.is_idle else await way.run(lambda c: query.last(c, None)) or ()
                self._check_kind(self._end)
        self._known = list(query.cursor)
        self._check_end()

    def _translated(self) -> AbstractContextManager[None]:
        return self._way.translated()

    def _check_kind(self, cursor: Cursor) -> None:
        try:
            packed(cursor)
        except TypeError as error:
            what = f"the cursor ({', '.join(self._query.cursor)}) has a value of the type {error}"
            raise UserError(
                codes.TARGET_UNFIT,
                f"{self._where}: {what}, which a position cannot store exactly; name columns of whole numbers, "
                "decimals, times or texts",
            ) from error

    async def _advance(self, until_s: float) -> None:
        query, way, spec = self._query, self._way, self._spec
        has_none = query.is_idle or self._finished
        end = self._end
        if end is None and not has_none:
            end = await way.run(lambda c: query.last(c, self._read))
        if end is None or has_none:
            self._reaching.worked()
            self._reaching.rest(spec.poll_every_s)
            return
        last = end
        self._check_kind(last)
        with translating(RepeatedError, lambda error: self._repeated(query.cursor, error.cursor)):
            page = await way.run(lambda c: query.page(c, self._read, last))
        for row in page.rows:
            self._check_kind(row.cursor)
        self._waiting.extend(page.rows)
        self._read = page.rows[-1].cursor if page.rows else self._read
        self._finished = page.is_all and not spec.follow
        self._reaching.worked()


@asynccontextmanager
async def open_sql_source(spec: SqlSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    async with open_sql_thread(spec, owner.base_dir, f"lane {owner.lane}", "sql-source") as way:
        lane = SqlSourceLane(spec, owner, way)
        await lane.open()
        yield lane


async def look(settings: SqlSource, base_dir: Path) -> list[Fault]:
    """What does not fit, of a database that is reached. Raises Millstream errors where it is not."""
    async with open_sql_thread(settings, base_dir, "validate --online", "sql-look") as way:
        await way.open()
        query = Query(settings, 0, 1)
        with way.translated():
            faults = await way.run(query.prepare)
            if not faults:
                await way.run(lambda c: query.last(c, None))
            return faults
