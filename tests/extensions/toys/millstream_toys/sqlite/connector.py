"""The `sqlite` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream.spec.values import SpecModel, Text
from millstream_writer.connector import SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class SqliteSink(SpecModel):
    """Writes each record as a row of a table `records`."""

    noun = "an sqlite sink"

    path: Text
    """The database, relative to the pipeline file; created if it does not exist."""


class Sqlite(SinkConnector[SqliteSink]):
    model = SqliteSink
    meaning = "To a table of SQLite."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL, "exactly once: each transaction holds rows and the position behind them"
    )

    def local_findings(self, settings: SqliteSink, place: Place) -> Iterator[Finding]:
        directory = (place.base_dir / settings.path).parent
        if not directory.is_dir():
            yield Finding(
                codes.NO_SUCH_FILE,
                (*place.path, "path"),
                f"there is no directory {directory}",
                "a database in an existing one",
            )

    async def online_findings(self, settings: SqliteSink, place: Place) -> Sequence[Finding]:
        path = place.base_dir / settings.path
        if not path.exists() or path.read_bytes()[:15] == b"SQLite format 3":
            return ()
        what, expected = f"{path} is not a database of SQLite", "a database, or a name for a new one"
        return (Finding(codes.CONNECTOR_SETTINGS, (*place.path, "path"), what, expected),)

    def open(self, settings: SqliteSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_toys.sqlite.lane import open_sqlite

        return open_sqlite(settings, owner)


SQLITE = Sqlite()
