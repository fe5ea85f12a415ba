"""A real server for a test or a benchmark, in a separate process and on a separate port. Its methods are faults.

Above it: tests and benchmarks. Below it: the program of Valkey or Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from millstream import codes
from millstream.buffers.redis.access import SCHEME, RedisAccess
from millstream.buffers.redis.ping import answers_ping
from millstream.buffers.redis.server_config import find_redis_server, new_password, server_config
from millstream.errors import InfrastructureError
from millstream.files import append_private, make_private_directories, write_private
from millstream.ports import free_ports
from millstream.processes import Process, Stop, open_process

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.005
_LOG_TAIL_CHARS = 2000


class RedisServer:
    """One server. After `restart` it has the same port and the same data, like a restarted broker."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        self._directory = directory
        self._fsync = fsync
        self._process: Process | None = None
        self._life = AsyncExitStack()
        """Ends the running process."""
        self._port = free_ports()
        self._password = new_password()

    @property
    def access(self) -> RedisAccess:
        """The address of the server, and its password."""
        return RedisAccess(f"{SCHEME}://127.0.0.1:{self._port}", password=self._password)

    @property
    def port(self) -> int:
        return self._port

    @property
    def store_dir(self) -> Path:
        """Where the server keeps its files."""
        return self._directory / "store"

    @property
    def pid(self) -> int:
        """Process id of the current or last process."""
        if self._process is None:
            raise InfrastructureError(codes.BROKER_NOT_STARTED, "the Redis server has not been started")
        return self._process.pid

    async def start(self) -> None:
        """Start the server, and return when it answers."""
        make_private_directories(self.store_dir)
        config = self._directory / "redis.conf"
        write_private(
            config,
            server_config(directory=self.store_dir, port=self._port, password=self._password, fsync=self._fsync),
        )
        with append_private(self._directory / "redis.out") as output:
            process = open_process(
                [find_redis_server(), str(config)],
                name="a Redis server",
                stdout=output,
                stderr=output,
                is_private=True,
            )
            self._process = await self._life.enter_async_context(process)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await answers_ping(self._port, self.access):
                    if not self._process.running:
                        raise InfrastructureError(
                            codes.BROKER_NOT_STARTED, f"a Redis server ended immediately: {self._tail()}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise InfrastructureError(
                codes.BROKER_NOT_STARTED, f"a Redis server did not start in {_START_TIMEOUT_S} s: {self._tail()}"
            ) from error

    async def kill(self) -> None:
        """End the server like `kill -9`, so that it cannot write anything more."""
        await self._life.aclose()

    async def stop(self) -> None:
        """Let the server shut down normally."""
        if self._process is not None:
            await self._process.end(Stop(_STOP_TIMEOUT_S))
        await self.kill()

    async def restart(self) -> None:
        """Kill the server, if it still runs, and start it again with the same files and port."""
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """Pause the process: connections stay open, but the server answers nothing."""
        assert self._process is not None, "it was started"
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None, "it was started"
        self._process.resume()

    def _tail(self) -> str:
        return (self._directory / "redis.out").read_text(errors="replace")[-_LOG_TAIL_CHARS:].strip()


@asynccontextmanager
async def open_redis_server(directory: Path, *, fsync: bool = True) -> AsyncIterator[RedisServer]:
    """A separate server that writes only below `directory` and ends with the context."""
    server = RedisServer(directory, fsync=fsync)
    try:
        await server.start()
        yield server
    finally:
        await server.kill()
