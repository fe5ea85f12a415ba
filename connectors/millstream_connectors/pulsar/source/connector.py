"""The `pulsar` source, as pipeline files name it."""

from __future__ import annotations

from typing import ClassVar

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.pulsar.settings import PulsarSource
from millstream_connectors.shared.looking import unfit
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Pulsar(SourceConnector[PulsarSource]):
    encoded = True
    model = PulsarSource
    meaning = "Messages of topics of Pulsar."
    packages: ClassVar = {"pulsar": "millstream[pulsar]"}
    promise = Guarantee(GuaranteeId.POSITION, "exactly once: it continues after the message in its last commit")
    ends = "never, without `stopAtEnd`"
    untrusted = True

    def bounded(self, settings: PulsarSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: PulsarSource, place: Place) -> OnlineFindings:
        from millstream_connectors.pulsar.looking import Looking, look

        return unfit(place, look(settings, settings.topics, place.base_dir, Looking()))

    def open(self, settings: PulsarSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.pulsar.source.lane import open_pulsar_source

        return open_pulsar_source(settings, owner)


PULSAR = _Pulsar()
