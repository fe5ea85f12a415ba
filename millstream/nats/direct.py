"""A NATS client with a fast path for what every frame needs: to send a message, and to receive one.

    publish ─► socket                          unless data is waiting there: then the library's buffer and its task
    socket ─► listener, as soon as it is read  instead of a queue and a task for each subscription

Above it: the connection. Below it: `nats-py`, which keeps the connection, the subscriptions and everything rare. The
fast path must look the same to it: its buffer stays ahead of what is sent later, and its callback gets the errors of
listeners. A flush is stricter than the library's, whose ping overtakes what is buffered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

from millstream.nats.client import PING, Client, Msg, Subscription, TcpTransport
from millstream.nats.incoming import PieceParser

_T = TypeVar("_T")

Listener = Callable[[Msg], None]
"""Called while the socket is read, so it must not take long."""

_WRITES_AT_ONCE = 64 * 1024
"""Bytes that may wait in the socket's buffer before a message goes through the library, which waits for space."""
_JOINED_MAX = 16 * 1024
"""A longer payload is written separately, not copied after its header."""
_SUBJECT = re.compile(r"\S+")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Header names that the library sends."""
_NAME = re.compile(r"[!-9;-~]+")
"""Header names that the library accepts from a server."""
_SPACES = " \t\r\n\v\f"
_NAMES = 256
"""Header names that are remembered as good or bad: a pipeline uses a dozen."""
_REMEMBERED_CHARACTERS_MAX = 64
"""Characters of such a name: any publisher may send names of megabytes."""
_HEAD = b"NATS/1.0\r\n"
_END = b"\r\n"


class DirectClient(Client):
    """The client that the module describes."""

    def __init__(self, transport: TcpTransport) -> None:
        """`transport`: the transport of all its connections, one after another."""
        super().__init__()
        self._transport = self._tcp = transport
        self._ps = self._pieces = PieceParser(self)
        self._listeners: dict[int, Listener] = {}
        """Listeners by subscription id."""

    async def listen(self, subject: str, listener: Listener) -> Subscription:
        """Subscribe `listener`, which is called for each message when it is read, before the next one."""
        sid = self._sid + 1
        self._listeners[sid] = listener
        try:
            # No limits: nothing is queued for a listener, so nothing is dropped.
            return await self.subscribe(subject, pending_msgs_limit=0, pending_bytes_limit=0)
        except BaseException:
            self._listeners.pop(sid, None)
            raise

    def send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, reply: str = "") -> bool:
        """Write a message to the socket. False if the caller has to use `publish`, which covers every case."""
        # Not connected, or earlier messages are still waiting; the library waits for the server, or refuses.
        if self._status != Client.CONNECTED or self._pending or len(payload) > self._max_payload:
            return False
        if not _SUBJECT.fullmatch(subject) or (reply and not _SUBJECT.fullmatch(reply)):
            return False
        writer = self._tcp._io_writer
        if writer is None or writer.transport.get_write_buffer_size() > _WRITES_AT_ONCE:
            return False
        if headers is None:
            head = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        else:
            for name, value in headers.items():
                if not _is_token(name) or "\r" in value or "\n" in value:
                    return False
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode()
            size = len(_HEAD) + len(lines) + len(_END)
            command = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode()
            head = b"".join((command, _HEAD, lines, _END))
        pieces = [head, payload, _END]
        if len(payload) <= _JOINED_MAX:
            pieces = [b"".join(pieces)]
        try:
            self._tcp.writelines(pieces)  # type: ignore[no-untyped-call]  # as its base class is
        except (OSError, RuntimeError):
            # The connection has just been lost, and the library is about to notice.
            return False
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        return True

    def take(self, data: bytes) -> bytes | None:
        """Call the listeners of messages that have just arrived. See `millstream.nats.incoming.AtOnce`."""
        return self._pieces.take(data) if self._status == Client.CONNECTED else data

    def hear(self, sid: int, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bool:
        """Call the listener of a message. False if it has none, or if the library has to read the headers."""
        listener = self._listeners.get(sid)
        if listener is None or (headers and not headers.startswith(_HEAD)):
            return False
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        named = self._parse_header_lines(headers[len(_HEAD) :]) if headers else None
        listener(Msg(self, subject.decode(), reply.decode(), data, named or None, _sid=sid))
        return True

    def forget_unsent(self) -> None:
        """Drop what is buffered. A lost connection may have lost it as well, and the library subscribes again."""
        self._pending.clear()
        self._pending_data_size = 0

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        """As the library does it, but behind what is buffered: the answer means the server has received that too."""
        if not self._pending:
            await super()._send_ping(future)
            return
        self._pongs.append(asyncio.get_running_loop().create_future() if future is None else future)
        await self._send_command(PING)
        await self._flush_pending()

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._listeners.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        listener = self._listeners.get(sid)
        if listener is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        named = await self._process_headers(headers) if headers else None
        try:
            listener(Msg(self, subject.decode(), reply.decode(), data, named, _sid=sid))
        except Exception as error:  # noqa: BLE001 - the remaining messages are still read
            await self._error_cb(error)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Same as the library's, which checks each character of each name."""
        named: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            written, colon, value = line.partition(":")
            if colon and (name := _name_of(written)):
                named[name] = value.strip(_SPACES)
        return named


def _remembered(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """`function` of a name, which remembers the results for some short ones."""
    cached = lru_cache(_NAMES)(function)

    def remembering(name: str) -> _T:
        return cached(name) if len(name) <= _REMEMBERED_CHARACTERS_MAX else function(name)

    return remembering


@_remembered
def _is_token(name: str) -> bool:
    """Whether the library sends a header of this name."""
    return _TOKEN.fullmatch(name) is not None


@_remembered
def _name_of(written: str) -> str:
    """The name of a header of a server; empty if the library does not accept it."""
    name = written.strip(_SPACES)
    return name if _NAME.fullmatch(name) else ""
