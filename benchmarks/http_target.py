"""What an HTTP sink sends to in a benchmark: takes numbered records, and knows whether each came once and in order.

    python benchmarks/http_target.py PORT_FILE

It writes the port it listens at into PORT_FILE. A request it has taken before (same `Idempotency-Key`) is answered and
not counted again. `GET /` tells what it has: `numbers` (so many, from 0 on, none missing), `again` (requests that came
more than once), `faults` (requests that did not go on where the one before them ended).
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from pathlib import Path

from aiohttp import web

_NUMBER = re.compile(rb'"number": *(\d+)')


class Target:
    """What has arrived."""

    def __init__(self) -> None:
        self.numbers = 0
        self.again = 0
        self.faults = 0
        self._keys: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        key, body = request.headers["Idempotency-Key"], await request.read()
        if key in self._keys:
            self.again += 1
            return web.Response()
        numbers = [int(digits) for digits in _NUMBER.findall(body)]
        if numbers == list(range(self.numbers, self.numbers + body.count(b"\n"))):
            self.numbers += len(numbers)
        else:
            self.faults += 1
        self._keys.add(key)
        return web.Response()

    async def tell(self, request: web.Request) -> web.Response:
        return web.json_response({"numbers": self.numbers, "again": self.again, "faults": self.faults})


async def serve(port_file: Path) -> None:
    """Until the process is ended."""
    target = Target()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.add_routes([web.post("/", target.take), web.get("/", target.tell)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    # Written under another name first: who waits for it must not read half of it.
    temporary = port_file.with_suffix(".tmp")
    temporary.write_text(str(listening.getsockname()[1]))
    temporary.replace(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
