"""The settings of the `websocket` source, as pipeline files have them. Pure."""

from __future__ import annotations

from typing import Annotated

from millstream.spec.references import TextOrReference
from millstream.spec.values import After, PositiveDuration, Text, field
from millstream_connectors.shared.web.settings import WEBSOCKET as SCHEMES
from millstream_connectors.shared.web.settings import WebServer, url_check


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
