"""The `websocket` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.values import PositiveDuration, Text, field
from millstream_connectors.shared.web.settings import WEBSOCKET as SCHEMES
from millstream_connectors.shared.web.settings import WebServer, server_notes, url_check
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane


class WebSocketSource(WebServer):
    """Receives the messages of a WebSocket."""

    noun = "a websocket source"

    url: Annotated[TextOrReference, After(url_check(SCHEMES))]
    """Address of the server, `ws://…` or `wss://…`, or a reference to it: `{env: NAME}` or `{file: PATH}`."""
    subscribe: tuple[TextOrReference, ...] = ()
    """Texts to send after each connection, in this order, such as `{"subscribe": "trades"}`. Write one with a secret as
    `{env: NAME}` or `{file: PATH}`."""
    protocols: tuple[Text, ...] = ()
    """Subprotocols to offer to the server, the preferred one first."""
    ping_interval_s: PositiveDuration = field(default=20.0, alias="pingInterval")
    """Longest silence before a ping. If the connection stays silent for as long again, it is replaced by a new one.
    Duration, default 20s."""


class _WebSocket(SourceConnector[WebSocketSource]):
    model = WebSocketSource
    meaning = "Messages that a server sends over a WebSocket."
    promise = Guarantee(
        GuaranteeId.AT_MOST_ONCE,
        "at most once: messages sent while there is no connection, or not committed by a killed process, are lost",
    )
    strangers = True
    encoded = True

    def bounded(self, settings: WebSocketSource) -> bool | None:
        return False

    def notes(self, settings: WebSocketSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def online_findings(self, settings: WebSocketSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.websocket.source.stream import look

        async def findings() -> Sequence[Finding]:
            await look(settings, place.base_dir)
            return ()

        return findings()

    def open(self, settings: WebSocketSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.websocket.source.stream import open_websocket_source

        return open_websocket_source(settings, owner)


WEBSOCKET = _WebSocket()
