"""The `bigquery` sink, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.bigquery.settings import BigQuerySink
from millstream_connectors.shared.looking import unfit
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Sink(SinkConnector[BigQuerySink]):
    keeps_position_in = "table"
    model = BigQuerySink
    meaning = "To a table of BigQuery."
    packages: ClassVar = {
        "google.cloud.bigquery_storage_v1": "millstream[bigquery]",
        "fastavro": "millstream[bigquery]",
    }
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "exactly once: the number of rows in a stream, which BigQuery counts, says which of the noted positions counts",
    )

    def online_findings(self, settings: BigQuerySink, place: Place) -> OnlineFindings:
        from millstream_connectors.bigquery.sink.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: BigQuerySink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.bigquery.sink.lane import open_bigquery_sink

        return open_bigquery_sink(settings, owner)


SINK = _Sink()
