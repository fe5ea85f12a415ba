"""The `postgres` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding
from millstream_connectors.postgres.settings import PostgresSink, server_findings
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkConnector, SinkOwner

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class _Postgres(SinkConnector[PostgresSink]):
    whole = True
    keeps_position_in = "table"
    model = PostgresSink
    meaning = "To a PostgreSQL table."
    packages: ClassVar[Mapping[str, str]] = {"asyncpg": "millstream[postgres]"}
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: each transaction holds the rows and the position after them, under the owner's epoch",
    )

    def local_findings(self, settings: PostgresSink, place: Place) -> Iterator[Finding]:
        yield from server_findings(settings, place.path, place.base_dir)

    def online_findings(self, settings: PostgresSink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.postgres.sink.target import look

        return unfit(place, look(settings, place.base_dir))

    def place(self, settings: PostgresSink) -> str:
        return f"{settings.host} {settings.port} {settings.database} {settings.position_table}"

    def open(self, settings: PostgresSink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.postgres.sink.lane import open_postgres_sink

        return open_postgres_sink(settings, owner)


POSTGRES = _Postgres()
