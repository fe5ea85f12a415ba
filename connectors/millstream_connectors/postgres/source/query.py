"""The statements of a `postgres` source: the greatest cursor, transactions in progress, and the rows of a range.

    last ─► the greatest cursor that is visible
    open_transactions ─► those that may still commit a row with a smaller one
    page ─► rows after a cursor, up to another

Every statement is here. The server creates the JSON of a row, so values have the text of `row_to_json`. Above it: the
lane, and `validate --online`. Below it: a connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millstream.limits import POSTGRES_PAGE_BYTES, POSTGRES_PAGE_ROWS, RECORD_BYTES_MAX
from millstream_connectors.postgres.client import Connection, looking
from millstream_connectors.postgres.settings import PostgresSource, quoted
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.query_lane import QueryRow

Cursor = tuple[str, ...]
"""Values of the cursor's columns, as the server writes them."""

_SHOWN = 1024
"""Characters of a row that is too large that are kept for messages."""
_FIRST_STEP, _LAST_STEP = 16, 4096
"""Rows fetched at once: few, until their size is known."""
_TRANSACTION_ID = "xid8"
BLIND = "the server is a standby, which does not show the transactions that are in progress on its primary"

_OPEN = """
SELECT l.virtualtransaction AS name, l.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
  AND a.usesysid IS NOT NULL AND a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL SELECT 'prepared as ' || gid, NULL FROM pg_prepared_xacts WHERE database = current_database()
"""
"""Every client transaction holds a lock on its own virtual id from its beginning to its end."""
_WRITING = """
SELECT DISTINCT l.virtualtransaction AS name, l.pid FROM pg_locks l
WHERE l.locktype = 'relation' AND l.relation = ANY($1::oid[]) AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
"""A statement locks its table before it computes a value of a row, and until its transaction ends."""
_MINE = "SELECT relation FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"


@dataclass(frozen=True, slots=True)
class Query:
    """The statements for one lane. The types are those of the cursor's columns on this server."""

    settings: PostgresSource
    types: Sequence[str]
    partition: int = 0
    partitions: int = 1

    @property
    def waits(self) -> bool:
        """Whether other transactions may still commit a row before a visible one."""
        return self.types[0] != _TRANSACTION_ID

    async def last(self, connection: Connection, after: Cursor | None) -> tuple[Cursor | None, Sequence[int]]:
        """The greatest cursor after `after`, None if there is none, and the tables that were read for it."""
        arguments: list[object] = []
        where = self._where(arguments, after, None)
        if not self.waits:
            # No more rows can appear with an id below that of every transaction in progress.
            where += f" AND {self._columns[0]} < pg_snapshot_xmin(pg_current_snapshot())"
        order = ", ".join(f"{column} DESC" for column in self._columns)
        statement = f"SELECT {self._texts} FROM ({self.settings.query}\n) q WHERE {where} ORDER BY {order} LIMIT 1"
        async with connection.transaction(readonly=True):
            row = await connection.fetchrow(statement, *arguments)
            tables = await connection.fetch(_MINE)
        return (None if row is None else tuple(row)), [table["relation"] for table in tables]

    async def open_transactions(self, connection: Connection, tables: Sequence[int]) -> Mapping[str, int | None]:
        """Transactions in progress that may still write a row of the query: their names, and the process ids."""
        if self.settings.wait_for == "writers":
            rows = await connection.fetch(_WRITING, tables)
        else:
            rows = await connection.fetch(_OPEN)
        return {row["name"]: row["pid"] for row in rows}

    async def page(
        self, connection: Connection, after: Cursor | None, end: Cursor
    ) -> tuple[list[QueryRow[Cursor]], bool]:
        """The first rows after `after` and up to `end`, at least two if there are as many, and whether these are
        all."""
        arguments: list[object] = []
        where = self._where(arguments, after, end)
        order = ", ".join(self._columns)
        names = ", ".join(f"c{index}" for index in range(len(self.types)))
        # Because of the LIMIT in the subquery, the JSON is computed once, although it is used three times.
        statement = (
            f"SELECT {names}, octet_length(j) AS size, CASE WHEN octet_length(j) <= {RECORD_BYTES_MAX} THEN j "
            f"ELSE left(j, {_SHOWN}) END AS value FROM (SELECT {self._texts}, row_to_json(q)::text AS j "
            f"FROM ({self.settings.query}\n) q WHERE {where} ORDER BY {order} LIMIT {POSTGRES_PAGE_ROWS}) r"
        )
        rows: list[QueryRow[Cursor]] = []
        size, step, count = 0, _FIRST_STEP, len(self.types)
        async with connection.transaction(readonly=True):
            portal = await connection.cursor(statement, *arguments)
            while True:
                found = await portal.fetch(step)
                rows += [QueryRow(tuple(row[:count]), row[count], row[count + 1].encode()) for row in found]
                size += sum(row["size"] for row in found)
                if len(found) < step:
                    return rows, len(rows) < POSTGRES_PAGE_ROWS
                if size >= POSTGRES_PAGE_BYTES and len(rows) > 1:
                    return rows, False
                mean = size // len(rows) + 1
                step = max(1, min(_LAST_STEP, 4 * step, (POSTGRES_PAGE_BYTES - size) // mean + 1))

    @property
    def _columns(self) -> list[str]:
        return [f"q.{quoted(name)}" for name in self.settings.cursor]

    @property
    def _texts(self) -> str:
        return ", ".join(f"{column}::text AS c{index}" for index, column in enumerate(self._columns))

    def _where(self, arguments: list[object], after: Cursor | None, end: Cursor | None) -> str:
        row = f"({', '.join(self._columns)})"
        terms = [f"{column} IS NOT NULL" for column in self._columns]
        for sign, bound in ((">", after), ("<=", end)):
            if bound is not None:
                values = [f"${len(arguments) + 1 + index}::text::{of}" for index, of in enumerate(self.types)]
                terms.append(f"{row} {sign} ({', '.join(values)})")
                arguments += bound
        if self.partitions > 1:
            # This hash is the same in every release of the server.
            digits = f"substr(md5({' || chr(9) || '.join(f'{column}::text' for column in self._columns)}), 1, 8)"
            terms.append(f"('x' || {digits})::bit(32)::bigint % {self.partitions} = {self.partition}")
        return " AND ".join(terms)


async def prepare(connection: Connection, settings: PostgresSource) -> tuple[Sequence[str], list[Fault]]:
    """The types of the cursor's columns, and problems of the query."""
    statement = await connection.prepare(f"SELECT * FROM ({settings.query}\n) q LIMIT 0")
    names = [attribute.name for attribute in statement.get_attributes()]
    attributes = {attribute.name: attribute.type.oid for attribute in statement.get_attributes()}
    faults = [
        Fault(("cursor", index), f"the query has no column `{name}`", f"one of {', '.join(attributes)}")
        for index, name in enumerate(settings.cursor)
        if name not in attributes
    ]
    faults += [
        Fault(("query",), f"the query has several columns `{name}`", "each name once, by `AS`")
        for name in attributes
        if names.count(name) > 1
    ]
    if faults:
        return (), faults
    types: list[str] = [
        await connection.fetchval("SELECT format_type($1, NULL)", attributes[name]) for name in settings.cursor
    ]
    return types, faults


async def set_up(connection: Connection) -> None:
    """Prepare a new connection: it is read-only, and each plan is made for its values."""
    await connection.execute(
        "SET default_transaction_read_only TO on; SET plan_cache_mode TO force_custom_plan; SET jit TO off"
    )


async def is_blind(connection: Connection, query: Query) -> bool:
    """Whether the source needs the transactions in progress and the server does not show them."""
    follows = not query.settings.stop_at_end
    return follows and query.waits and bool(await connection.fetchval("SELECT pg_is_in_recovery()"))


async def look(settings: PostgresSource, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(settings, base_dir) as connection:
        await set_up(connection)
        types, faults = await prepare(connection, settings)
        if faults:
            return faults
        query = Query(settings, types)
        await query.last(connection, None)
        if await is_blind(connection, query):
            return [Fault(("host",), BLIND, "the primary; or `stopAtEnd: true`, or a first column of type xid8")]
        return []
