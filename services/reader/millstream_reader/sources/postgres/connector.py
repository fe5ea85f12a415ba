"""The `postgres` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from millstream import codes
from millstream.postgres.settings import ColumnName, PostgresServer, server_findings, server_notes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.rules import After, NotEmpty
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, Text, field, problem
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


def _checked_query(written: str) -> str:
    text = written.strip().removesuffix(";").rstrip()
    if not text:
        raise problem(codes.VALUE_MALFORMED, f"{written[:80]!r} is not a query", "a SELECT")
    return text


class PostgresSource(PostgresServer):
    """Reads the rows of a query of PostgreSQL in the order of a cursor that grows."""

    noun = "a postgres source"

    query: Annotated[Text, After(_checked_query)]
    """A SELECT. Each of its rows becomes a record: a JSON object with a member for each column."""
    cursor: Annotated[tuple[ColumnName, ...], NotEmpty()]
    """Columns of the query that identify a row together and grow from row to row, the most significant one first:
    `[id]`, or `[changed, id]`. An index on them keeps each read short. Rows in which one is null are left out."""
    poll_every_s: PositiveDuration = field(default=1.0, alias="pollEvery")
    """How often it looks for new rows. Duration, default 1s."""
    stop_at_end: Flag = False
    """End at the last row that is there when the first run starts."""
    wait_for: Literal["transactions", "writers"] = "transactions"
    """Which open transactions new rows wait for, because these may still commit a row with a smaller cursor:
    `transactions` (all of the database), or `writers` (those that have written to the tables of the query), which is
    enough where each INSERT takes its value from a sequence itself. A first column of type `xid8` waits for none."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Each column once."""
        yield from super().relation_problems()
        for index, name in enumerate(self.cursor):
            if name in self.cursor[:index]:
                what = f"column `{name}` appears twice"
                yield ShapeProblem(codes.NAME_TWICE, ("cursor", index), what, "each column once")


class _Postgres(SourceConnector[PostgresSource]):
    model = PostgresSource
    meaning = "Rows of a query of PostgreSQL."
    packages: ClassVar[Mapping[str, str]] = {"asyncpg": "millstream[postgres]"}
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once: it reads on behind the cursor in its last commit, and waits for transactions that may still "
        "write in front of it",
    )
    ends = "never, without `stopAtEnd`"
    has_headers = False
    strangers = True

    def bounded(self, settings: PostgresSource) -> bool | None:
        return settings.stop_at_end

    def local_findings(self, settings: PostgresSource, place: Place) -> Iterator[Finding]:
        yield from server_findings(settings, place.path, place.base_dir)

    async def online_findings(self, settings: PostgresSource, place: Place) -> Sequence[Finding]:
        from millstream_reader.sources.postgres.query import look

        faults = await look(settings, place.base_dir)
        return [Finding(codes.TARGET_UNFIT, (*place.path, *fault.loc), fault.what, fault.expected) for fault in faults]

    def notes(self, settings: PostgresSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def open(self, settings: PostgresSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_reader.sources.postgres.lane import open_query

        return open_query(settings, owner)


POSTGRES = _Postgres()
