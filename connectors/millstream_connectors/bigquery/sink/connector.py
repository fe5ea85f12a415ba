"""The `bigquery` sink, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream_connectors.bigquery.settings import BigQuerySink, dataset_notes
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkConnector, SinkOwner, as_fallback

if TYPE_CHECKING:
    from millstream_writer.sink import SinkLane


class _BigQuery(SinkConnector[BigQuerySink]):
    model = BigQuerySink
    meaning = "To a table of BigQuery."
    packages: ClassVar[Mapping[str, str]] = {
        "google.cloud.bigquery_storage_v1": "millstream[bigquery]",
        "fastavro": "millstream[bigquery]",
    }
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: the number of rows in a stream, which BigQuery counts, says which of the noted positions counts",
    )

    def guarantee(self, settings: BigQuerySink, *, fallback: bool) -> Guarantee:
        if fallback:
            return as_fallback("table")
        return self.promise

    def online_findings(self, settings: BigQuerySink, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.bigquery.sink.lane import look

        return unfit(place, look(settings, place.base_dir))

    def notes(self, settings: BigQuerySink, path: Path) -> Iterator[tuple[Path, str]]:
        yield from dataset_notes(settings, path)

    def open(self, settings: BigQuerySink, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
        from millstream_connectors.bigquery.sink.lane import open_bigquery_sink

        return open_bigquery_sink(settings, owner)


BIGQUERY = _BigQuery()
