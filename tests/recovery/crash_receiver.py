"""What lies outside of the pipelines that are killed: an HTTP target that outlives them and takes each key once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from tests.support.web_server import serving

RECEIVED = "received"
"""In a pipeline's directory: a file for each key, with the first body that came with it, and `.again` behind the name
for one that came later and was another."""


@asynccontextmanager
async def open_receiver(directory: Path) -> AsyncIterator[str]:
    """Its URL; what is sent to <URL>/<name> it keeps below <directory>/<name>."""

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        kept = directory / request.match_info["name"] / RECEIVED
        kept.mkdir(exist_ok=True)
        path = kept / quote(request.headers["Idempotency-Key"], safe="")
        if not path.exists():
            path.write_bytes(body)
        elif path.read_bytes() != body:
            path.with_name(f"{path.name}.again").write_bytes(body)
        return web.Response()

    application = web.Application()
    application.router.add_post("/{name}", take)
    async with serving(application) as address:
        yield f"http://{address}"
