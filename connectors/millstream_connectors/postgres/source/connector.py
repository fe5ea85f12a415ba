"""The `postgres` source, as pipeline files name it."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, SpecModel, Text, field, problem
from millstream_connectors.postgres.settings import PostgresServer, server_findings, server_notes
from millstream_connectors.shared.tables.names import ColumnName, Query, TableName
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


_SLOT = re.compile(r"[a-z0-9_]{1,63}")


def _checked_slot(written: str) -> str:
    if _SLOT.fullmatch(written) is None:
        what = f"{written[:80]!r} is not the name of a replication slot"
        raise problem(codes.VALUE_MALFORMED, what, "at most 63 of a-z, 0-9 and _")
    return written


class PostgresCdc(SpecModel):
    """Which changes to tables are read."""

    noun = "`cdc`"

    publication: ColumnName
    """The publication that includes the tables."""
    slot: Annotated[Text, After(_checked_slot)]
    """The replication slot, for this source alone. The first run creates it if it does not exist. The server keeps its
    WAL for it until the slot is dropped."""
    tables: tuple[TableName, ...] = ()
    """Only the changes to these tables, as `table` (of the schema `public`) or `schema.table`. Default: all tables of
    the publication."""
    snapshot: Literal["initial", "never"] = "initial"
    """Whether the first run reads the existing rows of the tables before their changes: `initial` or `never`."""
    create_publication: Flag = False
    """Create the publication, for `tables`, if it does not exist."""

    @property
    def table_paths(self) -> Sequence[str]:
        """The tables, each with its schema."""
        return tuple(table if "." in table else f"public.{table}" for table in self.tables)

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires tables to create a publication for."""
        if self.create_publication and not self.tables:
            what = "`createPublication` needs to know the tables"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("createPublication",), what, "`tables: [name]`")


class PostgresSource(PostgresServer):
    """Reads the rows of a PostgreSQL query in the order of a growing cursor, or the changes to tables."""

    noun = "a postgres source"

    query: Query | None = None
    """A SELECT. Each of its rows becomes a record: a JSON object with a member for each column."""
    cursor: tuple[ColumnName, ...] = ()
    """Columns of the query that together identify a row and grow from row to row, the most significant one first:
    `[id]`, or `[changed, id]`. An index on them keeps each read short. Rows in which one of them is null are left
    out."""
    cdc: PostgresCdc | None = None
    """Changes to tables instead of a query, by logical replication. Each becomes a record, a JSON object with `op`,
    `before` and `after`."""
    poll_every_s: PositiveDuration = field(default=1.0, alias="pollEvery")
    """How often it looks for new rows. Duration, default 1s."""
    stop_at_end: Flag = False
    """End at the row, or the change, that is the last one when the first run starts."""
    wait_for: Literal["transactions", "writers"] = "transactions"
    """Which open transactions new rows wait for, because these may still commit a row with a smaller cursor:
    `transactions` (all of the database), or `writers` (those that have written to the tables of the query). `writers`
    is enough if each INSERT takes its value from a sequence itself. With a first column of type `xid8`, rows wait for
    none."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Requires either a query with a cursor, each of its columns once, or changes."""
        yield from super().relation_problems()
        if (self.query is None) == (self.cdc is None):
            what = "a postgres source reads either a query or changes"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (), what, "`query` with `cursor`, or `cdc`")
        elif self.query is not None and not self.cursor:
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("cursor",), "`query` has no `cursor`", "`cursor: [id]`")
        elif self.cdc is not None:
            for name, alias in (("cursor", "cursor"), ("poll_every_s", "pollEvery"), ("wait_for", "waitFor")):
                if name in self.model_fields_set:
                    what = f"`{alias}` has no effect with `cdc`"
                    yield ShapeProblem(codes.FIELDS_CONFLICT, (alias,), what, f"`query`, or no `{alias}`")
        for index, name in enumerate(self.cursor):
            if name in self.cursor[:index]:
                what = f"column `{name}` appears twice"
                yield ShapeProblem(codes.NAME_TWICE, ("cursor", index), what, "each column once")


class _Postgres(SourceConnector[PostgresSource]):
    model = PostgresSource
    meaning = "Rows of a PostgreSQL query, or changes to its tables."
    packages: ClassVar[Mapping[str, str]] = {"asyncpg": "millstream[postgres]"}
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once: it continues after the cursor in its last commit, and waits for transactions that may still "
        "write rows before it; or after the change in its last commit, which its slot follows",
    )
    ends = "never, without `stopAtEnd`"
    has_headers = False
    strangers = True

    def bounded(self, settings: PostgresSource) -> bool | None:
        return settings.stop_at_end

    def local_findings(self, settings: PostgresSource, place: Place) -> Iterator[Finding]:
        yield from server_findings(settings, place.path, place.base_dir)

    def online_findings(self, settings: PostgresSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.postgres.source import catalog, query

        async def look() -> Sequence[Finding]:
            if settings.cdc is not None:
                faults = await catalog.look(settings, settings.cdc, place.base_dir)
            else:
                faults = await query.look(settings, place.base_dir)
            return place.unfit(faults)

        return look()

    def notes(self, settings: PostgresSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def open(self, settings: PostgresSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        if settings.cdc is not None:
            from millstream_connectors.postgres.source.cdc import open_cdc

            return open_cdc(settings, settings.cdc, owner)
        from millstream_connectors.postgres.source.lane import open_query

        return open_query(settings, owner)


POSTGRES = _Postgres()
