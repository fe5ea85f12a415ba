"""A path to a broker that loses and delays messages on request: a proxy between a client and a real server.

    client ──► LossyPath ──► server        drops requests, or keeps them and delivers them late
           ◄──           ◄──               drops or repeats answers; falls silent

Above it: tests of commits whose answers never came, and chaos. All it knows is what a commit and its answer look like
on the wire, which its caller defines.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from millstream_runner.chaos.plan import NetworkFault


class Wire(NamedTuple):
    """How commits look on the wire between a client and its server."""

    scheme: str
    """Scheme of the server's URL."""
    commit: bytes
    """Occurs at the end of a commit, and in nothing else."""
    answer: bytes
    """Occurs in the answer to a commit."""


# The guard is in the last message of a commit, whether it is a batch or one message.
NATS = Wire("nats", b"Nats-Expected-Last-Subject-Sequence-Subject:", b'"stream":')
_MESSAGE_HEAD = re.compile(rb"MSG \S+ \S+ (\d+)\r\n(?=\{)")
_REPLY = re.compile(rb"HPUB \S+ (\S+) \d+ \d+\r\n")
_CHUNK_BYTES = 1 << 20


class LossyPath:
    """Listens on its own port; created by `open_lossy_path`. Faults occur in the order in which they were planned."""

    def __init__(self, server_port: Callable[[], int | None], port: int, wire: Wire) -> None:
        self._server_port = server_port
        self.wire = wire
        self.url = f"{wire.scheme}://127.0.0.1:{port}"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answers_late_s = 0.0
        self._plans: deque[NetworkFault] = deque()
        self._late: deque[_Late] = deque()
        self._late_changed = asyncio.Event()
        self._before_next: Callable[[], Awaitable[object]] | None = None
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def planned(self) -> int:
        """Faults that have not affected a commit yet."""
        return len(self._plans)

    def give_up_plans(self) -> None:
        """Cancel the planned faults that have not affected a commit yet."""
        self._plans.clear()

    def plan(self, fault: NetworkFault) -> None:
        """The next commit meets this fault, which is one of commits or answers. If one is lost, or the commit is late,
        the connection breaks; a late commit is kept until `deliver_late`."""
        self._plans.append(fault)

    def stall(self) -> None:
        """Let nothing through any more, in either direction; connections stay open."""
        self._flowing.clear()

    def flow(self) -> None:
        """Let through what waits, and everything that follows."""
        self._flowing.set()

    def slow_down(self, seconds: float) -> None:
        """From now on, delay everything that the server sends by this time."""
        self._answers_late_s = seconds

    async def answered(self) -> None:
        """Returns when data from the server may be passed on."""
        await asyncio.sleep(self._answers_late_s)
        await self._flowing.wait()

    async def flowing(self) -> None:
        """Returns unless it is stalled."""
        await self._flowing.wait()

    async def delayed(self) -> None:
        """Wait until a commit is being kept."""
        while not self._late:
            self._late_changed.clear()
            await self._late_changed.wait()

    async def deliver_late(self) -> bytes:
        """Deliver the commit that was kept longest to the server; returns the answer."""
        return await self._late.popleft().deliver()

    def before_next_commit(self, action: Callable[[], Awaitable[object]]) -> None:
        """Do something while the next commit is on its way, before its end reaches the server."""
        self._before_next = action

    def cut(self) -> None:
        """Break every connection."""
        for pair in list(self._pairs):
            pair.cut()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, as long as it stays."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            port = self._server_port()
            if port is None:
                return
            try:
                up = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                # The server is not reachable, so the client loses its connection, too.
                return
            pair = _Pair(self, (reader, writer), up)
            self._pairs.add(pair)
            if self._closed:
                pair.cut()
            try:
                await pair.run()
            finally:
                self._pairs.discard(pair)
                pair.cut()
        finally:
            writer.transport.abort()

    async def on_commit(self) -> NetworkFault | None:
        """What to do with the commit that has just arrived."""
        action, self._before_next = self._before_next, None
        if action is not None:
            await action()
        return self._plans.popleft() if self._plans else None

    def keep(self, late: _Late) -> None:
        self._late.append(late)
        self._late_changed.set()

    async def close(self) -> None:
        self._closed = True
        self._flowing.set()
        self.cut()
        while self._serving:
            await asyncio.wait(self._serving)
        for late in self._late:
            late.writer.transport.abort()


class _Late:
    """The end of a commit, and the open connection on which it will be delivered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self._data = data

    async def deliver(self) -> bytes:
        # The server also sends the answers to later requests: the client listens for all its answers in one place.
        answered = b"MSG %b " % _REPLY.findall(self._data)[-1]
        self.writer.write(self._data)
        received = b""
        try:
            while not (received.partition(answered)[2].count(b"\r\n") > 1):
                chunk = await self.reader.read(_CHUNK_BYTES)
                if not chunk:
                    break
                received += chunk
        finally:
            self.writer.transport.abort()
        return received.partition(answered)[2]


class _Pair:
    """A connection of the client, with its connection to the server."""

    def __init__(
        self,
        path: LossyPath,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._path = path
        self._client_reader, self._client_writer = client
        self._server_reader, self._server_writer = server
        self._lose_answer = False
        self._repeat_answer = False
        self._kept: bytes | None = None
        """A commit that will be delivered late, once this connection is gone."""

    async def run(self) -> None:
        pumps = {asyncio.ensure_future(self._upstream()), asyncio.ensure_future(self._downstream())}
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        """Break the connection; a late commit keeps its connection to the server."""
        self._client_writer.transport.abort()
        if self._kept is None:
            self._server_writer.transport.abort()

    async def _upstream(self) -> None:
        with suppress(ConnectionError):
            while data := await self._client_reader.read(_CHUNK_BYTES):
                if self._path.wire.commit in data:
                    match await self._path.on_commit():
                        case NetworkFault.LOSE_COMMIT:
                            return
                        case NetworkFault.LATE_COMMIT:
                            self._kept = data
                            self._path.keep(_Late(self._server_reader, self._server_writer, data))
                            return
                        case NetworkFault.LOSE_ANSWER:
                            self._lose_answer = True
                        case NetworkFault.REPEAT_ANSWER:
                            self._repeat_answer = True
                await self._path.flowing()
                self._server_writer.write(data)
                await self._server_writer.drain()

    async def _downstream(self) -> None:
        with suppress(ConnectionError):
            while data := await self._server_reader.read(_CHUNK_BYTES):
                if self._lose_answer and self._path.wire.answer in data:
                    return
                if self._repeat_answer:
                    repeated = with_answer_repeated(data)
                    self._repeat_answer, data = repeated == data, repeated
                await self._path.answered()
                self._client_writer.write(data)
                await self._client_writer.drain()


def with_answer_repeated(data: bytes) -> bytes:
    """The data of the server, with the first complete answer to a commit repeated; unchanged if there is none."""
    for head in _MESSAGE_HEAD.finditer(data):
        end = head.end() + int(head.group(1))
        if data[end : end + 2] == b"\r\n" and NATS.answer in data[head.end() : end]:
            return data[: end + 2] + data[head.start() : end + 2] + data[end + 2 :]
    return data


@asynccontextmanager
async def open_lossy_path(server_port: int | Callable[[], int | None], wire: Wire = NATS) -> AsyncIterator[LossyPath]:
    """A path to the server on this port of the loopback. A function is called for the port at every connection, and may
    return None."""
    listening = socket.create_server(("127.0.0.1", 0))
    try:
        port: int = listening.getsockname()[1]
        path = LossyPath(server_port if callable(server_port) else lambda: server_port, port, wire)
        listener = await asyncio.start_server(path.serve, sock=listening)
    except BaseException:
        listening.close()
        raise
    try:
        yield path
    finally:
        listener.close()
        await path.close()
        await listener.wait_closed()
