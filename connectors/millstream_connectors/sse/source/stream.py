"""An event stream over HTTP, which is reopened after the last event that arrived.

    GET, Last-Event-ID ─► 200, text/event-stream ─► events ─► inbox
                      └─► 204: no more events

An id must identify one event, because the lane's mark contains it. So an event without an id, with the id of the
previous event, or with an id that came over an earlier connection, stops the lane.

Above it: the receiving lane. Below it: a session of aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientResponse, ClientTimeout

from millstream import codes
from millstream.clock import Clock, SystemClock
from millstream.errors import DamageError
from millstream.limits import SSE_ID_BYTES_MAX
from millstream_connectors.shared.receiving import Arrivals, ReceivedMessage, open_receiving
from millstream_connectors.shared.web.client import AskedToWaitError, WebLink, linked, translated
from millstream_connectors.shared.web.settings import HTTP
from millstream_connectors.sse.settings import SseSource
from millstream_connectors.sse.source.events import Event, EventParser
from millstream_connectors.sse.source.known import KnownIds, last_of
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

KIND = "sse"
EVENT_HEADER, ID_HEADER = "Sse-Event", "Sse-Id"
_LAST = "Last-Event-ID"
_RETRY_MAX_S = 300.0
"""Maximum pause, even if the server asks for a longer one."""
_NONE_EVER = 204


class SseStream:
    """See `receiving.Stream`."""

    def __init__(self, settings: SseSource, link: WebLink, clock: Clock) -> None:
        self.replayable = settings.replay
        self._settings = settings
        self._link = link
        self._clock = clock
        self._response: ClientResponse | None = None
        self._asked_s = 0.0
        self._retry_s = 0.0
        self._known = KnownIds()

    @property
    def pause_s(self) -> float:
        return min(max(self._asked_s, self._retry_s), _RETRY_MAX_S)

    async def connect(self, place: str) -> None:
        await self.close()
        settings, link = self._settings, self._link
        last = self._known.begin(place) or settings.last_event_id or ""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store", **({_LAST: last} if last else {})}
        timeout = ClientTimeout(total=None, sock_connect=settings.timeout_s, sock_read=settings.idle_timeout_s)
        with translated(link):
            async with asyncio.timeout(settings.timeout_s):
                response = await link.session.get(link.url, headers=headers, allow_redirects=False, timeout=timeout)
        try:
            self._check(response, last)
        except BaseException as error:
            response.close()
            if isinstance(error, AskedToWaitError):
                self._asked_s = error.delay_s
            raise
        self._asked_s = 0.0
        self._response = response

    async def receive(self, inbox: Arrivals) -> None:
        response = self._response
        if response is None or response.status == _NONE_EVER:
            return
        parser, first = EventParser(), True
        with translated(self._link):
            async for chunk in response.content.iter_any():
                for event in parser.feed(chunk):
                    received = self._received(event, last_of(inbox.place), first=first)
                    if received is not None:
                        first = False
                        inbox.put(received)
                if parser.retry_s is not None:
                    self._retry_s = parser.retry_s
                await inbox.room()
        raise self._link.away("has ended the event stream")

    async def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _check(self, response: ClientResponse, last: str) -> None:
        link = self._link
        if response.status == _NONE_EVER:
            return
        if response.status != 200:
            raise link.refused(response.status, response.headers)
        if response.content_type != "text/event-stream":
            raise link.unfit(f"answers with {response.content_type}, not with text/event-stream; check `url`")
        # Some servers, such as Mercure, report in this header where they continue.
        said = response.headers.get(_LAST)
        if self.replayable and last and said is not None and said != last:
            raise DamageError(
                codes.SOURCE_RECORDS_REMOVED,
                f"{link.where}: {link.place} continues after the event {said!r}, but the lane is at {last!r}: the "
                "events between them were removed before they were read",
            )

    def _received(self, event: Event, before: str, *, first: bool) -> ReceivedMessage | None:
        """The message for an event; None if it is not new."""
        place = ""
        if self.replayable:
            place = event.event_id or ""
            if event.data is None and not place:
                return None
            if place and place == before:
                if first or event.data is None:
                    # The server begins with the event after which it was asked to continue.
                    return None
                raise self._link.unfit(
                    f"gives two events the id {place!r}, so a position cannot separate them. {_NO_REPLAY}"
                )
            if not place:
                raise self._link.unfit(f"sends an event without an id, which cannot be requested again. {_NO_REPLAY}")
            if len(place.encode()) > SSE_ID_BYTES_MAX:
                raise self._link.unfit(f"gives ids of more than {SSE_ID_BYTES_MAX} bytes. {_NO_REPLAY}")
            if self._known.came_before(place):
                raise self._link.unfit(
                    f"was asked to continue after the event {before!r}, but sends the event {place!r} again, which has "
                    f"been read: it ignores {_LAST}, or its ids began again. Nothing was repeated. {_NO_RESUME}"
                )
            place = self._known.add(place)
        wanted = event.data is not None and (not self._settings.events or event.kind in self._settings.events)
        if not wanted and not place:
            return None
        headers = {EVENT_HEADER: event.kind.encode()}
        if event.event_id:
            headers[ID_HEADER] = event.event_id.encode()
        whole = event.whole_size if wanted else 0
        return ReceivedMessage(event.data if wanted else None, self._clock.now_us(), headers, place, whole_size=whole)


_NO_REPLAY = "Make the server give each event a unique id, or set `replay: false` for at-most-once delivery"

_NO_RESUME = (
    f"Make the server honor {_LAST}. `replay: false` reads it without positions: events that it sends again over a new "
    "connection are then read again"
)


async def look(settings: SseSource, base_dir: Path) -> None:
    """Raises Millstream errors if the server does not answer with an event stream."""
    async with linked(settings, base_dir, "validate --online", HTTP) as link:
        stream = SseStream(settings, link, SystemClock())
        try:
            await stream.connect("")
        finally:
            await stream.close()


@asynccontextmanager
async def open_sse_source(settings: SseSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane at `owner.position`. One lane receives the stream."""
    async with linked(settings, owner.base_dir, owner.where, HTTP) as link:
        stream = SseStream(settings, link, owner.clock)
        async with open_receiving(KIND, link.place, owner, stream, idle=owner.lane.partition != 0) as lane:
            yield lane
