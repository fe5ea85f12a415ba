"""The `websocket` source, as pipeline files name it."""

from __future__ import annotations

from millstream.spec.connectors import Guarantee, GuaranteeId, OnlineFindings, Place
from millstream_connectors.shared.looking import no_findings
from millstream_connectors.websocket.settings import WebSocketSource
from millstream_reader.connector import EndlessSource, SourceOpening, SourceOwner


class _Source(EndlessSource[WebSocketSource]):
    model = WebSocketSource
    meaning = "Messages that a server sends over a WebSocket."
    promise = Guarantee(
        GuaranteeId.AT_MOST_ONCE,
        "at most once: messages sent while there is no connection, or not committed by a killed process, are lost",
    )
    untrusted = True
    encoded = True

    def online_findings(self, settings: WebSocketSource, place: Place) -> OnlineFindings:
        from millstream_connectors.websocket.source import look

        return no_findings(look(settings, place.base_dir))

    def open(self, settings: WebSocketSource, owner: SourceOwner) -> SourceOpening:
        from millstream_connectors.websocket.source import open_websocket_source

        return open_websocket_source(settings, owner)


SOURCE = _Source()
