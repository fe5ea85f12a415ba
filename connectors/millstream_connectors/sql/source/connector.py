"""The `sql` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import Strict
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, SpecModel, field
from millstream_connectors.shared.tables.names import ColumnName, Query, TableName
from millstream_connectors.sql.settings import SQLITE, SqlDatabase, database_findings, database_notes
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class SqlSplit(SpecModel):
    """How the lanes of several partitions share the rows."""

    noun = "`split`"

    column: ColumnName
    """A column of whole numbers. A row in which it is null is in the first range."""
    first: Annotated[int, Strict()] = field(alias="from")
    """About the smallest number; smaller ones are in the first range."""
    last: Annotated[int, Strict()] = field(alias="to")
    """About the largest number; larger ones are in the last range."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires a range that is not empty."""
        if self.last <= self.first:
            what = f"`to` is {self.last}, and `from` is {self.first}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("to",), what, "a larger number than `from`")

    def bounds(self, partition: int, partitions: int) -> tuple[int | None, int | None]:
        """The range of a partition: its first number, and the first one after it; None for no bound."""
        size = self.last - self.first + 1
        low, high = (self.first + size * number // partitions for number in (partition, partition + 1))
        return (low if partition else None), (high if partition + 1 < partitions else None)


class SqlSource(SqlDatabase):
    """Reads the rows of a table, or of a query, in the order of a cursor."""

    noun = "a sql source"

    table: TableName | None = None
    """The table to read, `table` or `schema.table`."""
    query: Query | None = None
    """A SELECT instead of a table. Each row becomes a record: a JSON object with a member for each column."""
    cursor: tuple[ColumnName, ...] = ()
    """Columns that together identify a row and define the reading order, the most significant one first: whole numbers,
    decimals, times or texts. An index on them keeps each read short. Rows in which one of them is null are left out.
    Default, for a table: its primary key."""
    split: SqlSplit | None = None
    """How several `partitions` share the rows, by ranges of a column. Default: the first lane reads all rows."""
    follow: Flag = False
    """Keep looking for rows with a greater cursor; the source then has no end. Only for SQLite: other databases may
    commit a row after one with a greater cursor, and it would be missed."""
    poll_every_s: PositiveDuration = field(default=1.0, alias="pollEvery")
    """With `follow`: how often it looks for new rows. Duration, default 1s."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires one thing to read, and rejects what the database cannot do."""
        yield from super().relation_problems()
        if (self.query is None) == (self.table is None):
            what = "a sql source reads either a table or a query"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), what, "`table`, or `query` with `cursor`")
        elif self.query is not None and not self.cursor:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("cursor",), "`query` has no `cursor`", "`cursor: [id]`")
        for index, name in enumerate(self.cursor):
            if name in self.cursor[:index]:
                what = f"column `{name}` appears twice"
                yield ShapeProblem(codes.NAME_TWICE, ("cursor", index), what, "each column once")
        if self.follow and self.backend != SQLITE:
            what = f"{self.backend} may commit a row after one with a greater cursor, which `follow` would miss"
            yield ShapeProblem(codes.NOT_ALLOWED, ("follow",), what, "no `follow`, or a `postgres` source")
        if not self.follow and "poll_every_s" in self.model_fields_set:
            what = "`pollEvery` has no effect without `follow`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("pollEvery",), what, "`follow: true`")


class _Sql(SourceConnector[SqlSource]):
    model = SqlSource
    meaning = "Rows of a database table or query, through SQLAlchemy."
    packages: ClassVar[Mapping[str, str]] = {"sqlalchemy": "millstream[sql]"}
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once: it continues after the cursor in its last commit; rows that change while it reads may be "
        "read in their old or new state",
    )
    ends = "at the last row, without `follow`"
    has_headers = False
    strangers = True

    def bounded(self, settings: SqlSource) -> bool | None:
        return not settings.follow

    def local_findings(self, settings: SqlSource, place: Place) -> Iterator[Finding]:
        yield from database_findings(settings, place.path, place.base_dir)
        if settings.file is not None and not (place.base_dir / settings.file).exists():
            what = f"there is no file {place.base_dir / settings.file}"
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "url"), what, "a SQLite database")

    def online_findings(self, settings: SqlSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.sql.source.lane import look

        async def findings() -> Sequence[Finding]:
            faults = await look(settings, place.base_dir)
            return place.unfit(faults)

        return findings()

    def notes(self, settings: SqlSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from database_notes(settings, path)

    def open(self, settings: SqlSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.sql.source.lane import open_sql_source

        return open_sql_source(settings, owner)


SQL = _Sql()
