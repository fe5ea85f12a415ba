"""The `blackhole` sink, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream_connectors.blackhole.settings import BlackholeSink
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOpening, SinkOwner


class _Sink(SinkConnector[BlackholeSink]):
    whole = True
    model = BlackholeSink
    meaning = "Nowhere."
    promise = Guarantee(GuaranteeId.NO_TARGET, "nothing is written; each record is counted exactly once")

    def envelope_form(self, settings: BlackholeSink) -> EnvelopeForm:
        return EnvelopeForm.NONE

    def open(self, settings: BlackholeSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.blackhole.sink import open_blackhole_sink

        return open_blackhole_sink()


SINK = _Sink()
