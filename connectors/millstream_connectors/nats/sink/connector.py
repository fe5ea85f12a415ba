"""The `nats` sink, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.nats.settings import NatsSink
from millstream_connectors.shared.looking import no_findings
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner


class _Nats(SinkConnector[NatsSink]):
    model = NatsSink
    meaning = "To a NATS subject, without JetStream."
    promise = Guarantee(
        GuaranteeId.NO_PROMISE,
        "none: each record is sent to the server, more than once after a failure, and the server sends it to the "
        "subscribers that are connected and fast enough. `jetstream` stores records",
    )
    whole = True

    def online_findings(self, settings: NatsSink, place: Place) -> OnlineFindings:
        from millstream_connectors.nats.sink.lane import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: NatsSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.nats.sink.lane import open_nats_sink

        return open_nats_sink(settings, owner)


NATS = _Nats()
