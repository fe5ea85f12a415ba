"""The settings of the `sse` source, as pipeline files have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from millstream.spec.references import TextOrReference
from millstream.spec.values import After, Flag, PositiveDuration, ShapeProblem, Text, field, without_effect
from millstream_connectors.shared.web.settings import HTTP, WebServer, url_check


class SseSource(WebServer):
    """Receives the events of an event stream (Server-Sent Events)."""

    noun = "an sse source"

    url: Annotated[TextOrReference, After(url_check(HTTP))]
    """URL of the event stream, or a reference to it: `{env: NAME}` or `{file: PATH}`."""
    replay: Flag = True
    """Whether the server gives each event an id, and continues after the one that `Last-Event-ID` names. `false` is for
    servers that do not; delivery is then at most once."""
    last_event_id: Text | None = field(default=None, alias="lastEventId")
    """The id after which the first run starts. Default: the server decides. Later runs continue after the event of the
    last commit."""
    events: tuple[Text, ...] = ()
    """Types of events to read; events without a type have the type `message`. Default: all."""
    idle_timeout_s: PositiveDuration = field(default=300.0, alias="idleTimeout")
    """Longest silence, without even a comment. After it, the connection is replaced by a new one. Duration, default
    5m."""

    def relation_problems(self) -> Iterator[ShapeProblem]:
        """Rejects an id for servers that do not support it."""
        yield from super().relation_problems()
        if not self.replay:
            yield from without_effect({"lastEventId": self.last_event_id}, "with `replay: false`", "only one of them")
