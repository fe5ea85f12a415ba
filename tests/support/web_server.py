"""A server that is reached over HTTP, for tests of connectors: a process of its own, or a few handlers in this one.

All that it gives follows from the request, so that one that is killed and started again has what it had. Above it:
tests. Below it: aiohttp.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from aiohttp import web

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a long s3cret"
_EVERY_S = 0.002
"""Between two events of a slow stream."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def number(request: web.Request, name: str, default: int) -> int:
    """Of the query."""
    return int(request.query.get(name, default))


async def events(request: web.Request) -> web.StreamResponse:
    """Events 1 to `count`, at most `per` for each connection; behind the last one 204, or silence with `live`."""
    count, per, live = number(request, "count", 100), number(request, "per", 1000), "live" in request.query
    first = int(request.headers.get("Last-Event-ID", "0")) + 1
    if first > count and not live:
        return web.Response(status=204)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": welcome\nretry: 1\n\n")
    for n in range(first, min(count, first + per - 1) + 1):
        kind = "odd" if n % 2 else "even"
        await response.write(f"event: {kind}\nid: {n}\ndata: {n}\n\n".encode())
        if "slow" in request.query:
            await asyncio.sleep(_EVERY_S)
    if live and first + per > count:
        await asyncio.Event().wait()
    return response


async def items(request: web.Request) -> web.Response:
    """Records behind `since`, at most `per`, as `{"items": [{"id": 1}, ...], "next": 10}`."""
    count, per, since = number(request, "count", 100), number(request, "per", 30), number(request, "since", 0)
    if "slow" in request.query:
        await asyncio.sleep(per * _EVERY_S)
    found = [{"id": n} for n in range(since + 1, min(count, since + per) + 1)]
    following = found[-1]["id"] if len(found) == per else None
    return web.json_response({"items": found, "next": following})


async def socket(request: web.Request) -> web.WebSocketResponse:
    """After a subscription, messages 1 to `count`; then it waits for the client to go."""
    response = web.WebSocketResponse()
    await response.prepare(request)
    async for message in response:
        for n in range(1, json.loads(message.data)["count"] + 1):
            await response.send_str(str(n))
    return response


async def ticks(request: web.Request) -> web.WebSocketResponse:
    """A message now and then, none of them twice."""
    response = web.WebSocketResponse()
    await response.prepare(request)
    connection = uuid4().hex
    for n in itertools.count():
        await response.send_json({"message": f"{connection}-{n}"})
        await asyncio.sleep(_EVERY_S)
    return response


async def _closed(handler: Handler, request: web.Request) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return web.Response(status=401, text=f"not {request.headers.get('Authorization')}")
    return await handler(request)


HANDLERS: Mapping[str, Handler] = {"/events": events, "/items": items, "/socket": socket, "/ticks": ticks}


def application(handlers: Mapping[str, Handler]) -> web.Application:
    """Each handler at its path, and under `/closed` for those who know the token."""
    made = web.Application()

    def behind(handler: Handler) -> Handler:
        async def closed(request: web.Request) -> web.StreamResponse:
            return await _closed(handler, request)

        return closed

    for path, handler in handlers.items():
        made.router.add_get(path, handler)
        made.router.add_get(f"/closed{path}", behind(handler))
    return made


@asynccontextmanager
async def open_web(handlers: Mapping[str, Handler], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Host and port of these handlers."""
    async with serving(application(handlers), tls=tls) as address:
        yield address


@asynccontextmanager
async def open_handler(handler: Handler, *, auto_decompress: bool = True) -> AsyncIterator[str]:
    """The URL of a server that has every request handled by this. `auto_decompress`: whether bodies arrive unpacked."""
    made = web.Application(client_max_size=1 << 30)
    made.router.add_route("*", "/{target:.*}", handler)
    async with serving(made, auto_decompress=auto_decompress) as address:
        yield f"http://{address}"


@asynccontextmanager
async def serving(
    made: web.Application, *, tls: ssl.SSLContext | None = None, auto_decompress: bool = True
) -> AsyncIterator[str]:
    """Host and port of an application, in this process."""
    runner = web.AppRunner(made, shutdown_timeout=0.1, access_log=None, auto_decompress=auto_decompress)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class WebProcess:
    """A server in a process of its own, which can be killed."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.web_server", str(self.port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


async def _serve(port: int) -> None:
    runner = web.AppRunner(application(HANDLERS), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
