"""What a source of changes asks the server: published tables, the columns that identify rows, the state of its slot.

Every statement other than replication itself is here. Above it: the lane, and `validate --online`. Below it: a
connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream.durable import step
from millstream.json_parser import parse_json
from millstream.limits import POSTGRES_PAGE_BYTES
from millstream_connectors.postgres.client import Connection, looking
from millstream_connectors.postgres.replication import lsn_of
from millstream_connectors.postgres.settings import PostgresCdc, PostgresSource, quoted, quoted_table
from millstream_connectors.postgres.source import publication
from millstream_connectors.postgres.source.changes import Table
from millstream_connectors.postgres.source.pgoutput import Column, Relation, Texts
from millstream_connectors.postgres.source.snapshot import Key, Snapshot
from millstream_connectors.postgres.source.texts import KnownType, is_plain
from millstream_connectors.shared.faults import Fault

PLUGIN = "pgoutput"
_PUBLISHED = """
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relreplident::text AS identity,
  has_any_column_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE') AS may_read,
  to_jsonb(t) -> 'attnames' AS columns, to_jsonb(t) ->> 'rowfilter' AS filter
FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = $1 ORDER BY 2, 3
"""
_KEYS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod)
  || CASE WHEN a.attcollation IN (0, 100) THEN '' ELSE (SELECT format(' COLLATE %I.%I', n.nspname, l.collname)
       FROM pg_collation l JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = a.attcollation) END AS type
FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
WHERE c.oid = $1 AND k.place <= i.indnkeyatts
  AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
"""
_COLUMNS = """
SELECT attname AS name, atttypid AS type FROM pg_attribute
WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_SLOT = """
SELECT plugin, database, active_pid, wal_status, safe_wal_size,
  confirmed_flush_lsn::text AS confirmed, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS held
FROM pg_replication_slots WHERE slot_name = $1
"""
_SERVER = """
SELECT current_setting('wal_level') AS wal_level, current_setting('max_slot_wal_keep_size') AS keep,
  (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user) AS may_replicate,
  pg_is_in_recovery() AS is_standby, (SELECT system_identifier FROM pg_control_system())::text AS system
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table whose changes a publication includes."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    may_read: bool
    columns: Sequence[str] | None
    """The published columns; None for all."""
    filter: str | None
    """The publication's row filter."""
    keys: tuple[tuple[str, str], ...]
    """The columns that identify a row, each with its type."""

    @property
    def path(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Slot:
    """The server's information about a replication slot."""

    plugin: str | None
    database: str | None
    active_pid: int | None
    status: str
    """`lost`: the server has removed WAL that the slot needs."""
    confirmed_lsn: int
    held: int
    """Bytes of the WAL that are kept for it."""
    left: int | None
    """Bytes until it is lost; None if there is no limit, or it is unknown."""


class ServerSettings(NamedTuple):
    """The settings of a server."""

    wal_level: str
    keeps: str
    """`max_slot_wal_keep_size`."""
    may_replicate: bool
    is_standby: bool
    system: str


async def server_of(connection: Connection) -> ServerSettings:
    """The settings of the server, and the permissions of the role."""
    row = await connection.fetchrow(_SERVER)
    assert row is not None
    return ServerSettings(*row)


async def flushed_lsn(connection: Connection) -> int:
    """How far the WAL is on disk."""
    return lsn_of(await connection.fetchval("SELECT pg_current_wal_flush_lsn()::text"))


async def slot_of(connection: Connection, name: str) -> Slot | None:
    """The slot; None if there is none of that name."""
    row = await connection.fetchrow(_SLOT, name)
    if row is None:
        return None
    return Slot(
        row["plugin"],
        row["database"],
        row["active_pid"],
        row["wal_status"] or "lost",
        lsn_of(row["confirmed"]) if row["confirmed"] else 0,
        row["held"] or 0,
        row["safe_wal_size"],
    )


async def published(connection: Connection, cdc: PostgresCdc) -> list[PublishedTable]:
    """The tables of the publication that the source reads, in the order of their names."""
    found = []
    for row in await connection.fetch(_PUBLISHED, cdc.publication):
        columns = None if row["columns"] is None else parse_json(row["columns"])
        known = tuple((key["name"], key["type"]) for key in await connection.fetch(_KEYS, row["oid"]))
        named = (row["oid"], row["schema"], row["name"], row["kind"], row["identity"], row["may_read"])
        table = PublishedTable(*named, columns, row["filter"], known)
        if not cdc.tables or table.path in cdc.table_paths:
            found.append(table)
    return found


async def faults_of(connection: Connection, settings: PostgresSource, cdc: PostgresCdc) -> list[Fault]:
    """What does not fit the settings. Changes nothing."""
    server = await server_of(connection)
    if server.wal_level != "logical":
        what = f"the server's wal_level is `{server.wal_level}`"
        return [Fault(("host",), what, "`wal_level = logical` in postgresql.conf, and a restart")]
    if not server.may_replicate:
        what = f"the role {settings.user} is not allowed to replicate"
        return [Fault(("user",), what, f"ALTER ROLE {quoted(settings.user)} REPLICATION")]
    if not await publication.exists(connection, cdc):
        if cdc.create_publication:
            faults = await publication.faults_of_creation(connection, settings, cdc)
            return faults or await _slot_faults(connection, cdc)
        tables = ", ".join(quoted_table(table) for table in cdc.tables) or "…"
        what = f"there is no publication `{cdc.publication}`"
        statement = f"CREATE PUBLICATION {quoted(cdc.publication)} FOR TABLE {tables}"
        return [Fault(("cdc", "publication"), what, f"{statement}; or `createPublication: true`")]
    tables_found = await published(connection, cdc)
    faults = await publication.faults_of_missing(connection, cdc)
    if cdc.snapshot == "initial":
        faults += [
            Fault(
                ("cdc", "snapshot"),
                f"{table.path} has no primary key, so its rows cannot be read in a fixed order",
                "a primary key; or `snapshot: never`",
            )
            for table in tables_found
            if not table.keys
        ]
        faults += [
            Fault(
                ("user",),
                f"the role {settings.user} may not read the rows of {table.path}",
                f"GRANT SELECT ON {quoted_table(table.path)} TO {quoted(settings.user)}; or `snapshot: never`",
            )
            for table in tables_found
            if not table.may_read
        ]
    return faults + await _slot_faults(connection, cdc)


async def _slot_faults(connection: Connection, cdc: PostgresCdc) -> list[Fault]:
    slot = await slot_of(connection, cdc.slot)
    if slot is None or slot.plugin == PLUGIN:
        return []
    return [Fault(("cdc", "slot"), f"the slot `{cdc.slot}` uses the plugin {slot.plugin}", f"a slot with {PLUGIN}")]


async def create_slot(connection: Connection, cdc: PostgresCdc) -> None:
    """Create the slot: from now on the server keeps its WAL. Waits for transactions in progress."""
    with step("postgres_cdc.slot"):
        await connection.execute("SELECT pg_create_logical_replication_slot($1, $2)", cdc.slot, PLUGIN)


async def drop_slot(connection: Connection, cdc: PostgresCdc) -> None:
    """Remove the slot."""
    await connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", cdc.slot
    )


async def running(connection: Connection) -> set[str]:
    """Transactions that are in progress, or committed and not visible yet."""
    return {row["xid"] for row in await connection.fetch("SELECT pg_snapshot_xip(pg_current_snapshot())::text AS xid")}


async def user_types(connection: Connection, oids: Iterable[int]) -> Mapping[int, KnownType]:
    """Domains and arrays, with their base types and elements."""
    found: dict[int, KnownType] = {}
    wanted = {oid for oid in oids if not is_plain(oid)}
    asked: set[int] = set()
    while wanted:
        asked |= wanted
        rows = await connection.fetch(
            "SELECT oid, typbasetype AS base, CASE WHEN typcategory = 'A' THEN typelem ELSE 0 END AS element, "
            "(SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem) AS delimiter "
            "FROM pg_type t WHERE oid = ANY($1::oid[])",
            list(wanted),
        )
        for row in rows:
            found[row["oid"]] = KnownType(row["base"], row["element"], row["delimiter"] or b",")
        parts = {part for row in rows for part in (row["base"], row["element"]) if part}
        wanted = {oid for oid in parts if not is_plain(oid)} - asked
    return found


async def keys_of(connection: Connection, relation: Relation) -> Sequence[str]:
    """The columns that identify a row: as the relation says, or from the catalog if the relation names all columns."""
    if relation.identity != "f":
        return [column.name for column in relation.columns if column.in_identity]
    return [row["name"] for row in await connection.fetch(_KEYS, relation.oid)]


class Page:
    """Statements that read a table of the snapshot in the order of its key, page by page."""

    def __init__(self, table: PublishedTable, columns: Sequence[Column]) -> None:
        self.table = table
        self.relation = Relation(table.oid, table.schema, table.name, table.identity, tuple(columns))
        names = [column.name for column in columns]
        self.places = [names.index(name) for name, _ in table.keys]
        self.shape: Table | None = None
        """The conversion of its rows to records."""

    async def read(self, connection: Connection, after: Key | None, rows: int) -> list[Texts]:
        """The statement for at most `rows` rows after that key."""
        table = self.table
        keys = ", ".join(quoted(name) for name, _ in table.keys)
        terms = [f"({table.filter})"] if table.filter else []
        if after is not None:
            terms.append(f"({keys}) > ({literals(after, table.keys)})")
        columns = ", ".join(quoted(column.name) for column in self.relation.columns)
        # Rows of tables that inherit from it are published under those tables.
        only = "ONLY " if table.kind == "r" else ""
        statement = (
            f"SELECT {columns} FROM {only}{quoted(table.schema)}.{quoted(table.name)}"
            f"{' WHERE ' + ' AND '.join(terms) if terms else ''} ORDER BY {keys} LIMIT {rows}"
        )
        data = bytearray()

        async def keep(part: bytes) -> None:
            data.extend(part)

        await connection.copy_from_query(statement, output=keep)
        return [_texts(line) for line in bytes(data).split(b"\n")[:-1]]


async def page_of(connection: Connection, table: PublishedTable) -> Page:
    """The statements for a table."""
    rows = await connection.fetch(_COLUMNS, table.oid)
    wanted = None if table.columns is None else set(table.columns)
    identity = {name for name, _ in table.keys}
    columns = [
        Column(row["name"], row["type"], row["name"] in identity)
        for row in rows
        if wanted is None or row["name"] in wanted
    ]
    return Page(table, columns)


def rows_within(rows: int, size: int) -> int:
    """How many rows to read at once, from the size of previous ones."""
    return max(1, min(4 * rows, POSTGRES_PAGE_BYTES // (size // max(1, rows) + 1)))


async def regions(connection: Connection, snapshot: Snapshot, table: int, keys: Sequence[Key]) -> list[int]:
    """Which part of the snapshot has each key, in the server's order."""
    types = snapshot.tables[table].keys
    _, last = snapshot.parts_of(table)
    names = ", ".join(f"c{index}" for index in range(len(types)))
    cases = " ".join(
        f"WHEN ROW({names}) <= ROW({literals(bound, types)}) THEN {number}"
        for number, bound in snapshot.bounds_of(table)
    )
    values = ", ".join(f"({number}, {literals(key, types)})" for number, key in enumerate(keys))
    statement = f"SELECT CASE {cases} ELSE {last} END FROM (VALUES {values}) v (n, {names}) ORDER BY n"
    return [row[0] for row in await connection.fetch(statement)]


def literals(key: Key, types: Sequence[tuple[str, str]]) -> str:
    """The values of a key as literals for a statement."""
    quote = "'"
    return ", ".join(f"'{text.replace(quote, quote * 2)}'::{of}" for text, (_, of) in zip(key, types, strict=True))


_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def _texts(line: bytes) -> Texts:
    """The values of a COPY line."""
    if b"\\" not in line:
        return list(line.split(b"\t"))
    return [None if text == b"\\N" else _unescaped(text) for text in line.split(b"\t")]


def _unescaped(text: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


async def look(settings: PostgresSource, cdc: PostgresCdc, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(settings, base_dir) as connection:
        return await faults_of(connection, settings, cdc)
