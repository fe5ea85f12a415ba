"""A NATS server for tests of connectors: outside the pipeline, with streams of its own.

Above it: tests. Below it: the server that also runs as a broker, and a connection to it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from millstream.buffers.jetstream.server import NatsServer, open_nats_server
from millstream.nats.connection import ApiError, BrokerConnection, open_connection

T = TypeVar("T")


class OutsideNats:
    """A server, and a connection of the test's."""

    def __init__(self, server: NatsServer, connection: BrokerConnection) -> None:
        self.server = server
        self.connection = connection

    @property
    def settings(self) -> dict[str, Any]:
        """How pipeline files name it."""
        access = self.server.access
        return {"url": access.url, "auth": {"basic": {"user": access.user, "password": {"file": str(self.password)}}}}

    @property
    def password(self) -> Path:
        """The file with it."""
        path = self.server.access_file.parent / "password"
        path.write_text(self.server.access.password or "")
        return path

    async def create(self, stream: str, *subjects: str, **config: Any) -> None:
        """A stream."""
        config = {"name": stream, "subjects": subjects or (f"{stream}.>",), "storage": "file", **config}
        await self.connection.api(f"STREAM.CREATE.{stream}", config)

    async def publish(self, subject: str, *values: bytes, headers: dict[str, str] | None = None) -> None:
        """Messages, in order, each acknowledged."""
        for value in values:
            reply, answer = self.connection.expect_answer()
            await self.connection.publish(subject, value, headers, reply)
            message = await self.connection.answer_of(answer, 10.0)
            assert "error" not in json.loads(message.data), message.data

    async def values(self, stream: str, subject: str) -> list[bytes]:
        """Those of the messages of a subject that are there, in order."""
        async with open_connection(self.server.access) as connection:
            state = (await connection.api(f"STREAM.INFO.{stream}"))["state"]
            found = []
            for sequence in range(state["first_seq"], state["last_seq"] + 1):
                # What was rolled up leaves a gap.
                with suppress(ApiError):
                    answer = await connection.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
                    found.append(answer["message"])
        return [b64decode(message.get("data", "")) for message in found if message["subject"] == subject]

    def values_at_once(self, stream: str, subject: str) -> list[bytes]:
        """For callers that cannot wait, whether or not a loop runs."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self.values(stream, subject)).result()


@asynccontextmanager
async def open_outside_nats(directory: Path, *, tls: bool = False) -> AsyncIterator[OutsideNats]:
    """A server of its own; ended when the context ends."""
    async with open_nats_server(directory, tls=tls) as server, open_connection(server.access) as connection:
        yield OutsideNats(server, connection)


class NatsAtOnce:
    """The same for callers that have no loop, or cannot wait in it: the server's own loop runs in a thread."""

    def __init__(self, nats: OutsideNats, loop: asyncio.AbstractEventLoop) -> None:
        self.outside = nats
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in that loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def open_nats_at_once(directory: Path) -> Iterator[NatsAtOnce]:
    """A server of its own; ended when the context ends."""
    opened: Future[NatsAtOnce] = Future()

    async def serve() -> None:
        try:
            async with open_outside_nats(directory) as nats:
                opened.set_result(NatsAtOnce(nats, asyncio.get_running_loop()))
                await over.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    over = asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="nats")
    thread.start()
    try:
        nats = opened.result(60)
        try:
            yield nats
        finally:
            nats.loop.call_soon_threadsafe(over.set)
    finally:
        thread.join()
