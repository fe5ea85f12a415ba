"""Settings of sinks that write into a table: which one, what goes into its columns, and how a row is identified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from millstream import codes
from millstream.spec.tables import ColumnName, ColumnTypeName, TableName
from millstream.spec.values import Flag, ShapeProblem, SpecModel, Text

Part = Literal["value", "key", "keys", "eventTime", "headers", "id"]


class TableColumn(SpecModel):
    """A column of the table, and what of a record goes into it."""

    noun = "a column"

    name: ColumnName
    """Name of the column."""
    field: Text | None = None
    """Dotted path of the member of the record's JSON value that goes into it. Default: the column's name."""
    part: Part | None = None
    """What of the record goes into it in place of a member: `value` (its bytes, of UTF-8 text), `key` (the first one),
    `keys` (JSON), `eventTime`, `headers` (JSON) or `id`."""
    type: ColumnTypeName | None = None
    """Its type, for `createTable`, as the database names it. Default: text; of PostgreSQL, for `eventTime`
    `timestamptz`, for `keys` and `headers` `jsonb`."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """One origin."""
        if self.field is not None and self.part is not None:
            what = "a column cannot have both `field` and `part`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("part",), what, "one of them")


class DeleteWhen(SpecModel):
    """Which records delete the row of their key."""

    noun = "`deleteWhen`"

    field: Text | None = None
    """Dotted path of a member of the record's JSON value."""
    header: Text | None = None
    """Name of a header."""
    equals: str | int | bool = True
    """What it has to be."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """One place to look at."""
        if (self.field is None) == (self.header is None):
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), "`deleteWhen` needs one condition", "`field` or `header`")


WHOLE_RECORD = (
    TableColumn(name="id", part="id"),
    TableColumn(name="event_time", part="eventTime"),
    TableColumn(name="keys", part="keys"),
    TableColumn(name="headers", part="headers"),
    TableColumn(name="value", part="value"),
)
"""The columns of a sink without columns of its own."""


class TableSink(SpecModel):
    """The table, and how records are written into it."""

    noun = "a sink of a table"

    table: TableName
    """The table, `table` or `schema.table`."""
    mode: Literal["insert", "upsert", "delete"] = "insert"
    """`insert` adds a row for each record; `upsert` adds it, or changes the row with the same `keys`; `delete` deletes
    the row with the same `keys`."""
    keys: tuple[ColumnName, ...] = ()
    """Columns that identify a row, for `upsert` and `delete`. `upsert` needs a primary key or unique index on them."""
    columns: tuple[TableColumn, ...] = ()
    """What goes into which column. Default: the whole record, in columns `id`, `event_time`, `keys`, `headers` and
    `value`."""
    delete_when: DeleteWhen | None = None
    """With `upsert`: which records delete the row of their key."""
    create_table: Flag = False
    """Create the table if it does not exist, with the types of `columns` and `keys` as its primary key."""
    position_table: TableName = "millstream_positions"
    """Table in which the sink keeps how far each lane is; created if it does not exist, with another one of its name
    and `_refused`. It must be in the same database as the table."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Keys where they have a meaning."""
        yield from super().relation_problems()
        names = [column.name for column in self.row]
        for index, name in enumerate(names):
            if name in names[:index]:
                what = f"column `{name}` appears twice"
                yield ShapeProblem(codes.NAME_TWICE, ("columns", index, "name"), what, "each column once")
        for index, name in enumerate(self.keys):
            if name not in names:
                what = f"there is no column `{name}`"
                yield ShapeProblem(codes.FIELDS_CONFLICT, ("keys", index), what, f"one of {', '.join(names)}")
        if self.mode != "insert" and not self.keys:
            what = f"`mode: {self.mode}` needs `keys`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("mode",), what, "`keys: [column]`")
        if self.mode == "insert" and self.keys and not self.create_table:
            what = "`keys` has no effect with `mode: insert`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("keys",), what, "`mode: upsert`, or `createTable: true`")
        if self.delete_when is not None and self.mode != "upsert":
            what = f"`deleteWhen` has no effect with `mode: {self.mode}`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("deleteWhen",), what, "`mode: upsert`")

    @property
    def row(self) -> tuple[TableColumn, ...]:
        """The columns that are written."""
        return self.columns or WHOLE_RECORD
