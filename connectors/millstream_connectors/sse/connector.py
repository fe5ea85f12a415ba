"""The `sse` source, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.shared.looking import no_findings
from millstream_connectors.sse.settings import SseSource
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Source(SourceConnector[SseSource]):
    model = SseSource
    meaning = "Events that a server sends over HTTP (Server-Sent Events)."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once if the server replays the events after `Last-Event-ID`; at most once with `replay: false`",
    )
    ends = "when the server answers 204"
    untrusted = True

    def guarantee(self, settings: SseSource) -> Guarantee:
        if not settings.replay:
            return Guarantee(
                GuaranteeId.AT_MOST_ONCE,
                "at most once: events sent while there is no connection, or not committed by a killed process, are "
                "lost",
            )
        return Guarantee(
            GuaranteeId.POSITION,
            "exactly once if the server replays the events after the id in `Last-Event-ID`, which is in the lane's "
            "last commit",
        )

    def online_findings(self, settings: SseSource, place: Place) -> OnlineFindings:
        from millstream_connectors.sse.source.stream import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: SseSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.sse.source.stream import open_sse_source

        return open_sse_source(settings, owner)


SOURCE = _Source()
