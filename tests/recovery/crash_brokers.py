"""The broker that pipelines are killed on: an open one, or one with encryption and a user for each vertex.

`BrokerPlace.access` says who a vertex of a pipeline is to it, or who prepares and removes the pipeline.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.buffers.jetstream.server import open_nats_server
from millstream.buffers.redis.server import open_redis_server
from millstream.buffers.registry import technology
from millstream.buffers.technology import Technology
from millstream.files import write_private
from millstream.wire.certificates import make_certificate
from tests.nats_process import open_nats_process
from tests.support.children import started

OPERATOR = "_pipeline"
"""Who may do everything in the account of a pipeline."""
_SERVER = """
listen: "127.0.0.1:-1"
max_payload: 8388608
jetstream {{ store_dir: "{store}", sync_interval: always }}
tls {{ cert_file: "%s", key_file: "%s" }}
include "accounts.conf"
"""


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """Where a broker is, and the files that say who one is."""

    ledger: str
    """Key of its technology."""
    url: str
    access_file: str
    """Of the one user there is; empty where each vertex has its own."""
    users: str
    """The directory that `millstream broker config` wrote; empty where there is one user."""

    @property
    def technology(self) -> Technology:
        return technology(self.ledger)

    def access(self, pipeline: str, user: str) -> Any:
        """Of the technology. `user`: a vertex, or `OPERATOR`."""
        file = Path(self.users, pipeline, f"{user}.yaml") if self.users else Path(self.access_file)
        return self.technology.load_access(file, self.url)


@asynccontextmanager
async def open_broker(directory: Path) -> AsyncIterator[BrokerPlace]:
    """Of one user, in plain text."""
    async with open_nats_server(directory) as server:
        yield BrokerPlace("jetstream", server.url, str(server.access_file), "")


@asynccontextmanager
async def open_redis(directory: Path) -> AsyncIterator[BrokerPlace]:
    """Redis or Valkey, of one user."""
    async with open_redis_server(directory) as server:
        (directory / "password").touch(mode=0o600)
        (directory / "password").write_text(server.access.password or "")
        access = directory / "access.yaml"
        write_private(access, "password: {file: password}\n")
        yield BrokerPlace("redis", server.access.url, str(access), "")


@asynccontextmanager
async def open_secured_broker(directory: Path, files: Iterable[Path]) -> AsyncIterator[BrokerPlace]:
    """Encrypted, with an account for each of these pipelines and a user for each of their vertices."""
    certificate = make_certificate(directory)
    users = directory / "users"
    command = ["broker", "config", *map(str, files), "--to", str(users), "--ca", str(certificate.certificate)]
    async with started(
        sys.executable, "-m", "millstream_runner", *command, stdout=asyncio.subprocess.DEVNULL
    ) as config:
        assert await config.wait() == 0
    async with open_nats_process(users, _SERVER % (certificate.certificate, certificate.key)) as server:
        # The server tells its addresses as nats://0.0.0.0 does: the certificate is for this one.
        yield BrokerPlace("jetstream", server.url.replace("tls://", "nats://"), "", str(users))
