"""The valkey-server or redis-server that a run starts for itself, and a separate one for a test or a benchmark.

Above it: the supervisor of the broker; tests and benchmarks. Below it: the server's program and its files, and the
protocol of Redis, of which it uses two commands to see whether the server answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

from millstream.buffers.redis.access import SCHEME, RedisAccess
from millstream.buffers.redis.server_config import find_redis_server, server_config
from millstream.buffers.servers import LocalServer, SeparateServer, log_entry, started
from millstream.buffers.technology import BrokerAnswer
from millstream.ledger.protocol import DurabilityLevel

_LINE = re.compile(rb"\d+:[A-Z] (\d{2} \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3}) ([.\-*#]) (.*)")
_LEVELS = {".": "debug", "-": "info", "*": "info", "#": "warning"}
_CONFIG_FILE = "redis.conf"
_PONG = b"+PONG\r\n"


class RedisServerOfRun(LocalServer):
    """`Server` with an append-only log in a directory."""

    @property
    def access(self) -> RedisAccess:
        return RedisAccess(f"{SCHEME}://127.0.0.1:{self.port}", password=self._password)

    def _config(self) -> Mapping[str, str]:
        return {
            _CONFIG_FILE: server_config(
                directory=self.store, port=self.port, password=self._password, fsync=self._fsync
            )
        }

    def command(self) -> list[str]:
        return [find_redis_server(), str(self._directory / _CONFIG_FILE)]

    async def is_ready(self, pid: int) -> bool:
        return await answers_ping(self.port, self.access)

    async def ask(self) -> BrokerAnswer | None:
        # A server that cannot write ends by itself.
        return BrokerAnswer() if await answers_ping(self.port, self.access) else None

    def log_entry(self, line: bytes) -> bytes | None:
        match = _LINE.match(line)
        if match is None:
            # The server's logo, and the lines next to it.
            return line if line.lstrip()[:1].isalnum() else None
        return log_entry(match, "%d %b %Y %H:%M:%S.%f", _LEVELS, "milliseconds")

    def says_full(self, line: bytes) -> bool:
        """Never: a server that cannot write ends by itself, so it is restarted anyway."""
        return False


async def answers_ping(port: int, access: RedisAccess) -> bool:
    """True when the server has answered, however long that took; False if there is no server, if it closes the
    connection, or if it is still loading its data."""
    who = [access.password or ""] if access.user is None else [access.user, access.password or ""]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with closing(writer):
            writer.write(_command("AUTH", *who) + _command("PING"))
            await reader.readline()
            return await reader.readline() == _PONG
    except (OSError, ValueError):
        return False


def _command(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    return "".join(parts).encode()


class RedisServer(SeparateServer[RedisServerOfRun]):
    """One Redis or Valkey server in a separate process and on a separate port. Its methods are faults."""

    @property
    def access(self) -> RedisAccess:
        """The address of the server, and its password."""
        return self._server.access


def open_redis_server(directory: Path, *, fsync: bool = True) -> AbstractAsyncContextManager[RedisServer]:
    """A separate server that writes only below `directory` and ends with the context."""
    durability = DurabilityLevel.FSYNC if fsync else DurabilityLevel.PROCESS
    server = RedisServerOfRun(directory, durability=durability, port=None)
    return started(RedisServer(directory, server, "Redis server"))
