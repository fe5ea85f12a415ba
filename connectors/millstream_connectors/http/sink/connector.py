"""The `http` sink, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.http.settings import HttpSink
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Http(SinkConnector[HttpSink]):
    model = HttpSink
    meaning = "By HTTP."
    promise = Guarantee(
        GuaranteeId.IDEMPOTENT,
        "exactly once if the receiver honours the key of each request, which is the same on every retry; at least "
        "once otherwise",
    )

    def guarantee(self, settings: HttpSink, *, fallback: bool) -> Guarantee:
        return Guarantee(
            GuaranteeId.IDEMPOTENT,
            f"exactly once if the receiver honours the `{settings.idempotency_header}` header: the key of a request "
            "is the same on every retry",
        )

    def online_findings(self, settings: HttpSink, place: Place) -> OnlineFindings:
        from millstream_connectors.http.sink.lane import look

        return look(settings, place)

    def open(self, settings: HttpSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.http.sink.lane import open_http_sink

        return open_http_sink(settings, owner.base_dir, owner.where, envelope=owner.envelope)


HTTP = _Http()
