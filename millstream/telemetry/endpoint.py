"""The HTTP endpoint of a process: metrics for Prometheus, probes for whoever restarts it.

    /metrics   Prometheus text
    /livez     200 as long as the event loop turns
    /readyz    200 when it can do its work, else 503 with the reason

Above it: `open_telemetry`. Below it: a text made on demand and a question. On loopback unless told otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from millstream.errors import EnvironmentFault

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@asynccontextmanager
async def open_endpoint(
    host: str, port: int, metrics_text: Callable[[], bytes], not_ready: Callable[[], str | None]
) -> AsyncIterator[None]:
    """Serve until the context ends. `not_ready`: the reason why not, None when ready.

    Raises `EnvironmentFault` when the port is taken.
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
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise EnvironmentFault(
                f"the metrics endpoint cannot listen on {host}:{port}: {error.strerror or error}; "
                "choose another port: --metrics-port-base of `millstream run`, --metrics-port of a vertex process"
            ) from error
        yield
    finally:
        await runner.cleanup()
