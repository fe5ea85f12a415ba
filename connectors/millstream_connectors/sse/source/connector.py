"""The `sse` source, as pipeline files name it."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

from millstream import codes
from millstream.spec.connectors import Guarantee, GuaranteeId, Place
from millstream.spec.problems import Finding, Path
from millstream.spec.references import TextOrReference
from millstream.spec.rules import After
from millstream.spec.values import Flag, PositiveDuration, ShapeProblem, Text, field
from millstream_connectors.shared.web.settings import HTTP, WebServer, server_notes, url_check
from millstream_reader.connector import SourceConnector, SourceOwner

if TYPE_CHECKING:
    from millstream_reader.source import SourceLane

_ONCE = "at most once: events sent while there is no connection, or not committed by a killed process, are lost"


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
        if self.last_event_id is not None and not self.replay:
            what = "`lastEventId` has no effect with `replay: false`"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("lastEventId",), what, "only one of them")


class _Sse(SourceConnector[SseSource]):
    model = SseSource
    meaning = "Events that a server sends over HTTP (Server-Sent Events)."
    promise = Guarantee(
        GuaranteeId.POSITION,
        "exactly once if the server replays the events after `Last-Event-ID`; at most once with `replay: false`",
    )
    ends = "when the server answers 204"
    strangers = True

    def guarantee(self, settings: SseSource) -> Guarantee:
        if not settings.replay:
            return Guarantee(GuaranteeId.AT_MOST_ONCE, _ONCE)
        what = (
            "exactly once if the server replays the events after the id in `Last-Event-ID`, which is in the lane's "
            "last commit"
        )
        return Guarantee(GuaranteeId.POSITION, what)

    def notes(self, settings: SseSource, path: Path) -> Iterator[tuple[Path, str]]:
        yield from server_notes(settings, path)

    def online_findings(self, settings: SseSource, place: Place) -> Coroutine[Any, Any, Sequence[Finding]]:
        from millstream_connectors.sse.source.stream import look

        async def findings() -> Sequence[Finding]:
            await look(settings, place.base_dir)
            return ()

        return findings()

    def open(self, settings: SseSource, owner: SourceOwner) -> AbstractAsyncContextManager[SourceLane]:
        from millstream_connectors.sse.source.stream import open_sse_source

        return open_sse_source(settings, owner)


SSE = _Sse()
