"""Receives the requests of an HTTP sink, and stores all of them:
`python -m millstream_runner.chaos.oracle.receiver --help`.

It honours the idempotency key: a request with a known key is answered and not stored again, but it records whether the
body was the same. Every fiftieth request is stored but not answered.

Every line of the file is a JSON object: `key` and `body` of a stored request, or `key`, `again` and `same`.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from aiohttp import web

_UNANSWERED_EVERY = 50
_HEADER = "Idempotency-Key"


class _Target:
    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._bodies: dict[str, bytes] = {}
        self._requests = 0

    async def take(self, request: web.Request) -> web.Response:
        key, body = request.headers[_HEADER], await request.read()
        digest = hashlib.blake2b(body).digest()
        if key in self._bodies:
            self._write({"key": key, "again": True, "same": self._bodies[key] == digest})
            return web.Response()
        self._bodies[key] = digest
        self._write({"key": key, "body": body.decode()})
        self._requests += 1
        if self._requests % _UNANSWERED_EVERY == 0 and request.transport is not None:
            request.transport.abort()
        return web.Response()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


async def _serve(options: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    with options.file.open("a", encoding="utf-8") as file:
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.add_routes([web.post("/", _Target(file).take)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.SockSite(runner, socket.create_server(("127.0.0.1", options.port))).start()
            await stopping.wait()
        finally:
            await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    """Receive until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m millstream_runner.chaos.oracle.receiver", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port to listen on, on the loopback")
    parser.add_argument("--file", type=Path, required=True, help="where to write the requests")
    asyncio.run(_serve(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
