"""The tables of the sink: the user's, and two for the sink's own positions.

    millstream_positions            a row for each lane: run, owner, epoch, position, name of the last frame
    millstream_positions_refused    a row for each record that was set aside: its place and the reason

Every statement of the sink is here. Above it: the lane, and `validate --online`. Below it: a connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, groupby
from pathlib import Path
from typing import cast

from msgspec.structs import astuple

from millstream.durable import step
from millstream.record import Position
from millstream_connectors.postgres.client import Connection, looking
from millstream_connectors.postgres.settings import PostgresSink, quoted, quoted_table
from millstream_connectors.postgres.sink.rows import ArrayColumn, PartialLine
from millstream_connectors.postgres.sink.typed import Row
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.kept import TargetPosition
from millstream_connectors.shared.refusable import UnfitError
from millstream_connectors.shared.tables.names import table_parts
from millstream_connectors.shared.tables.settings import TableColumn

_BATCH = "millstream_batch"
_LATEST = "millstream_latest"
"""The temporary table of the last values of each key, for batches in which records do not have all columns."""
_ROW, _DELETE, _ABSENT = "millstream_row", "millstream_delete", "millstream_absent"
"""Columns of the temporary table of a batch: the order of its records, whether a record deletes, and the indexes of
the columns that it does not have."""


class PostgresStatements:
    """The statements for one sink."""

    def __init__(self, settings: PostgresSink, line_of: Callable[[bytes | Row], bytes] | None = None) -> None:
        """`line_of`: encodes a row as a line, for a sink that writes."""
        self._settings = settings
        self._line_of = line_of
        self._schema, self._name = table_parts(settings.table)
        self._table = quoted_table(settings.table)
        self.positions = quoted_table(settings.position_table)
        self._refused = quoted_table(f"{settings.position_table}_refused")
        self._columns = [column.name for column in settings.row]
        self._is_staged = settings.mode != "insert"
        self._line_columns = [*self._columns, _DELETE] if settings.delete_when is not None else list(self._columns)
        """The columns of a line."""
        if settings.mode == "upsert":
            self._line_columns.append(_ABSENT)

    async def create(self, connection: Connection) -> None:
        """Create the tables that do not exist."""
        settings = self._settings
        wanted = [settings.position_table, f"{settings.position_table}_refused"]
        wanted += [settings.table] if settings.create_table else []
        names = [quoted_table(table) for table in wanted]
        if None not in [await connection.fetchval("SELECT to_regclass($1)", name) for name in names]:
            return
        # Two lanes that create a table at the same time could fail, although both accept an existing one.
        with step("postgres_sink.create"):
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(hashtext('millstream'))")
                for statement in self._definitions():
                    await connection.execute(statement)

    def _definitions(self) -> Iterator[str]:
        lane = "pipeline text NOT NULL, lane text NOT NULL"
        place = "sequence bigint NOT NULL, record bigint NOT NULL"
        yield (
            f"CREATE TABLE IF NOT EXISTS {self.positions} ({lane}, run text NOT NULL, epoch bigint NOT NULL, "
            f"owner text NOT NULL, {place}, frame text NOT NULL, changed timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (pipeline, lane)) WITH (fillfactor = 50)"
        )
        yield (
            f"CREATE TABLE IF NOT EXISTS {self._refused} ({lane}, {place}, reason text NOT NULL, "
            "detail text NOT NULL, PRIMARY KEY (pipeline, lane, sequence, record))"
        )
        if self._settings.create_table:
            columns = [f"{quoted(column.name)} {_type_of(column)}" for column in self._settings.row]
            keys = ", ".join(map(quoted, self._settings.keys))
            columns += [f"PRIMARY KEY ({keys})"] if keys else []
            yield f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(columns)})"

    async def prepare(self, connection: Connection) -> None:
        """Prepares a new connection."""
        if self._is_staged:
            names = ", ".join(map(quoted, self._columns))
            await connection.execute(
                f"CREATE TEMP TABLE {_BATCH} ON COMMIT DELETE ROWS AS SELECT {names}, false AS {_DELETE}, "
                f"NULL::int[] AS {_ABSENT} FROM {self._table} WITH NO DATA; "
                f"CREATE TEMP TABLE {_LATEST} (LIKE {_BATCH}) ON COMMIT DELETE ROWS; "
                f"ALTER TABLE {_BATCH} ALTER COLUMN {_DELETE} SET DEFAULT {self._settings.mode == 'delete'}, "
                f"ADD COLUMN {_ROW} bigint GENERATED ALWAYS AS IDENTITY"
            )

    async def types(self, connection: Connection) -> Mapping[str, str]:
        """Built-in types of columns, by the name of the column."""
        rows = await connection.fetch(
            "SELECT attname, typname FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped "
            "AND typnamespace = 'pg_catalog'::regnamespace",
            self._table,
        )
        return {row["attname"]: row["typname"] for row in rows}

    async def arrays(self, connection: Connection) -> Mapping[str, ArrayColumn]:
        """The columns that are arrays, or domains of arrays."""
        rows = await connection.fetch(
            "WITH RECURSIVE type AS (SELECT attname, t.* FROM pg_attribute JOIN pg_type t ON t.oid = atttypid "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped "
            "UNION ALL SELECT attname, t.* FROM type JOIN pg_type t ON t.oid = type.typbasetype) "
            "SELECT attname, e.typdelim::text, e.typname FROM type JOIN pg_type e ON e.oid = type.typelem "
            "WHERE type.typcategory = 'A' AND type.typlen = -1 AND type.typbasetype = 0",
            self._table,
        )
        return {row["attname"]: ArrayColumn(row["typdelim"], row["typname"] in ("json", "jsonb")) for row in rows}

    async def faults(self, connection: Connection) -> list[Fault]:
        """Problems of the user's table; none if it is still to be created."""
        settings = self._settings
        table = await connection.fetchval("SELECT to_regclass($1)::oid", self._table)
        if table is None:
            found = f"there is no table {settings.table} in the database {settings.database}"
            return [] if settings.create_table else [Fault(("table",), found, "a table, or `createTable: true`")]
        rows = await connection.fetch(
            "SELECT attname, attnum FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped", table
        )
        numbers = {row["attname"]: row["attnum"] for row in rows}
        faults = settings.column_faults(numbers)
        if settings.mode == "upsert" and not faults:
            faults += await self._key_faults(connection, table, {numbers[key] for key in settings.keys})
        rights = {"insert": "INSERT", "upsert": "INSERT, UPDATE, SELECT", "delete": "DELETE, SELECT"}[settings.mode]
        right = f"{rights}, DELETE" if settings.delete_when is not None else rights
        if not await connection.fetchval(f"SELECT {_rights(right)}", self._table):
            what = f"{settings.user} has no right to {right} on {settings.table}"
            faults.append(Fault(("table",), what, f"`GRANT {right} ON {settings.table} TO {settings.user}`"))
        return faults

    async def _key_faults(self, connection: Connection, table: int, keys: set[int]) -> list[Fault]:
        indexes = await connection.fetch(
            "SELECT string_to_array(indkey::text, ' ')::int[] AS columns FROM pg_index "
            "WHERE indrelid = $1 AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL",
            table,
        )
        if any(set(index["columns"]) == keys for index in indexes):
            return []
        names = ", ".join(self._settings.keys)
        what = f"{self._settings.table} has no primary key and no unique index on exactly ({names})"
        return [Fault(("keys",), what, "a unique index, by which `upsert` finds the row")]

    # The lane's row

    async def kept(self, connection: Connection, pipeline: str, lane: str) -> TargetPosition | None:
        """The lane's stored state; its row stays locked until the transaction ends."""
        row = await connection.fetchrow(
            f"SELECT run, epoch, owner, sequence, record, frame FROM {self.positions} "
            "WHERE pipeline = $1 AND lane = $2 FOR UPDATE",
            pipeline,
            lane,
        )
        if row is None:
            return None
        return TargetPosition(
            row["run"], row["epoch"], row["owner"], Position(row["sequence"], row["record"]), row["frame"]
        )

    async def begin_lane(self, connection: Connection, pipeline: str, lane: str, kept: TargetPosition) -> None:
        """Insert a row for a lane that has none. Another owner may have inserted one meanwhile."""
        run, epoch, owner, position, frame = kept
        await connection.execute(
            f"INSERT INTO {self.positions} (pipeline, lane, run, epoch, owner, sequence, record, frame) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
            *(pipeline, lane, run, epoch, owner, *position, frame),
        )

    async def own(self, connection: Connection, pipeline: str, lane: str, epoch: int, owner: str) -> None:
        """From here on, no other owner can move the lane."""
        await connection.execute(
            f"UPDATE {self.positions} SET epoch = $3, owner = $4, changed = now() WHERE pipeline = $1 AND lane = $2",
            *(pipeline, lane, epoch, owner),
        )

    async def move(
        self, connection: Connection, pipeline: str, lane: str, owner: str, position: Position, frame: str
    ) -> bool:
        """Whether the lane still has this owner. If so, its position is updated and its row is locked."""
        done = await connection.execute(
            f"UPDATE {self.positions} SET sequence = $4, record = $5, frame = $6, changed = now() "
            "WHERE pipeline = $1 AND lane = $2 AND owner = $3",
            *(pipeline, lane, owner, *position, frame),
        )
        return bool(done == "UPDATE 1")

    async def refused(
        self, connection: Connection, pipeline: str, lane: str, after: Position
    ) -> dict[Position, tuple[str, str]]:
        """The records that were set aside after a position, each with reason and detail. Earlier ones are not needed
        any more, and are removed."""
        where = f"FROM {self._refused} WHERE pipeline = $1 AND lane = $2 AND (sequence, record)"
        await connection.execute(f"DELETE {where} <= ($3::bigint, $4::bigint)", pipeline, lane, *after)
        rows = await connection.fetch(
            f"SELECT sequence, record, reason, detail {where} > ($3::bigint, $4::bigint)", pipeline, lane, *after
        )
        return {Position(row["sequence"], row["record"]): (row["reason"], row["detail"]) for row in rows}

    async def refuse(
        self, connection: Connection, pipeline: str, lane: str, records: Sequence[tuple[Position, str, str]]
    ) -> None:
        """Note that records were set aside."""
        await connection.executemany(
            f"INSERT INTO {self._refused} (pipeline, lane, sequence, record, reason, detail) "
            "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
            [(pipeline, lane, *at, reason, detail.replace("\0", "")) for at, reason, detail in records],
        )

    # The records

    async def put(self, connection: Connection, made: Iterable[Sequence[bytes | Row]]) -> None:
        """Write rows, piece by piece, and check every constraint now: at the commit, the faulty row could not be
        identified. An `UnfitError` of the pieces is raised when those before it are written."""
        pieces = _Pieces(made)
        if self._is_staged:
            is_any = await self._copy(connection, pieces, _BATCH, schema="pg_temp")
        else:
            is_any = await self._copy(connection, pieces, self._name, schema=self._schema)
        if pieces.is_unfit:
            raise UnfitError
        if is_any:
            if pieces.absent:
                await self._merge_parts(connection, sorted(pieces.absent))
            else:
                for statement in self._merges() if self._is_staged else ():
                    await connection.execute(statement)
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    async def _copy(
        self, connection: Connection, pieces: Iterable[Sequence[bytes | Row]], table: str, *, schema: str | None
    ) -> bool:
        """Copy rows into a table, within the transaction of their position.

        Returns whether there were any. While the server takes what is already sent, the next pieces are converted."""
        is_any = False
        for is_text, run in groupby(pieces, lambda piece: isinstance(piece[0], bytes)):
            is_any = True
            place = {"columns": self._line_columns if is_text else self._columns, "schema_name": schema}
            with step("postgres_sink.copy"):
                if is_text:
                    async with aclosing(self._texts(run)) as texts:
                        await connection.copy_to_table(table, source=texts, format="text", **place)
                else:
                    # A piece is all lines or all rows: the records of a frame.
                    rows = chain.from_iterable(cast("Iterable[Sequence[Row]]", run))
                    await connection.copy_records_to_table(table, records=map(astuple, rows), **place)
        return is_any

    async def _texts(self, pieces: Iterable[Sequence[bytes | Row]]) -> AsyncGenerator[bytes, None]:
        assert self._line_of is not None, "the sink writes"
        for lines in pieces:
            yield b"".join(map(self._line_of, lines))

    async def _merge_parts(self, connection: Connection, absent: Sequence[int]) -> None:
        """Move rows from the batch's table to the user's, where some records do not have all columns. `absent`: the
        columns that any of them lacks. The last value of each column counts, of the records after the last deletion of
        a key. A column that none of these has keeps its value in an existing row, and has its default in a new one.

        Existing rows are updated first: the server checks that columns are not null before it notices that a row
        exists."""
        keys = [quoted(key) for key in self._settings.keys]
        by_key = ", ".join(keys)
        same = " AND ".join(f"t.{key} = b.{key}" for key in keys)
        if self._settings.delete_when is not None:
            deleted = f"SELECT DISTINCT {by_key} FROM pg_temp.{_BATCH} WHERE {_DELETE}"
            await connection.execute(f"DELETE FROM {self._table} t USING ({deleted}) b WHERE {same}")
        await connection.execute(self._latest(absent))
        found = await connection.fetch(f"SELECT DISTINCT {_ABSENT} AS absent FROM pg_temp.{_LATEST}")
        for lacking in (row["absent"] for row in found):
            names = [quoted(name) for index, name in enumerate(self._columns) if index not in lacking]
            others = [name for name in names if name not in keys]
            rows = f"pg_temp.{_LATEST} b WHERE {_ABSENT} = $1"
            if others:
                change = ", ".join(f"{name} = b.{name}" for name in others)
                await connection.execute(f"UPDATE {self._table} t SET {change} FROM {rows} AND {same}", lacking)
            change = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            await connection.execute(
                f"INSERT INTO {self._table} ({', '.join(names)}) SELECT {', '.join(names)} FROM {rows} "
                f"AND NOT EXISTS (SELECT FROM {self._table} t WHERE {same}) "
                f"ON CONFLICT ({by_key}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}",
                lacking,
            )
        # A transaction may write several times while it searches for a refused record.
        await connection.execute(f"DELETE FROM pg_temp.{_LATEST}; DELETE FROM pg_temp.{_BATCH}")

    def _latest(self, absent: Sequence[int]) -> str:
        """The statement that finds the last value of each column of each key."""
        by_key = ", ".join(map(quoted, self._settings.keys))
        lacks = {index: f"COALESCE({index} = ANY({_ABSENT}), false)" for index in absent}
        columns = [
            f"first_value({quoted(name)}) OVER (PARTITION BY {by_key} ORDER BY {lacks[index]}, {_ROW} DESC)"
            if index in lacks
            else quoted(name)
            for index, name in enumerate(self._columns)
        ]
        lacking = " || ".join(
            f"CASE WHEN bool_and({lack}) OVER (PARTITION BY {by_key}) THEN ARRAY[{index}] ELSE ARRAY[]::int[] END"
            for index, lack in lacks.items()
        )
        return (
            f"INSERT INTO pg_temp.{_LATEST} ({', '.join(map(quoted, self._columns))}, {_DELETE}, {_ABSENT}) "
            f"SELECT DISTINCT ON ({by_key}) {', '.join(columns)}, false, {lacking} FROM ("
            f"SELECT *, max({_ROW}) FILTER (WHERE {_DELETE}) OVER (PARTITION BY {by_key}) AS millstream_deleted "
            f"FROM pg_temp.{_BATCH}) b WHERE {_ROW} > COALESCE(millstream_deleted, 0) ORDER BY {by_key}, {_ROW} DESC"
        )

    def _merges(self) -> Iterator[str]:
        """The statements that move rows from the batch's table to the user's. The last record of each key counts."""
        keys = ", ".join(map(quoted, self._settings.keys))
        names = ", ".join(map(quoted, self._columns))
        last = f"SELECT DISTINCT ON ({keys}) * FROM pg_temp.{_BATCH} ORDER BY {keys}, {_ROW} DESC"
        if self._settings.mode == "delete" or self._settings.delete_when is not None:
            same = " AND ".join(f"t.{quoted(key)} = b.{quoted(key)}" for key in self._settings.keys)
            yield f"DELETE FROM {self._table} t USING ({last}) b WHERE b.{_DELETE} AND {same}"
        if self._settings.mode == "upsert":
            others = [quoted(name) for name in self._columns if name not in self._settings.keys]
            change = ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
            yield (
                f"INSERT INTO {self._table} ({names}) SELECT {names} FROM ({last}) b WHERE NOT b.{_DELETE} "
                f"ON CONFLICT ({keys}) DO {f'UPDATE SET {change}' if change else 'NOTHING'}"
            )
        # A transaction may write several times while it searches for a refused record.
        yield f"DELETE FROM pg_temp.{_BATCH}"


def _rights(rights: str) -> str:
    return " AND ".join(
        f"has_{'table' if right == 'DELETE' else 'any_column'}_privilege(to_regclass($1), '{right}')"
        for right in rights.split(", ")
    )


def _type_of(column: TableColumn) -> str:
    return column.type or {"eventTime": "timestamptz", "keys": "jsonb", "headers": "jsonb"}.get(
        column.part or "", "text"
    )


class _Pieces:
    """Pieces that are not empty, up to one that cannot be converted. An error that is raised within a COPY would make
    the client ask the server, over another connection, to cancel it."""

    def __init__(self, made: Iterable[Sequence[bytes | Row]]) -> None:
        self._made = made
        self.is_unfit = False
        """Whether there was one. The error itself would keep the whole write, in its traceback."""
        self.absent: set[int] = set()
        """Indexes of columns that records do not have."""

    def __iter__(self) -> Iterator[Sequence[bytes | Row]]:
        try:
            for piece in filter(None, self._made):
                if PartialLine in set(map(type, piece)):
                    self.absent.update(
                        index for line in piece if isinstance(line, PartialLine) for index in line.absent
                    )
                yield piece
        except UnfitError:
            self.is_unfit = True


async def look(settings: PostgresSink, base_dir: Path) -> list[Fault]:
    """What on the server does not fit the settings. Raises Millstream errors if it cannot be reached."""
    async with looking(settings, base_dir) as connection:
        return await PostgresStatements(settings).faults(connection)
