"""The `opensearch` sink, as pipeline files name it."""

from __future__ import annotations

from importlib import import_module

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.opensearch.settings import OpenSearchSink
from millstream_connectors.shared.looking import no_findings
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Sink(SinkConnector[OpenSearchSink]):
    model = OpenSearchSink
    meaning = "To an index of OpenSearch, by bulk requests."
    promise = Guarantee(
        GuaranteeId.IDEMPOTENT,
        "exactly once: each document has an id that is the same on every attempt, and is created once",
    )

    def guarantee(self, settings: OpenSearchSink, *, fallback: bool) -> Guarantee:
        if settings.mode == "insert":
            return self.promise
        return Guarantee(
            GuaranteeId.IDEMPOTENT,
            "exactly once: each write has a version, and OpenSearch refuses one that is older than the document's",
        )

    def online_findings(self, settings: OpenSearchSink, place: Place) -> OnlineFindings:
        from millstream_connectors.opensearch.sink.lane import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: OpenSearchSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.opensearch.sink.lane import open_opensearch_sink

        # The parser of JSON, which the lane would import at its first records.
        import_module("msgspec.json")
        return open_opensearch_sink(settings, owner)


SINK = _Sink()
