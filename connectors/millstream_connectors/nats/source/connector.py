"""The `nats` source, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.nats.settings import NatsSource
from millstream_connectors.shared.looking import no_findings
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Nats(SourceConnector[NatsSource]):
    model = NatsSource
    meaning = "Messages of NATS subjects, without JetStream."
    promise = Guarantee(
        GuaranteeId.AT_MOST_ONCE,
        "at most once: NATS does not store messages, so those sent while there is no connection are lost, and those "
        "that a killed process had not committed. `jetstream` is exactly once",
    )
    untrusted = True
    encoded = True

    def bounded(self, settings: NatsSource) -> bool | None:
        return False

    def online_findings(self, settings: NatsSource, place: Place) -> OnlineFindings:
        from millstream_connectors.nats.source.stream import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: NatsSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.nats.source.stream import open_nats_source

        return open_nats_source(settings, owner)


NATS = _Nats()
