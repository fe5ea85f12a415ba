"""The `sql` source and sink, as pipeline files name them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.shared.looking import unfit
from millstream_connectors.sql.settings import SqlDatabase, SqlSink, SqlSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


def _database_findings(settings: SqlDatabase, place: Place) -> Iterator[Finding]:
    """What the connection to the database needs and this machine does not have. SQLAlchemy is imported only if it is
    there."""
    here = (*place.path, "url")
    file = _file_of(settings, place)
    if file is not None:
        if not file.parent.is_dir():
            what = f"there is no directory {file.parent}"
            yield Finding(codes.NO_SUCH_FILE, here, what, "an existing directory for the database file")
    elif find_spec("sqlalchemy") is not None:
        from millstream_connectors.sql.client import driver_fault

        fault = driver_fault(settings)
        if fault is not None:
            yield Finding(codes.EXTRA_NEEDED, here, *fault)


def _file_of(settings: SqlDatabase, place: Place) -> FilePath | None:
    """The file of a SQLite database."""
    return None if settings.file is None else place.base_dir / settings.file


class _Source(SourceConnector[SqlSource]):
    model = SqlSource
    meaning = "Rows of a database table or query, through SQLAlchemy."
    packages: ClassVar = {"sqlalchemy": "millstream[sql]"}
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once: it continues after the cursor in its last commit; rows that change while it reads may be "
        "read in their old or new state",
    )
    ends = "at the last row, without `follow`"
    has_headers = False
    untrusted = True

    def bounded(self, settings: SqlSource) -> bool | None:
        return not settings.follow

    def local_findings(self, settings: SqlSource, place: Place) -> Iterator[Finding]:
        yield from _database_findings(settings, place)
        file = _file_of(settings, place)
        if file is not None and not file.exists():
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "url"), f"there is no file {file}", "a SQLite database")

    def online_findings(self, settings: SqlSource, place: Place) -> OnlineFindings:
        from millstream_connectors.sql.source.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: SqlSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.sql.source.lane import open_sql_source

        return open_sql_source(settings, owner)


class _Sink(SinkConnector[SqlSink]):
    whole = True
    keeps_position_in = "table"
    model = SqlSink
    meaning = "To a database table, through SQLAlchemy."
    packages: ClassVar = {"sqlalchemy": "millstream[sql]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each transaction holds the rows and the position after them, under the owner's epoch",
    )

    def local_findings(self, settings: SqlSink, place: Place) -> Iterator[Finding]:
        yield from _database_findings(settings, place)
        file = _file_of(settings, place)
        if file is not None and not settings.create_table and not file.exists():
            expected = "a database, or `createTable: true`"
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "url"), f"there is no file {file}", expected)

    def online_findings(self, settings: SqlSink, place: Place) -> OnlineFindings:
        from millstream_connectors.sql.sink.lane import look

        async def findings() -> Sequence[Finding]:
            file = _file_of(settings, place)
            if file is not None and not file.exists():
                # A database that the sink creates does not exist yet; other missing ones were found before.
                return ()
            if file is not None:
                closed = [path for path in (file, file.parent) if not os.access(path, os.W_OK)]
                if closed:
                    # SQLite puts a journal beside the database.
                    what, remedy = f"{closed[0]} cannot be written", "a file and a directory that you may write"
                    return [Finding(codes.TARGET_REFUSES, (*place.path, "url"), what, remedy)]
            return place.unfit(await look(settings, place.base_dir))

        return findings()

    def place(self, settings: SqlSink) -> str:
        return f"{settings.shown} {settings.position_table}"

    def open(self, settings: SqlSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.sql.sink.lane import open_sql_sink

        return open_sql_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
