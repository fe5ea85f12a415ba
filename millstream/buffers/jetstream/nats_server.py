"""A real broker for a test, in a separate process and on separate ports. Its methods are faults.

Above it: tests, and experiments with a pipeline against a real broker. Below it: the server of a run.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from millstream.buffers.jetstream.server import JetStreamServer
from millstream.buffers.servers import SeparateServer, started
from millstream.ledger.protocol import DurabilityLevel
from millstream.nats.access import BrokerAccess
from millstream.wire.certificates import make_certificate


class NatsServer(SeparateServer[JetStreamServer]):
    """One NATS server."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def access(self) -> BrokerAccess:
        """The address of the server, and its password, without which it answers no client."""
        return self._server.access


def open_nats_server(
    directory: Path,
    *,
    sync_always: bool = True,
    file_store_bytes_max: int | None = None,
    tls: bool = False,
) -> AbstractAsyncContextManager[NatsServer]:
    """A separate server that writes only below `directory` and ends with the context. With `tls`, it has its
    own certificate and accepts only encrypted connections."""
    if tls:
        make_certificate(directory)
    server = JetStreamServer(
        directory,
        durability=DurabilityLevel.FSYNC if sync_always else DurabilityLevel.PROCESS,
        port=None,
        file_store_bytes_max=file_store_bytes_max,
    )
    return started(NatsServer(directory, server, "NATS server"))
