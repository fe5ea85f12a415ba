"""The `sql` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.shared.looking import unfit
from millstream_connectors.sql.checks import database_findings
from millstream_connectors.sql.settings import SqlSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Sql(SourceConnector[SqlSource]):
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
        yield from database_findings(settings, place.path, place.base_dir)
        if settings.file is not None and not (place.base_dir / settings.file).exists():
            what = f"there is no file {place.base_dir / settings.file}"
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "url"), what, "a SQLite database")

    def online_findings(self, settings: SqlSource, place: Place) -> OnlineFindings:
        from millstream_connectors.sql.source.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: SqlSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.sql.source.lane import open_sql_source

        return open_sql_source(settings, owner)


SQL = _Sql()
