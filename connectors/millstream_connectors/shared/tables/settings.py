"""Settings of sinks that write to a table: the table, the values of its columns, and the identification of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

from millstream import codes
from millstream.spec.values import Flag, ShapeProblem, SpecModel, Text, conflicts
from millstream_connectors.shared.columns import repeated
from millstream_connectors.shared.faults import Fault
from millstream_connectors.shared.tables.names import ColumnName, ColumnTypeName, TableName

Part = Literal["value", "key", "keys", "eventTime", "headers", "id"]


class TableColumn(SpecModel):
    """A column of the table, and the part of a record that is its value."""

    noun = "a column"

    name: ColumnName
    """Name of the column."""
    field: Text | None = None
    """Dotted path of the member of the record's JSON value. Default: the column's name."""
    part: Part | None = None
    """A part of the record instead of a member: `value` (its bytes, as UTF-8 text), `key` (the first one), `keys`
    (JSON), `eventTime`, `headers` (JSON) or `id`."""
    type: ColumnTypeName | None = None
    """Its type in the database, for `createTable`. Default: text; in PostgreSQL, `timestamptz` for `eventTime`, and
    `jsonb` for `keys` and `headers`."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects two origins of the value."""
        if self.field is not None and self.part is not None:
            what = "a column cannot have both `field` and `part`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("part",), what, "only one of them")


class DeleteWhen(SpecModel):
    """Which records delete the row with their key."""

    noun = "`deleteWhen`"

    field: Text | None = None
    """Dotted path of a member of the record's JSON value."""
    header: Text | None = None
    """Name of a header."""
    equals: str | int | bool = True
    """The value that it must have."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires exactly one condition."""
        if (self.field is None) == (self.header is None):
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), "`deleteWhen` needs one condition", "`field` or `header`")


WHOLE_RECORD = (
    TableColumn(name="id", part="id"),
    TableColumn(name="event_time", part="eventTime"),
    TableColumn(name="keys", part="keys"),
    TableColumn(name="headers", part="headers"),
    TableColumn(name="value", part="value"),
)
"""The columns of a sink without configured columns."""


class TableSink(SpecModel):
    """The table, and how records are written to it."""

    noun = "a sink of a table"

    table: TableName
    """The table, `table` or `schema.table`."""
    mode: Literal["insert", "upsert", "delete"] = "insert"
    """`insert` adds a row for each record; `upsert` adds it, or changes the row with the same `keys`; `delete` deletes
    the row with the same `keys`."""
    keys: tuple[ColumnName, ...] = ()
    """Columns that identify a row, for `upsert` and `delete`. `upsert` needs a primary key or unique index on them."""
    columns: tuple[TableColumn, ...] = ()
    """The columns to write, with the origin of their values. Default: the whole record, in columns `id`, `event_time`,
    `keys`, `headers` and `value`."""
    delete_when: DeleteWhen | None = None
    """With `upsert`: which records delete the row with their key."""
    create_table: Flag = False
    """Create the table if it does not exist, with the types of `columns` and `keys` as its primary key."""
    position_table: TableName = "millstream_positions"
    """Table with the position of each lane. It is created if it does not exist, together with one whose name has the
    suffix `_refused`. It must be in the same database as the table."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires keys for the modes that need them, and rejects settings without effect."""
        yield from super().relation_problems()
        names = [column.name for column in self.row]
        yield from repeated(names, "columns", "name")
        for index, name in enumerate(self.keys):
            if name not in names:
                what = f"there is no column `{name}`"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("keys", index), what, f"one of {', '.join(names)}")
        yield from conflicts(
            (
                self.mode != "insert" and not self.keys,
                ("mode",),
                f"`mode: {self.mode}` needs `keys`",
                "`keys: [column]`",
            ),
            (
                self.mode == "insert" and self.keys and not self.create_table,
                ("keys",),
                "`keys` has no effect with `mode: insert`",
                "`mode: upsert`, or `createTable: true`",
            ),
            (
                self.delete_when is not None and self.mode != "upsert",
                ("deleteWhen",),
                f"`deleteWhen` has no effect with `mode: {self.mode}`",
                "`mode: upsert`",
            ),
        )

    @property
    def row(self) -> tuple[TableColumn, ...]:
        """The columns to write."""
        return self.columns or WHOLE_RECORD

    def column_faults(self, known: Collection[str]) -> list[Fault]:
        """The columns to write that are not among those of the table."""
        return [
            Fault(
                ("columns", index, "name") if self.columns else ("table",),
                f"the table {self.table} has no column `{column.name}`",
                f"one of {', '.join(known)}",
            )
            for index, column in enumerate(self.row)
            if column.name not in known
        ]
