"""The `http` source and sink, as pipeline files name them."""

from __future__ import annotations

from collections.abc import Iterator

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, IdBounds, OnlineFindings, Place
from millstream.spec.problems import Finding
from millstream.spec.values import as_duration
from millstream_connectors.http.settings import HttpSink, HttpSource
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(EndlessSource[HttpSource]):
    model = HttpSource
    meaning = "Records sent over HTTP."
    promise = Guarantee(
        GuaranteeId.RECORD_IDS,
        "exactly once for records that are sent with an id, as long as `idTtl` remembers it; at least once without one",
    )
    untrusted = True
    extracts = True

    def id_bounds(self, settings: HttpSource) -> IdBounds | None:
        return IdBounds(settings.id_ttl_s, settings.ids_max)

    def guarantee(self, settings: HttpSource) -> Guarantee:
        return Guarantee(
            GuaranteeId.RECORD_IDS,
            "exactly once for records that are sent with an id, which is remembered for "
            f"{as_duration(settings.id_ttl_s)}; at least once without one",
        )

    def address(self, settings: HttpSource, partition: int) -> tuple[str, int] | None:
        return (settings.host, settings.port + partition) if settings.port else None

    def local_findings(self, settings: HttpSource, place: Place) -> Iterator[Finding]:
        if place.replicas > 1 and settings.port != 0:
            what = f"{place.replicas} processes cannot listen on the same port of this machine"
            yield Finding(codes.PLACE_TAKEN, (*place.vertex_path, "replicas"), what, "`replicas: 1` or `port: 0`")

    def open(self, settings: HttpSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.http.source.lane import open_http

        return open_http(settings, owner)


class _Sink(SinkConnector[HttpSink]):
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
        from millstream_connectors.http.sink import look

        return look(settings, place)

    def open(self, settings: HttpSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.http.sink import open_http_sink

        return open_http_sink(settings, owner.base_dir, owner.where, envelope=owner.envelope)


SOURCE = _Source()
SINK = _Sink()
