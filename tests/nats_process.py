"""A NATS server with a configuration that a test writes itself; `jetstream.nats_server` has the usual one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from millstream.buffers.jetstream.server import find_nats_server
from millstream.die_with_parent import dying_with_parent
from tests.support.children import started

START_TIMEOUT_S = 60

OPEN = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
max_payload: 8388608
jetstream {{ store_dir: "{store}", sync_interval: always }}
"""
"""No accounts, no credentials, and monitoring over HTTP: as a server is that was set up in a minute."""


@dataclass(frozen=True)
class NatsProcess:
    """A server that takes connections."""

    pid: int
    url: str
    monitor_url: str | None
    """None where its configuration has no monitoring."""


@asynccontextmanager
async def open_nats_process(
    directory: Path, conf: str | Path = OPEN, environment: Mapping[str, str] | None = None
) -> AsyncIterator[NatsProcess]:
    """A server with this configuration: a file, or a text in which `{store}` stands for its store."""
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(conf, str):
        text = conf.format(store=directory / "store")
        conf = directory / "nats-server.conf"
        conf.write_text(text)
    with (directory / "log").open("wb") as log:
        starting = started(
            *dying_with_parent([find_nats_server(), "-c", str(conf), "--ports_file_dir", str(directory)]),
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
        async with starting as process:
            ports = directory / f"nats-server_{process.pid}.ports"
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    while not ports.exists() or not ports.read_text().endswith("}"):
                        assert process.returncode is None, (directory / "log").read_text()
                        await asyncio.sleep(0.005)
                found = json.loads(ports.read_text())
                yield NatsProcess(process.pid, found["nats"][0], (found.get("monitoring") or [None])[0])
            finally:
                ports.unlink(missing_ok=True)
