"""The tables of the sink: the user's, and two for the sink's own positions.

    millstream_positions            a row for each lane: run, owner, epoch, position, name of the last frame
    millstream_positions_refused    a row for each record that was set aside: its place and the reason

Every statement of the sink is here, and blocks. Above it: the lane, and `validate --online`. Below it: a connection.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeEngine, UserDefinedType

from millstream.durable import step
from millstream.record import Position
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.kept import TargetPosition
from millstream_connectors.shared.tables.names import table_parts
from millstream_connectors.shared.tables.settings import TableColumn
from millstream_connectors.sql.client import is_refusal, said
from millstream_connectors.sql.settings import MYSQL, SQLITE, SqlSink
from millstream_connectors.sql.sink.rows import RowChange

_NAME = sa.String(190).with_variant(mysql.VARCHAR(190, charset="utf8mb4", collation="utf8mb4_bin"), *MYSQL)
"""The type of names of pipelines and lanes, which is case-sensitive in MySQL, too."""


_ENGINE: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
_ENGINE |= {name.replace("mysql", "mariadb"): value for name, value in _ENGINE.items()}


class _Written(UserDefinedType[Any]):
    """A type as written in the pipeline file."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class SqlStatements:
    """The statements for one sink."""

    def __init__(self, settings: SqlSink) -> None:
        self._settings = settings
        self._schema, self._name = table_parts(settings.table)
        self._columns = [column.name for column in settings.row]
        self._plain = sa.table(self._name, *(sa.column(name) for name in self._columns), schema=self._schema)
        self._meta = sa.MetaData()
        schema, positions = table_parts(settings.position_table)
        self.positions = settings.position_table
        self._positions = sa.Table(
            positions,
            self._meta,
            sa.Column("pipeline", _NAME, primary_key=True),
            sa.Column("lane", _NAME, primary_key=True),
            sa.Column("run", sa.String(190), nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("owner", sa.String(190), nullable=False),
            sa.Column("sequence", sa.BigInteger, nullable=False),
            sa.Column("record", sa.BigInteger, nullable=False),
            sa.Column("frame", sa.Text),
            schema=schema,
            **_ENGINE,
        )
        self._refused = sa.Table(
            f"{positions}_refused",
            self._meta,
            sa.Column("pipeline", _NAME, primary_key=True),
            sa.Column("lane", _NAME, primary_key=True),
            sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("record", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("reason", sa.Text),
            sa.Column("detail", sa.Text),
            schema=schema,
            **_ENGINE,
        )
        if settings.create_table:
            sa.Table(
                self._name,
                self._meta,
                *(
                    sa.Column(
                        column.name,
                        _type_of(column, settings),
                        primary_key=column.name in settings.keys,
                        autoincrement=False,
                    )
                    for column in settings.row
                ),
                schema=self._schema,
                **_ENGINE,
            )
        self._put = self._put_statement(self._columns)
        self._delete = sa.delete(self._plain).where(
            *(self._plain.c[key] == sa.bindparam(f"key_{index}") for index, key in enumerate(settings.keys))
        )

    def create(self, connection: Connection) -> None:
        """Create the tables that do not exist."""
        inspector = sa.inspect(connection)
        exist = all(inspector.has_table(table.name, schema=table.schema) for table in self._meta.sorted_tables)
        connection.rollback()
        if exist:
            return
        for table in self._meta.sorted_tables:
            # Another lane may create it at the same moment.
            with step("sql_sink.create"), suppress(exc.DBAPIError), connection.begin():
                table.create(connection, checkfirst=True)
        with connection.begin():
            # Does nothing, or fails again with the reason.
            self._meta.create_all(connection)

    def faults(self, connection: Connection) -> list[Fault]:
        """Problems of the user's table; none if it is still to be created."""
        with connection.begin():
            settings, inspector = self._settings, sa.inspect(connection)
            if not inspector.has_table(self._name, schema=self._schema):
                found = f"there is no table {settings.table} in {settings.shown}"
                return [] if settings.create_table else [Fault(("table",), found, "a table, or `createTable: true`")]
            known = [column["name"] for column in inspector.get_columns(self._name, schema=self._schema)]
            faults = settings.column_faults(known)
            if settings.mode == "upsert" and not faults:
                faults += self._key_faults(inspector)
            if settings.backend in MYSQL:
                faults += self._engine_faults(connection)
            return faults

    def _key_faults(self, inspector: sa.Inspector) -> list[Fault]:
        settings = self._settings
        unique = [inspector.get_pk_constraint(self._name, schema=self._schema)["constrained_columns"]]
        unique += [item["column_names"] for item in inspector.get_unique_constraints(self._name, schema=self._schema)]
        unique += [
            [str(name) for name in index["column_names"]]
            for index in inspector.get_indexes(self._name, schema=self._schema)
            if index["unique"]
        ]
        sets = {frozenset(names) for names in unique if names}
        names = ", ".join(settings.keys)
        if frozenset(settings.keys) not in sets:
            what = f"{settings.table} has no primary key and no unique index on exactly ({names})"
            return [Fault(("keys",), what, "one, by which `upsert` finds the row")]
        if settings.backend in MYSQL and len(sets) > 1:
            what = (
                f"{settings.table} has another unique index beside that on ({names}), by which {settings.backend} "
                "would find other rows"
            )
            return [Fault(("keys",), what, "a table with this one alone")]
        return []

    def _engine_faults(self, connection: Connection) -> list[Fault]:
        """Problems of tables without transactions."""
        statement = sa.text(
            "SELECT t.table_name, t.engine FROM information_schema.tables t "
            "LEFT JOIN information_schema.engines e ON e.engine = t.engine "
            "WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name "
            "AND t.table_type = 'BASE TABLE' AND COALESCE(e.transactions, 'NO') <> 'YES'"
        )
        faults = []
        for loc, table in (("table", self._settings.table), ("positionTable", self._settings.position_table)):
            schema, name = table_parts(table)
            for _, engine in connection.execute(statement, {"schema": schema, "name": name}):
                what = f"the table {table} is of the engine {engine}, which has no transactions"
                faults.append(Fault((loc,), what, f"`ALTER TABLE {table} ENGINE = InnoDB`"))
        return faults

    def rights(self, connection: Connection) -> list[Fault]:
        """Which rights on the tables that exist are missing. Writes nothing: every statement is about no row, and is
        rolled back."""
        faults = []
        tables = (("table", self._plain), ("positionTable", self._positions), ("positionTable", self._refused))
        for loc, table in tables:
            try:
                exists = sa.inspect(connection).has_table(table.name, schema=table.schema)
                connection.rollback()
            except exc.DBAPIError as error:
                # MariaDB does not even say whether there is one.
                connection.rollback()
                faults.append(self._fault(loc, "SELECT, INSERT, UPDATE, DELETE, CREATE", table, error))
                continue
            for right, statement in self._tries(table) if exists else ():
                try:
                    with connection.begin() as transaction:
                        connection.execute(statement)
                        transaction.rollback()
                except exc.DBAPIError as error:
                    faults.append(self._fault(loc, right, table, error))
        return faults

    def _fault(self, loc: str, right: str, table: sa.TableClause, error: exc.DBAPIError) -> Fault:
        """Raises `error` if it is not about rights."""
        user = self._settings.user
        if not is_refusal(error):
            raise error
        what = f"{user} has no right to {right} on {table.name}: {said(error)}"
        return Fault((loc,), what, f"`GRANT {right} ON {table.name}` to {user}")

    def _tries(self, table: sa.TableClause) -> Sequence[tuple[str, sa.Executable]]:
        """Statements that need the rights of the sink, by the right."""
        names = [column.name for column in table.columns]
        nothing = sa.select(*(sa.null() for _ in names)).where(sa.false())
        mode = self._settings.mode if table is self._plain else "all"
        deletes = self._settings.delete_when is not None or mode in ("delete", "all")
        update = sa.update(table).values({names[-1]: sa.null()})
        tries: Sequence[tuple[str, bool, sa.Executable]] = (
            ("INSERT", mode != "delete", sa.insert(table).from_select(names, nothing)),
            ("UPDATE", mode in ("upsert", "all"), update.where(sa.false())),
            ("DELETE", deletes, sa.delete(table).where(sa.false())),
            ("SELECT", mode == "all", sa.select(table).where(sa.false())),
        )
        return [(right, statement) for right, is_needed, statement in tries if is_needed]

    def types(self, connection: Connection) -> dict[str, TypeEngine[Any]]:
        """Types of the table's columns."""
        with connection.begin():
            columns = sa.inspect(connection).get_columns(self._name, schema=self._schema)
        return {column["name"]: column["type"] for column in columns}

    # The lane's row

    def lock(
        self, connection: Connection, pipeline: str, lane: str, fresh: TargetPosition | None
    ) -> TargetPosition | None:
        """The lane's stored state, or `fresh`, which is inserted. Its row stays locked until the transaction ends."""
        table, ours = self._positions, self._ours(pipeline, lane)
        # A statement for which every database locks the row.
        if connection.execute(sa.update(table).where(*ours).values(epoch=table.c.epoch)).rowcount == 0:
            if fresh is None:
                return None
            run, epoch, owner, (sequence, record), frame = fresh
            values = {
                "run": run,
                "epoch": epoch,
                "owner": owner,
                "sequence": sequence,
                "record": record,
                "frame": frame,
            }
            connection.execute(sa.insert(table).values(pipeline=pipeline, lane=lane, **values))
            return fresh
        row = connection.execute(sa.select(table).where(*ours)).one()
        return TargetPosition(row.run, row.epoch, row.owner, Position(row.sequence, row.record), row.frame or "")

    def owner(self, connection: Connection, pipeline: str, lane: str) -> str:
        """The lane's owner, without waiting for its row."""
        with connection.begin():
            found = connection.execute(sa.select(self._positions.c.owner).where(*self._ours(pipeline, lane)))
            return found.scalar() or ""

    def own(self, connection: Connection, pipeline: str, lane: str, epoch: int, owner: str) -> None:
        """From here on, no other owner can move the lane."""
        ours = self._ours(pipeline, lane)
        connection.execute(sa.update(self._positions).where(*ours).values(epoch=epoch, owner=owner))

    def move(
        self, connection: Connection, pipeline: str, lane: str, owner: str, position: Position, frame: str
    ) -> bool:
        """Whether the lane still has this owner. If so, its position is updated and its row is locked."""
        table = self._positions
        done = connection.execute(
            sa.update(table)
            .where(*self._ours(pipeline, lane), table.c.owner == owner)
            .values(sequence=position.sequence, record=position.record_index, frame=frame)
        )
        return done.rowcount == 1

    def refused(
        self, connection: Connection, pipeline: str, lane: str, after: Position
    ) -> dict[Position, tuple[str, str]]:
        """The records that were set aside after a position, each with reason and detail. Earlier ones are not needed
        any more, and are removed."""
        table = self._refused
        ours = [table.c.pipeline == pipeline, table.c.lane == lane]
        unreached = sa.or_(
            table.c.sequence > after.sequence,
            sa.and_(table.c.sequence == after.sequence, table.c.record > after.record_index),
        )
        connection.execute(sa.delete(table).where(*ours, sa.not_(unreached)))
        return {
            Position(row.sequence, row.record): (row.reason or "", row.detail or "")
            for row in connection.execute(sa.select(table).where(*ours))
        }

    def refuse(
        self, connection: Connection, pipeline: str, lane: str, records: Sequence[tuple[Position, str, str]]
    ) -> None:
        """Note that records were set aside."""
        table = self._refused
        for at, reason, detail in records:
            place = {"pipeline": pipeline, "lane": lane, "sequence": at.sequence, "record": at.record_index}
            connection.execute(sa.delete(table).where(*(table.c[name] == value for name, value in place.items())))
            connection.execute(sa.insert(table).values(**place, reason=reason, detail=detail[:4000]))

    def _ours(self, pipeline: str, lane: str) -> tuple[sa.ColumnElement[bool], ...]:
        return self._positions.c.pipeline == pipeline, self._positions.c.lane == lane

    # The records

    def put(self, connection: Connection, changes: Sequence[RowChange]) -> None:
        """Write rows in order: the last record of each key counts."""
        keys = [self._columns.index(key) for key in self._settings.keys]
        for (deletes, absent), run in groupby(changes, key=lambda change: (change.deletes, change.absent)):
            with step("sql_sink.put"):
                if deletes:
                    rows = [{f"key_{index}": change.cells[key] for index, key in enumerate(keys)} for change in run]
                    connection.execute(self._delete, rows)
                    continue
                named = [dict(zip(self._columns, change.cells, strict=True)) for change in run]
                if absent:
                    self._put_parts(connection, named, {self._columns[index] for index in absent})
                else:
                    connection.execute(self._put, named)

    def _put_parts(self, connection: Connection, rows: Sequence[Mapping[str, Any]], absent: Container[str]) -> None:
        """Write rows without some of their columns, which existing rows keep. The database checks that columns are not
        null before it notices that a row exists, so an insertion alone would not do."""
        names = [name for name in self._columns if name not in absent]
        insert = self._put_statement(names)
        table, settings = self._plain, self._settings
        matches = [table.c[key] == sa.bindparam(f"millstream_key_{index}") for index, key in enumerate(settings.keys)]
        # A row without any other column still has to be found.
        changed = [name for name in names if name not in settings.keys] or [settings.keys[0]]
        places = {name: f"millstream_new_{index}" for index, name in enumerate(changed)}
        update = sa.update(table).where(*matches).values({name: sa.bindparam(at) for name, at in places.items()})
        for row in rows:
            values = {at: row[name] for name, at in places.items()}
            values |= {f"millstream_key_{index}": row[key] for index, key in enumerate(settings.keys)}
            if connection.execute(update, values).rowcount == 0:
                connection.execute(insert, {name: row[name] for name in names})

    def _put_statement(self, names: Sequence[str]) -> sa.Executable:
        settings = self._settings
        table = sa.table(self._name, *(sa.column(name) for name in names), schema=self._schema)
        if settings.mode != "upsert":
            return sa.insert(table)
        others = [name for name in names if name not in settings.keys]
        if settings.backend in MYSQL:
            for_mysql = mysql.insert(table)
            changed = others or [settings.keys[0]]
            return for_mysql.on_duplicate_key_update({name: for_mysql.inserted[name] for name in changed})
        statement: Any = sqlite.insert(table) if settings.backend == SQLITE else postgresql.insert(table)
        if not others:
            return statement.on_conflict_do_nothing(index_elements=list(settings.keys))  # type: ignore[no-any-return]
        excluded = {name: statement.excluded[name] for name in others}
        return statement.on_conflict_do_update(index_elements=list(settings.keys), set_=excluded)  # type: ignore[no-any-return]


def _type_of(column: TableColumn, settings: SqlSink) -> TypeEngine[Any]:
    """Type of a column for a new table."""
    if column.type is not None:
        return _Written(column.type)
    if column.part == "eventTime" and settings.backend != SQLITE:
        return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *MYSQL)
    # MySQL has no keys on texts of unlimited length.
    return sa.String(190) if column.name in settings.keys and settings.backend in MYSQL else sa.Text()
