"""Reads the rows of a snapshot, by key, part by part.

    part: one transaction, which sees one state ─► pages of rows ─► records
      └── begun again after the last row that was returned, when it has lasted long or its connection is lost

Above it: `cdc`. Below it: the server's catalog (`catalog`), and a connection of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from millstream import codes
from millstream.clock import Clock
from millstream.errors import UserError
from millstream.limits import POSTGRES_SNAPSHOT_PART_S
from millstream_connectors.postgres.client import Connection
from millstream_connectors.postgres.replication import CdcLogin, lsn_of
from millstream_connectors.postgres.source import catalog
from millstream_connectors.postgres.source.changes import Table, Tail, tail_of
from millstream_connectors.postgres.source.pgoutput import Texts
from millstream_connectors.postgres.source.snapshot import Bound, Key, Snapshot, parse_seen
from millstream_connectors.shared.failing import on_failure
from millstream_connectors.shared.record_batch import RecordBatch

_FIRST_ROWS = 16
"""Rows of a page, until the size of rows is known."""


class _Row(NamedTuple):
    """A waiting row."""

    page: catalog.Page
    texts: Texts
    after: Bound | None
    """The place in the snapshot after it."""


class SnapshotReader:
    """The rows from `snapshot.at` on, until that is None."""

    def __init__(self, login: CdcLogin, clock: Clock, snapshot: Snapshot, since_us: int) -> None:
        """`since_us`: the event time of the rows."""
        self._login = login
        self._clock = clock
        self._snapshot = snapshot
        self._since_us = since_us
        self._connection: Connection | None = None
        """The connection with the transaction of the current part."""
        self._tail: Tail | None = None
        self._begun_s = 0.0
        self._pages: dict[int, catalog.Page] = {}
        self._rows: deque[_Row] = deque()
        self._read_upto: Bound | None = None
        """Where the next page begins."""
        self._page_rows = _FIRST_ROWS

    @property
    def is_done(self) -> bool:
        """Whether all rows were returned."""
        return self._snapshot.at is None

    def close(self) -> None:
        """Close the connection. Rows that were fetched and not returned are fetched again."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        self._rows.clear()

    async def fill(self) -> None:
        """Fetch a page, unless rows wait. Raises what asyncpg raises, and Millstream errors."""
        if self._rows:
            return
        if self._connection is not None and self._clock.monotonic_s() >= self._begun_s + POSTGRES_SNAPSHOT_PART_S:
            self.close()
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._begin_part()
        at = self._read_upto
        assert at is not None, "the snapshot is not complete"
        page = self._pages[at.table]
        found = await page.read(self._connection, at.key, self._page_rows)
        size = sum(len(text) for texts in found for text in texts if isinstance(text, bytes))
        self._rows.extend(_Row(page, texts, Bound(at.table, key_of(texts, page.places))) for texts in found)
        if len(found) == self._page_rows:
            self._read_upto = self._rows[-1].after
            self._page_rows = catalog.rows_within(self._page_rows, size)
            return
        self._read_upto = self._snapshot.after(at.table)
        self._page_rows = _FIRST_ROWS
        if found:
            self._rows[-1] = self._rows[-1]._replace(after=self._read_upto)
        else:
            self._moved(self._read_upto)

    def take(self, into: RecordBatch, records_max: int, bytes_max: int) -> None:
        """Add the next rows to a batch."""
        while self._rows and len(into.values) < records_max:
            row = self._rows[0]
            assert self._tail is not None, "a part was begun"
            assert row.page.shape is not None, "a part was begun"
            made = row.page.shape.record("r", None, False, row.texts, self._tail, 0)
            size = len(made.value)
            if not into.fits(size, bytes_max):
                return
            self._rows.popleft()
            self._moved(row.after)
            into.add(made.value, self._tail.time_us, f"a row of {row.page.table.path}", size=size, keys=made.keys)

    async def _begin_part(self) -> Connection:
        """Begin a transaction that sees one state, for the rows from here on."""
        snapshot = self._snapshot
        connection = await self._login.connect()
        with on_failure(connection.terminate):
            await connection.execute("SET idle_in_transaction_session_timeout TO 0; SET statement_timeout TO 0")
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            seen = await connection.fetchval("SELECT pg_current_snapshot()::text")
            until = lsn_of(await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
            tables = {table.path: table for table in await catalog.published(connection, self._login.cdc)}
            self._pages = {}
            for number, table in enumerate(snapshot.tables):
                now = tables.get(f"{table.schema}.{table.name}")
                if snapshot.at is not None and number < snapshot.at.table:
                    continue
                if now is None or now.keys != table.keys:
                    raise UserError(
                        codes.SOURCE_CHANGED,
                        f"{self._login.where}: {table.schema}.{table.name} is no longer published, or its primary key "
                        "has changed, while its rows are being read. Change it back, or start over with --fresh",
                    )
                self._pages[number] = await catalog.page_of(connection, now)
            for number, page in self._pages.items():
                types = await catalog.user_types(connection, [column.type_oid for column in page.relation.columns])
                page.shape = Table(page.relation, [name for name, _ in snapshot.tables[number].keys], types)
        snapshot.begin(parse_seen(seen), until)
        self._tail = tail_of(until, self._since_us, None)
        self._begun_s = self._clock.monotonic_s()
        self._read_upto = snapshot.at
        self._page_rows = _FIRST_ROWS
        return connection

    def _moved(self, at: Bound | None) -> None:
        """Set the place after the last row that was returned."""
        self._snapshot.at = at
        if at is None:
            self.close()


def key_of(texts: Texts, places: Sequence[int]) -> Key:
    """The key of a row, whose columns are at these places."""
    found = [texts[place] for place in places]
    return tuple(text.decode("utf-8", "surrogateescape") for text in found if isinstance(text, bytes))
