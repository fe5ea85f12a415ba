"""A path to a system on this machine, which loses one of its answers, or brings all of them late.

    lane ─► port of the path ─► port of the system
            ◄── answers: one is lost, together with its connection; or each is late

It reads nothing of what it carries, so it is for every protocol over TCP, encrypted or not. An answer is what one read
from the system returns. It runs in a thread, because the client of a connector may block.

Above it: the suites. Below it: asyncio.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from millstream.background import beside

LOST_ANSWERS = (*range(1, 9), *range(10, 40, 3))
"""The answers that are lost, one at a time."""
LATE_S = 0.1
"""How late the answers of a slow system are."""
_TURN_S = 0.01
_CHUNK_BYTES = 64 * 1024
_START_S = 30.0


class ReroutedPath:
    """The paths to one or more ports, which count answers together. Made by `open_path`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, loses: int = 0, late_s: float = 0.0) -> None:
        """`loses`: the number of the answer that is lost, from 1; 0: none. `late_s`: how late each answer is."""
        self._loop = loop
        self._loses = loses
        self._late_s = late_s
        self._servers: list[asyncio.Server] = []
        self._carrying: set[asyncio.Task[None]] = set()
        self.answers = 0
        """How many answers have come from the system."""

    @property
    def lost(self) -> bool:
        """Whether an answer was lost."""
        return 0 < self._loses <= self.answers

    def reroute(self, port: int) -> int:
        """The port of a path to `port` of this machine."""
        return asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(_START_S)

    async def close(self) -> None:
        """End all connections. Called in the path's thread."""
        for server in self._servers:
            server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _listen(self, port: int) -> int:
        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._carrying.add(task)
            try:
                with suppress(OSError):
                    await self._carry(port, reader, writer)
            finally:
                self._carrying.discard(task)
                writer.close()

        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _carry(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with beside(_pass_on(reader, requests), "requests"):
                while data := await answers.read(_CHUNK_BYTES):
                    self.answers += 1
                    if self.answers == self._loses:
                        break
                    await asyncio.sleep(self._late_s)
                    writer.write(data)
                    await writer.drain()
        except* OSError:
            # One side has closed the connection, and so does the path.
            pass
        finally:
            requests.close()


class Turns:
    """Turns of the event loop, counted every hundredth of a second. Made by `counted_turns`."""

    def __init__(self) -> None:
        self.count = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Counts as long as the context lives."""
    turns = Turns()

    async def turn() -> None:
        while True:  # until it is cancelled
            await asyncio.sleep(_TURN_S)
            turns.count += 1

    async with beside(turn(), "turns of the event loop"):
        yield turns


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


@contextmanager
def open_path(*, loses: int = 0, late_s: float = 0.0) -> Iterator[ReroutedPath]:
    """A path in a thread of its own. Options: see `ReroutedPath`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="path to a system", daemon=True)
    thread.start()
    path = ReroutedPath(loop, loses=loses, late_s=late_s)
    try:
        yield path
    finally:
        asyncio.run_coroutine_threadsafe(path.close(), loop).result(_START_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
