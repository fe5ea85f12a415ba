"""The `jetstream` source and sink, as pipeline files name them."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.jetstream.settings import JetStreamSink, JetStreamSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner, as_fallback


class _Source(SourceConnector[JetStreamSource]):
    model = JetStreamSource
    meaning = "Messages of a stream of NATS JetStream."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True
    encoded = True

    def bounded(self, settings: JetStreamSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: JetStreamSource, place: Place) -> OnlineFindings:
        from millstream_connectors.jetstream.source import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: JetStreamSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.jetstream.source import open_jetstream_source

        return open_jetstream_source(settings, owner)


_WITH_IDS = (
    "at least once; each message has an id, by which the stream drops duplicates within its duplicate window. "
    "`positions` makes it exactly once"
)


class _Sink(SinkConnector[JetStreamSink]):
    encoded = True
    model = JetStreamSink
    meaning = "To a subject of a JetStream stream."
    promise = Guarantee(
        GuaranteeId.TRANSACTIONAL,
        "with `positions` exactly once: an atomic batch contains records and the position after them, guarded by the "
        "previous one; without it at least once",
    )

    def guarantee(self, settings: JetStreamSink, *, fallback: bool) -> Guarantee:
        if settings.positions is None:
            return Guarantee(GuaranteeId.AT_LEAST_ONCE, _WITH_IDS)
        if fallback:
            return as_fallback("stream")
        what = "exactly once: an atomic batch contains records and the position after them, guarded by the previous one"
        return Guarantee(GuaranteeId.TRANSACTIONAL, what)

    def online_findings(self, settings: JetStreamSink, place: Place) -> OnlineFindings:
        from millstream_connectors.jetstream.sink import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: JetStreamSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.jetstream.sink import open_jetstream_sink

        return open_jetstream_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
