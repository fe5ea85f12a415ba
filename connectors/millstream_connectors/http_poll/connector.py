"""The `httpPoll` source, as pipeline files name it. The `http` source, in contrast, receives requests."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.http_poll.settings import HttpPollSource
from millstream_connectors.shared.looking import no_findings
from millstream_reader.connector import SourceConnector, SourceOpening, SourceOwner


class _Source(SourceConnector[HttpPollSource]):
    model = HttpPollSource
    meaning = "Records in the answers of an HTTP server that is polled."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "with `cursor` exactly once, if a cursor is always followed by the same records; at most once without it",
    )
    ends = "never, without `stopAtEnd`"
    untrusted = True

    def guarantee(self, settings: HttpPollSource) -> Guarantee:
        if settings.cursor is None:
            return Guarantee(
                GuaranteeId.AT_MOST_ONCE,
                "at most once: data that the server had only between two requests is missed, and uncommitted data of a "
                "killed process is lost. `cursor` makes it exactly once",
            )
        return Guarantee(
            GuaranteeId.POSITION,
            "exactly once if the server always returns the same records after a cursor, in the same order: the cursor "
            "is in the lane's last commit",
        )

    def bounded(self, settings: HttpPollSource) -> bool | None:
        return settings.stop_at_end

    def online_findings(self, settings: HttpPollSource, place: Place) -> OnlineFindings:
        from millstream_connectors.http_poll.source.lane import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: HttpPollSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.http_poll.source.lane import open_http_poll

        return open_http_poll(settings, owner)


SOURCE = _Source()
