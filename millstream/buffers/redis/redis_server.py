"""A real server for a test or a benchmark, in a separate process and on a separate port. Its methods are faults.

Above it: tests and benchmarks. Below it: the server of a run.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from millstream.buffers.redis.access import RedisAccess
from millstream.buffers.redis.server import RedisServerOfRun
from millstream.buffers.servers import SeparateServer, started
from millstream.ledger.protocol import DurabilityLevel


class RedisServer(SeparateServer[RedisServerOfRun]):
    """One Redis or Valkey server."""

    @property
    def access(self) -> RedisAccess:
        """The address of the server, and its password."""
        return self._server.access


def open_redis_server(directory: Path, *, fsync: bool = True) -> AbstractAsyncContextManager[RedisServer]:
    """A separate server that writes only below `directory` and ends with the context."""
    durability = DurabilityLevel.FSYNC if fsync else DurabilityLevel.PROCESS
    server = RedisServerOfRun(directory, durability=durability, port=None)
    return started(RedisServer(directory, server, "Redis server"))
