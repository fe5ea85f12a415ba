"""The `jetstream` source, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.jetstream.settings import JetStreamSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _JetStream(SourceConnector[JetStreamSource]):
    model = JetStreamSource
    meaning = "Messages of a stream of NATS JetStream."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True
    encoded = True

    def bounded(self, settings: JetStreamSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: JetStreamSource, place: Place) -> OnlineFindings:
        from millstream_connectors.jetstream.source.lane import look

        return unfit(place, look(settings, place.base_dir))

    def open(self, settings: JetStreamSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.jetstream.source.lane import open_jetstream_source

        return open_jetstream_source(settings, owner)


JETSTREAM = _JetStream()
