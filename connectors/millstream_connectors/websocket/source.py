"""A WebSocket: connects, subscribes, listens, and reconnects.

    handshake ─► subscribe ─► messages ─► inbox
                         silence ─► ping ─► silence ─► the connection is lost

This module sends pings instead of aiohttp, which would count an unread pong as missing: while the inbox is full,
nothing is read, and the server waits.

Above it: the receiving lane. Below it: a session of aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType, WSServerHandshakeError

from millstream.clock import Clock, SystemClock
from millstream.limits import RECORD_BYTES_MAX
from millstream.spec.references import resolve
from millstream_connectors.shared.receiving import Arrivals, ReceivedMessage, open_receiving
from millstream_connectors.shared.web.client import AskedToWaitError, WebLink, linked, translated
from millstream_connectors.shared.web.settings import WEBSOCKET as SCHEMES
from millstream_connectors.websocket.settings import WebSocketSource
from millstream_reader.connector import SourceOwner
from millstream_reader.source import SourceLane

KIND = "websocket"
_CLOSE_S = 1.0
_TOO_BIG = 1009
"""The close code for a message that is too large."""


class WebSocketStream:
    """See `receiving.Stream`."""

    replayable = False

    def __init__(self, settings: WebSocketSource, link: WebLink, messages: Sequence[str], clock: Clock) -> None:
        self._settings = settings
        self._link = link
        self._messages = messages
        self._clock = clock
        self._socket: ClientWebSocketResponse | None = None
        self.pause_s = 0.0

    async def connect(self, place: str) -> None:
        await self.close()
        settings, link = self._settings, self._link
        self.pause_s = 0.0
        with translated(link):
            try:
                async with asyncio.timeout(settings.timeout_s):
                    self._socket = await link.session.ws_connect(
                        link.url,
                        protocols=settings.protocols,
                        autoping=False,
                        max_msg_size=RECORD_BYTES_MAX,
                        timeout=ClientWSTimeout(ws_close=_CLOSE_S),
                    )
                    for message in self._messages:
                        await self._socket.send_str(message)
            except WSServerHandshakeError as error:
                refused = link.refused(error.status, error.headers or {})
                if isinstance(refused, AskedToWaitError):
                    self.pause_s = refused.delay_s
                raise refused from error

    async def receive(self, inbox: Arrivals) -> None:
        socket = self._socket
        assert socket is not None, "there is a connection"
        link, asked = self._link, False
        with translated(link):
            while True:
                await inbox.room()
                try:
                    message = await socket.receive(self._settings.ping_interval_s)
                except TimeoutError:
                    if asked:
                        raise link.away("does not answer a ping") from None
                    await socket.ping()
                    asked = True
                    continue
                asked = False
                if message.type is WSMsgType.PING:
                    await socket.pong(message.data)
                elif message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    value = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
                    inbox.put(ReceivedMessage(value, self._clock.now_us()))
                elif message.type is not WSMsgType.PONG:
                    if socket.close_code == _TOO_BIG and message.type is WSMsgType.ERROR:
                        inbox.put(ReceivedMessage(b"", self._clock.now_us(), whole_size=RECORD_BYTES_MAX + 1))
                    raise link.away(f"has closed the connection (code {socket.close_code})")

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


async def look(settings: WebSocketSource, base_dir: Path) -> None:
    """Raises Millstream errors if there is no WebSocket. Subscribes to nothing."""
    async with linked(settings, base_dir, "validate --online", SCHEMES) as link:
        stream = WebSocketStream(settings, link, (), SystemClock())
        try:
            await stream.connect("")
        finally:
            await stream.close()


@asynccontextmanager
async def open_websocket_source(settings: WebSocketSource, owner: SourceOwner) -> AsyncIterator[SourceLane]:
    """The lane. Only one of several receives the messages."""
    messages = [resolve(text, owner.base_dir, f"{owner.where}: subscribe") for text in settings.subscribe]
    async with linked(settings, owner.base_dir, owner.where, SCHEMES) as link:
        stream = WebSocketStream(settings, link, messages, owner.clock)
        async with open_receiving(KIND, link.place, owner, stream, idle=owner.lane.partition != 0) as lane:
            yield lane
