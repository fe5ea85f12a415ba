"""The `postgres` source and sink, as pipeline files name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.postgres.settings import PostgresSink, PostgresSource, server_findings
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(SourceConnector[PostgresSource]):
    model = PostgresSource
    meaning = "Rows of a PostgreSQL query, or changes to its tables."
    packages: ClassVar = {"asyncpg": "millstream[postgres]"}
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once: it continues after the cursor in its last commit, and waits for transactions that may still "
        "write rows before it; or after the change in its last commit, which its slot follows",
    )
    ends = "never, without `stopAtEnd`"
    has_headers = False
    untrusted = True

    def bounded(self, settings: PostgresSource) -> bool | None:
        return settings.stop_at_end

    def local_findings(self, settings: PostgresSource, place: Place) -> Iterator[Finding]:
        yield from server_findings(settings, place.path, place.base_dir)

    def online_findings(self, settings: PostgresSource, place: Place) -> OnlineFindings:
        from millstream_connectors.postgres.source import catalog, query

        if settings.cdc is not None:
            return unfit(place, catalog.look(settings, settings.cdc, place.base_dir))
        return unfit(place, query.look(settings, place.base_dir))

    def open(self, settings: PostgresSource, owner: SourceOwner) -> SourceOpening:
        if settings.cdc is not None:
            from millstream_connectors.postgres.source.cdc import open_cdc

            return open_cdc(settings, settings.cdc, owner)
        from millstream_connectors.postgres.source.lane import open_query

        return open_query(settings, owner)


SOURCE = _Source()


class _Sink(SinkConnector[PostgresSink]):
    whole = True
    keeps_position_in = "table"
    model = PostgresSink
    meaning = "To a PostgreSQL table."
    packages: ClassVar = {"asyncpg": "millstream[postgres]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each transaction holds the rows and the position after them, under the owner's epoch",
    )

    def local_findings(self, settings: PostgresSink, place: Place) -> Iterator[Finding]:
        yield from server_findings(settings, place.path, place.base_dir)

    def online_findings(self, settings: PostgresSink, place: Place) -> OnlineFindings:
        from millstream_connectors.postgres.sink.target import look

        return unfit(place, look(settings, place.base_dir))

    def place(self, settings: PostgresSink) -> str:
        return f"{settings.host} {settings.port} {settings.database} {settings.position_table}"

    def open(self, settings: PostgresSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.postgres.sink.lane import open_postgres_sink

        return open_postgres_sink(settings, owner)


SINK = _Sink()
