"""A Redis server for tests of connectors: outside the pipeline, with kills as its API.

Above it: tests. Below it: the program of Valkey or Redis, and a client that blocks.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis, RedisError

from millstream.buffers.redis.server_config import find_redis_server, new_password, server_config
from millstream.die_with_parent import dying_with_parent
from millstream.ports import free_ports

_START_TIMEOUT_S = 20.0


class RedisServer:
    """After `start` it has the same port and the same data."""

    def __init__(self, directory: Path, *, cluster: bool) -> None:
        self._directory = directory
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
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
        text = server_config(directory=self._directory, port=self.port, password=self.password)
        if self._cluster:
            text += f"cluster-enabled yes\ncluster-port {self._cluster_port}\n"
        config = self._directory / "redis.conf"
        config.write_text(text)
        self._process = subprocess.Popen(
            dying_with_parent([find_redis_server(), str(config)]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            assert time.monotonic() < deadline_s, "the Redis server did not start"
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                raise AssertionError("the Redis server ended at once")

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

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
    with TemporaryDirectory() as directory:
        server = RedisServer(Path(directory), cluster=cluster)
        try:
            server.start()
            yield server
        finally:
            server.client.close()
            server.kill()
