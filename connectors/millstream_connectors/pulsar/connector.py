"""The `pulsar` source and sink, as pipeline files name them."""

from __future__ import annotations

from typing import Any, ClassVar

from millstream.spec.connectors import Connector, Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.pulsar.settings import PulsarSink, PulsarSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner
from millstream_writer.connector import SinkConnector, SinkOpening, SinkOwner, as_fallback


class _Pulsar(Connector[Any]):
    """What the source and the sink have in common."""

    packages: ClassVar = {"pulsar": "millstream[pulsar]"}
    encoded = True


class _Source(_Pulsar, SourceConnector[PulsarSource]):
    model = PulsarSource
    meaning = "Messages of topics of Pulsar."
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True

    def bounded(self, settings: PulsarSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: PulsarSource, place: Place) -> OnlineFindings:
        from millstream_connectors.pulsar.looking import look

        return unfit(place, look(settings, settings.topics, place.base_dir))

    def open(self, settings: PulsarSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.pulsar.source.lane import open_pulsar_source

        return open_pulsar_source(settings, owner)


_EXACT = (
    "exactly once: the brokers deduplicate by producer name and sequence id, which are the same on every attempt; a "
    "lane that no partition remembers stops"
)


class _Sink(_Pulsar, SinkConnector[PulsarSink]):
    model = PulsarSink
    meaning = "To a topic of Pulsar."
    promise = Guarantee(
        GuaranteeId.IDEMPOTENT,
        f"{_EXACT}. At least once with `deduplication: false`",
    )

    def guarantee(self, settings: PulsarSink, *, fallback: bool) -> Guarantee:
        if fallback:
            return as_fallback("topic")
        if not settings.deduplication:
            return Guarantee(
                GuaranteeId.AT_LEAST_ONCE,
                "at least once: the brokers may store a repeated message. `deduplication: true` makes it exactly once",
            )
        return Guarantee(GuaranteeId.IDEMPOTENT, _EXACT)

    def online_findings(self, settings: PulsarSink, place: Place) -> OnlineFindings:
        from millstream_connectors.pulsar.looking import look_at_sink

        return unfit(place, look_at_sink(settings, place.base_dir))

    def open(self, settings: PulsarSink, owner: SinkOwner) -> SinkOpening:
        from millstream_connectors.pulsar.sink.lane import open_pulsar_sink

        return open_pulsar_sink(settings, owner)


SOURCE = _Source()
SINK = _Sink()
