"""The `nats` source and sink, as pipeline files name them."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.nats.settings import NatsSink, NatsSource
from millstream_connectors.shared.looking import no_findings
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Source(EndlessSource[NatsSource]):
    model = NatsSource
    meaning = "Messages of NATS subjects, without JetStream."
    promise = Guarantee(
        GuaranteeId.AT_MOST_ONCE,
        "at most once: NATS does not store messages, so those sent while there is no connection are lost, and those "
        "that a killed process had not committed. `jetstream` is exactly once",
    )
    untrusted = True
    encoded = True

    def online_findings(self, settings: NatsSource, place: Place) -> OnlineFindings:
        from millstream_connectors.nats.source import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: NatsSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.nats.source import open_nats_source

        return open_nats_source(settings, owner)


class _Sink(SinkConnector[NatsSink]):
    model = NatsSink
    meaning = "To a NATS subject, without JetStream."
    promise = Guarantee(
        GuaranteeId.NO_PROMISE,
        "none: each record is sent to the server, more than once after a failure, and the server sends it to the "
        "subscribers that are connected and fast enough. `jetstream` stores records",
    )
    whole = True

    def online_findings(self, settings: NatsSink, place: Place) -> OnlineFindings:
        from millstream_connectors.nats.sink import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: NatsSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.nats.sink import open_nats_sink

        return open_nats_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
