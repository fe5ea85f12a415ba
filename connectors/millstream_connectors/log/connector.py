"""The `log` sink, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId
from millstream_connectors.log.settings import LogSink
from millstream_writer.connector import EnvelopeForm, SinkConnector, SinkOpening, SinkOwner


class _Sink(SinkConnector[LogSink]):
    model = LogSink
    meaning = "To the vertex's log."
    promise = Guarantee(
        GuaranteeId.AT_LEAST_ONCE, "at least once: lines written shortly before a crash are written again"
    )

    def envelope_form(self, settings: LogSink) -> EnvelopeForm:
        return EnvelopeForm.NONE

    def open(self, settings: LogSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.log.sink import open_log_sink

        return open_log_sink()


SINK = _Sink()
