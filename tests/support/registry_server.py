"""A stand-in for a schema registry, over HTTP on the loopback: the part of Confluent's REST interface that is used.

It is not a registry: it answers as the interface is documented, and checks no compatibility. Above it: tests. Below it:
aiohttp.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from aiohttp import web

USER, PASSWORD = "reader", "a long secret"
_AUTHORIZATION = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()


class RegistryServer:
    """Schemas by id. `away` and `closed` are its faults."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: dict[int, dict[str, Any]] = {}
        self.versions: dict[tuple[str, int], dict[str, Any]] = {}
        self.away = False
        """It answers 503, as a proxy does in front of a registry that is down."""
        self.closed = False
        """It asks who it is."""
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.away:
            return web.Response(status=503, text="<html>no upstream</html>")
        if self.closed and request.headers.get("Authorization") != _AUTHORIZATION:
            return web.json_response({"error_code": 40101, "message": "Unauthorized"}, status=401)
        parts = [unquote(part) for part in request.rel_url.raw_path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            missing = {"error_code": 40403, "message": "Schema not found"}
        else:
            found = self.versions.get((parts[1], int(parts[3])))
            missing = {"error_code": 40402, "message": "Version not found"}
        return web.json_response(missing, status=404) if found is None else web.json_response(found)


@asynccontextmanager
async def open_registry_server() -> AsyncIterator[RegistryServer]:
    server = RegistryServer()
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
