"""An HTTP server that keeps what it gets, and answers as its test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["Idempotency-Key"]


@dataclass
class HttpTarget:
    """`answer` gives the status, or a whole response, for each request; None breaks the connection off."""

    answer: Callable[[Request], int | web.Response | None] = lambda request: 200
    requests: list[Request] = field(default_factory=list)
    """In the order of their coming, refused ones too."""
    port: int = 0
    connections: set[int] = field(default_factory=set)
    held: asyncio.Event | None = None
    """When set, requests wait for it before they are answered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/records"

    def accepted(self) -> dict[str, bytes]:
        """What a target has that takes each key once."""
        taken: dict[str, bytes] = {}
        for request in self.requests:
            if self.answer(request) == 200:
                taken.setdefault(request.key, request.body)
        return taken

    async def handle(self, received: web.Request) -> web.StreamResponse:
        request = Request(received.method, dict(received.headers), await received.read())
        self.requests.append(request)
        assert received.transport is not None
        self.connections.add(received.transport.get_extra_info("peername")[1])
        if self.held is not None:
            await self.held.wait()
        answer = self.answer(request)
        if answer is None:
            received.transport.abort()
            return web.Response()
        return answer if isinstance(answer, web.Response) else web.Response(status=answer, text=f"says {answer}")


@asynccontextmanager
async def open_http_target(target: HttpTarget) -> AsyncIterator[HttpTarget]:
    """Listens on a free port of this machine, or on the one the target had before."""
    application = web.Application(client_max_size=16 << 20)
    application.router.add_route("*", "/records", target.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", target.port).start()
        target.port = runner.addresses[0][1]
        yield target
    finally:
        await runner.cleanup()
