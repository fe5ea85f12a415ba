"""The HTTP endpoint of a process: metrics for Prometheus, and probes for the system that restarts the process.

    /metrics   Prometheus text
    /livez     200 while the event loop runs
    /readyz    200 when the process can do its work, otherwise 503 with the reason

Above it: `open_telemetry`. Below it: two callbacks, for the metrics and for readiness, and the HTTP server that limits
connections. It listens on the loopback interface by default. It requires no credentials; docs/telemetry.md lists what
it publishes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from millstream import codes
from millstream.clock import Clock
from millstream.errors import InfrastructureError
from millstream.limits import METRICS_CLIENT_CONNECTIONS_MAX, METRICS_CONNECTIONS_MAX
from millstream.wire.connections import ConnectionLimits
from millstream.wire.http_server import open_http_server

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def open_endpoint(
    host: str, port: int, metrics_text: Callable[[], bytes], not_ready: Callable[[], str | None], clock: Clock
) -> AsyncIterator[None]:
    """Serves until the context ends. `not_ready` returns the reason why the process is not ready; None when it is.

    Raises `InfrastructureError` if the endpoint cannot listen on the port.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics_text(), headers={"Content-Type": _METRICS_TYPE})

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = not_ready()
        return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=reason + "\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/livez", livez), web.get("/readyz", readyz)])
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
    with listener:
        listener.setblocking(False)
        limits = ConnectionLimits(METRICS_CONNECTIONS_MAX, METRICS_CLIENT_CONNECTIONS_MAX)
        where = f"the metrics endpoint on port {port}"
        async with open_http_server(app, listener, limits, where=where, clock=clock, shutdown_timeout_s=1.0):
            yield
