"""The HTTP endpoint of a process: metrics for Prometheus, and probes for the system that restarts the process.

    /metrics   Prometheus text
    /livez     200 while the event loop runs
    /readyz    200 when the process can do its work, otherwise 503 with the reason

Above it: `open_telemetry`. Below it: two callbacks, for the metrics and for readiness, `probes`, which reads requests
and writes answers, and `millstream.wire.accepting`, which limits connections. It listens on the loopback interface by
default. It requires no credentials; docs/telemetry.md lists what it publishes.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millstream import codes
from millstream.background import beside, open_tasks
from millstream.clock import Clock
from millstream.errors import InfrastructureError
from millstream.limits import METRICS_CLIENT_CONNECTIONS_MAX, METRICS_CONNECTIONS_MAX
from millstream.telemetry.probes import Answer, Probes
from millstream.wire.accepting import Accepting
from millstream.wire.connections import ConnectionLimits, Connections, Refusals

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def open_endpoint(
    host: str, port: int, metrics_text: Callable[[], bytes], not_ready: Callable[[], str | None], clock: Clock
) -> AsyncIterator[None]:
    """Serves until the context ends. `not_ready` returns the reason why the process is not ready; None when it is.

    Raises `InfrastructureError` if the endpoint cannot listen on the port.
    """

    def readyz() -> Answer:
        reason = not_ready()
        return Answer(b"ok\n") if reason is None else Answer(reason.encode() + b"\n", status=503)

    paths = {
        "/metrics": lambda: Answer(metrics_text(), _METRICS_TYPE),
        "/livez": lambda: Answer(b"ok\n"),
        "/readyz": readyz,
    }
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        # `create_server` puts the address into the error's text.
        code = error.errno or 0
        reason = os.strerror(code) if code > 0 else error.strerror
        raise InfrastructureError(
            codes.PORT_TAKEN,
            f"the metrics endpoint cannot listen on {host}:{port}: {reason}; "
            "choose another port: --metrics-port-base of `millstream run`, --metrics-port of a vertex process",
        ) from error
    limits = ConnectionLimits(METRICS_CONNECTIONS_MAX, METRICS_CLIENT_CONNECTIONS_MAX)
    limits = limits.fitting(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    refusals = Refusals(f"the metrics endpoint on port {port}", clock)
    probes = Probes(paths, limits, refusals)
    with listener:
        listener.setblocking(False)
        accepting = Accepting(listener, limits, Connections(limits), refusals, probes.connection)
        async with open_tasks() as tasks, beside(accepting.run(tasks), f"accept metrics on port {port}"):
            try:
                yield
            finally:
                accepting.stop()
                probes.close()
