"""The valkey-server or redis-server that a run starts for itself.

Above it: the supervisor of the broker. Below it: the server's program and its files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from millstream import codes
from millstream.buffers.redis.access import SCHEME, RedisAccess
from millstream.buffers.redis.ping import answers_ping
from millstream.buffers.redis.server_config import find_redis_server, new_password, server_config
from millstream.buffers.technology import BrokerAnswer
from millstream.errors import InfrastructureError
from millstream.files import make_private_directories
from millstream.ledger.protocol import DurabilityLevel
from millstream.ports import free_ports, is_free

_LINE = re.compile(rb"\d+:[A-Z] (\d{2} \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3}) ([.\-*#]) (.*)")
_LEVELS = {".": "debug", "-": "info", "*": "info", "#": "warning"}
_CONFIG_FILE, _SECRET_FILE, ACCESS_FILE = "redis.conf", "key", "access.json"


class RedisServerOfRun:
    """`Server` with an append-only log in a directory."""

    def __init__(self, directory: Path, *, durability: DurabilityLevel, port: int | None) -> None:
        self._directory = directory
        self._fsync = durability is DurabilityLevel.FSYNC
        self.port = port if port is not None and is_free(port) else free_ports()
        self._password = new_password()

    @property
    def access(self) -> RedisAccess:
        return RedisAccess(f"{SCHEME}://127.0.0.1:{self.port}", password=self._password)

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> Mapping[str, str]:
        store = self._directory / "store"
        try:
            make_private_directories(store)
        except OSError as error:
            raise InfrastructureError(
                codes.CANNOT_WRITE, f"cannot prepare the broker's directory {store}: {error.strerror}"
            ) from error
        # The next run has a different key.
        return {
            _CONFIG_FILE: server_config(directory=store, port=self.port, password=self._password, fsync=self._fsync),
            _SECRET_FILE: f"{self._password}\n",
            ACCESS_FILE: json.dumps({"password": {"file": _SECRET_FILE}}, indent=1) + "\n",
        }

    def command(self) -> list[str]:
        return [find_redis_server(), str(self._directory / _CONFIG_FILE)]

    async def is_ready(self, pid: int) -> bool:
        return await answers_ping(self.port, self.access)

    async def ask(self) -> BrokerAnswer | None:
        # A server that cannot write ends by itself.
        return BrokerAnswer() if await answers_ping(self.port, self.access) else None

    def ended(self, pid: int) -> None:
        """Do nothing: the process leaves no files that have to be removed."""

    def log_entry(self, line: bytes) -> bytes | None:
        match = _LINE.match(line)
        if match is None:
            # The server's logo, and the lines next to it.
            return line if line.lstrip()[:1].isalnum() else None
        written, level, message = (part.decode(errors="replace") for part in match.groups())
        time = datetime.strptime(written, "%d %b %Y %H:%M:%S.%f").astimezone(UTC)
        entry = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": _LEVELS[level],
            "message": message,
        }
        return json.dumps(entry).encode()

    def says_full(self, line: bytes) -> bool:
        """Never: a server that cannot write ends by itself, so it is restarted anyway."""
        return False
