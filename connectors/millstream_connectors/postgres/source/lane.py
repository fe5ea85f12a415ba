"""Rows of a PostgreSQL query, in the order of their cursor, after the cursor in the lane's mark.

    the greatest cursor that is visible ─► wait for the transactions that were in progress ─► pages up to it ─► frames
            ▲                                                                                  │
            └────────────────────────── pollEvery, when there is nothing new ◄─────────────────┘

A row may be committed after one with a greater cursor: its transaction took the value earlier and ended later. So new
rows are read in rounds. A round ends at the greatest cursor that is visible when it begins, and its rows are read only
after every transaction that was in progress then has ended: a transaction that takes its value later takes a greater
one. This needs no locks, and the source keeps no transaction open while rows are processed.

Above it: a source lane. Below it: the statements (`query`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing
from dataclasses import replace

from millstream import codes
from millstream.errors import RetryLaterError, UserError
from millstream.limits import POSTGRES_OPEN_REPORTED_EVERY_S
from millstream.pauses import Pauses
from millstream_connectors.postgres.client import Connection, Login
from millstream_connectors.postgres.settings import PostgresSource
from millstream_connectors.postgres.source.query import BLIND, Cursor, Query, is_blind, prepare, set_up
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.faults import check_fit
from millstream_connectors.shared.query_lane import QueryLane, QueryRow
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

_LOOK_FIRST_S, _LOOK_LAST_S = 0.005, 0.1
"""Pause between checks of transactions that the lane waits for."""
_ALIKE = (
    frozenset(("smallint", "integer", "bigint", "numeric")),
    frozenset(("text", "character varying")),
    frozenset(("timestamp without time zone", "date")),
)
"""Types with the same sort order: a column may change from one to another."""

_log = logging.getLogger(__name__)


class PostgresQueryLane(QueryLane[Cursor]):
    """One lane. See `SourceLane`."""

    kind = "postgres"
    noun = "a postgres source with `query`"

    def __init__(self, spec: PostgresSource, owner: SourceOwner) -> None:
        super().__init__(owner, _log)
        self._spec = spec
        self._login = Login(spec, owner.base_dir, self._where, f"millstream {owner.lane}"[:60])
        self._connection: Connection | None = None
        self._query = Query(spec, (), owner.lane.partition, owner.partitions)
        self._known_types: Sequence[str] = ()
        self._round: Cursor | None = None
        """Where the current round ends; None between rounds."""
        self._open: Mapping[str, int | None] = {}
        """Transactions that the round waits for."""
        self._tables: Sequence[int] = ()
        """The tables that the query reads."""
        self._waits_since_s = 0.0
        self._reported_s = 0.0
        self._look = Pauses(_LOOK_FIRST_S, _LOOK_LAST_S)

    def pending(self) -> int | None:
        """Rows of a page that wait; None if later rows were not counted."""
        return super().pending() if self._round is not None else len(self._waiting)

    def is_held_up(self) -> bool:
        # Rows wait for transactions that may still write others before them.
        return super().is_held_up() or bool(self._open)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    # The lane's position

    def _restore(self) -> None:
        spec = self._spec
        body = self._unpacked(self._owner.position)
        if body is None:
            return
        with self._restoring():
            known: dict[str, str] = body["cursor"]
            self._at = None if body["at"] is None else tuple(map(str, body["at"]))
            self._end = None if body["end"] is None else tuple(map(str, body["end"]))
            self._known_types = tuple(known.values())
            names = tuple(known)
            if any(found and len(found) != len(names) for found in (self._at, self._end)):
                raise ValueError(names)
        if names != spec.cursor:
            raise UserError(
                codes.SOURCE_CHANGED,
                f"{self._where}: the cursor is now ({', '.join(spec.cursor)}), and was ({', '.join(names)}) in "
                "earlier runs. Change it back, or start over with --fresh",
            )
        if not spec.stop_at_end:
            self._end = None

    def _position(self) -> bytes:
        return self._packed(
            {
                "at": self._at,
                "end": self._end,
                "cursor": dict(zip(self._spec.cursor, self._query.types, strict=True)),
            }
        )

    def _check_types(self, types: Sequence[str]) -> None:
        """Check the types of the columns: another type has other values, or another order."""
        for name, now, before in zip(self._spec.cursor, types, self._known_types, strict=False):
            if now != before and not any(now in alike and before in alike for alike in _ALIKE):
                raise UserError(
                    codes.SOURCE_CHANGED,
                    f"{self._where}: the cursor's column `{name}` is now of type {now}, and was of type {before} in "
                    "earlier runs, so the stored position does not apply to it. Change it back, or start over with "
                    "--fresh",
                )

    async def _connect(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            return
        spec = self._spec
        connection = await self._login.connect()
        with on_failure(connection.terminate), self._login.translated():
            async with asyncio.timeout(spec.timeout_s):
                await set_up(connection)
                types, faults = await prepare(connection, spec)
                check_fit(self._where, faults)
                self._check_types(types)
                self._query = replace(self._query, types=types)
                if await is_blind(connection, self._query):
                    raise RetryLaterError(codes.TARGET_AWAY, f"{self._where}: PostgreSQL at {spec.host}: {BLIND}")
                if spec.stop_at_end and self._end is None:
                    self._end = (await self._query.last(connection, None))[0] or ()
        self._check_end()
        self._known_types = types
        self._connection = connection

    def _translated(self) -> AbstractContextManager[None]:
        return self._login.translated()

    # Reading

    async def _advance(self, until_s: float) -> None:
        connection = self._connection
        assert connection is not None, "it was opened before"
        async with asyncio.timeout(self._spec.timeout_s):
            if self._round is None:
                await self._begin_round(connection)
            if self._open and not await self._all_ended(connection, until_s):
                return
            if self._round is not None:
                rows, is_all = await self._query.page(connection, self._at, self._round)
                self._check_identity(rows)
                # The last cursor is read again, to find other rows with the same cursor.
                self._waiting.extend(rows if is_all else rows[:-1])
                if is_all:
                    self._round = None
                    self._finished = self._spec.stop_at_end
        self._reaching.worked()

    async def _begin_round(self, connection: Connection) -> None:
        if self._end is not None:
            self._round = self._end
            return
        self._round, self._tables = await self._query.last(connection, self._at)
        if self._round is None:
            self._reaching.rest(self._spec.poll_every_s)
        elif self._query.waits:
            # Queried after the cursor: a transaction that took a smaller value is among them, or has ended and is
            # visible.
            self._open = await self._query.open_transactions(connection, self._tables)
            self._waits_since_s = self._reported_s = self._now_s()
            self._look.begin_again()

    async def _all_ended(self, connection: Connection, until_s: float) -> bool:
        """Whether all transactions that the round waits for have ended before the timeout."""
        while True:
            now = await self._query.open_transactions(connection, self._tables)
            self._open = {name: pid for name, pid in self._open.items() if name in now}
            now_s = self._now_s()
            if not self._open or now_s >= until_s:
                break
            await asyncio.sleep(min(self._look.take(), until_s - now_s))
        if self._open and now_s >= self._reported_s + POSTGRES_OPEN_REPORTED_EVERY_S:
            self._reported_s = now_s
            _log.warning(
                "%s: has waited %.0f s for open transactions of %s that may still write rows before the newest "
                "ones: %s. pg_stat_activity shows them; end any that were forgotten",
                self._where,
                now_s - self._waits_since_s,
                self._spec.database,
                ", ".join(name if pid is None else f"process {pid}" for name, pid in self._open.items())[:500],
            )
        return not self._open

    def _check_identity(self, rows: Sequence[QueryRow[Cursor]]) -> None:
        """A position could not separate rows with the same cursor."""
        before = self._at
        for row in rows:
            if row.cursor == before:
                raise self._repeated(self._spec.cursor, row.cursor)
            before = row.cursor


@asynccontextmanager
async def open_query(spec: PostgresSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`."""
    with closing(PostgresQueryLane(spec, owner)) as lane:
        await lane.open()
        yield lane
