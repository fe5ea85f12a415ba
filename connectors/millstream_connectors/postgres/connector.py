"""The `postgres` source and sink, as pipeline files name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from millstream import codes
from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.postgres.settings import PostgresServer, PostgresSink, PostgresSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Postgres(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"asyncpg": "millstream[postgres]"}

    def local_findings(self, settings: PostgresServer, place: Place) -> Iterator[Finding]:
        """Files that the connection needs and this machine does not have."""
        if isinstance(settings.ssl_root_cert, str) and not (place.base_dir / settings.ssl_root_cert).is_file():
            what = f"there is no file {place.base_dir / settings.ssl_root_cert}"
            yield Finding(codes.NO_SUCH_FILE, (*place.path, "sslRootCert"), what, "a file with certificates, as PEM")


class _Source(_Postgres, SourceConnector[PostgresSource]):
    model = PostgresSource
    meaning = "Rows of a PostgreSQL query, or changes to its tables."
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


class _Sink(_Postgres, SinkConnector[PostgresSink]):
    whole = True
    keeps_position_in = "table"
    model = PostgresSink
    meaning = "To a PostgreSQL table."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each transaction holds the rows and the position after them, under the owner's epoch",
    )

    def online_findings(self, settings: PostgresSink, place: Place) -> OnlineFindings:
        from millstream_connectors.postgres.sink.target import look

        return unfit(place, look(settings, place.base_dir))

    def place(self, settings: PostgresSink) -> str:
        return f"{settings.host} {settings.port} {settings.database} {settings.position_table}"

    def open(self, settings: PostgresSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.postgres.sink.lane import open_postgres_sink

        return open_postgres_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
