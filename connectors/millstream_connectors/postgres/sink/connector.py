"""The `postgres` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream_connectors.postgres.settings import PostgresSink, server_findings
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Postgres(SinkConnector[PostgresSink]):
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


POSTGRES = _Postgres()
