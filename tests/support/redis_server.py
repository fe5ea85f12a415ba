"""A Redis server for tests of connectors: outside the pipeline, with kills as its API.

Above it: tests. Below it: the program of Valkey or Redis, and a client that blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis, RedisError

from millstream.buffers.redis.server_config import find_redis_server, server_config
from millstream.buffers.servers import new_password
from millstream.ports import free_ports
from tests.support.server_process import ServerProcess, started_server


class RedisServer(ServerProcess):
    """Made by `open_redis`."""

    name = "the Redis server"

    def __init__(self, directory: Path, *, cluster: bool) -> None:
        super().__init__(directory)
        self._cluster = cluster
        self.port = free_ports()
        self._cluster_port = free_ports()
        self.password = new_password()
        self.client = Redis(port=self.port, password=self.password)

    @property
    def settings(self) -> dict[str, str]:
        """How pipeline files name it."""
        return {"url": f"redis://127.0.0.1:{self.port}", "password": self.password}

    def start(self) -> None:
        """Returns when it answers."""
        text = server_config(directory=self.directory, port=self.port, password=self.password)
        if self._cluster:
            text += f"cluster-enabled yes\ncluster-port {self._cluster_port}\n"
        config = self.directory / "redis.conf"
        config.write_text(text)
        self._run([find_redis_server(), str(config)])

    def command(self, *words: str | int | bytes) -> Any:
        """What the server answers to a command."""
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def entries(self, stream: str) -> list[dict[str, bytes]]:
        """Those of a stream, in order."""
        found: Any = self.client.xrange(stream)
        return [{name.decode(): value for name, value in fields.items()} for _, fields in found]

    def _answers(self) -> bool:
        with suppress(RedisError):
            self.client.ping()
            if self._cluster:
                info = self.command("CLUSTER", "INFO")
                if b"cluster_state:ok" not in str(info).encode():
                    with suppress(RedisError):
                        self.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                    return False
            return True
        return False


@contextmanager
def open_redis(*, cluster: bool = False) -> Iterator[RedisServer]:
    """A server of its own; ended when the context ends."""
    with (
        TemporaryDirectory() as directory,
        started_server(RedisServer(Path(directory), cluster=cluster)) as server,
        closing(server.client),
    ):
        yield server
