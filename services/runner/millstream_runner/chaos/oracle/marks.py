"""The marks of all lanes, read from the broker's store by the oracle's own broker.

Above it: the account. Below it: the `nats-server` program over the store, and its documented API. Nothing may run on
the store meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from millstream.wire.ledger.v1 import mark_pb2
from millstream_runner.chaos.oracle.pipeline import OraclePipeline
from millstream_runner.chaos.oracle.redis_marks import read_redis_marks

START_TIMEOUT_S = 120.0
"""Reading a large store after a crash takes a while."""
_ACCOUNT = "millstream"
"""Account in the broker whose store it is."""
_MARK_HEADER = "Millstream-Mark"
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_PAYLOAD_BYTES_MAX = 8 << 20


async def read_marks(store: Path, pipeline: OraclePipeline) -> dict[tuple[str, str], mark_pb2.Mark]:
    """The mark of every lane that has one, by vertex and lane."""
    if pipeline.ledger == "redis":
        return await read_redis_marks(store, pipeline)
    found: dict[tuple[str, str], mark_pb2.Mark] = {}
    async with _open_broker(store) as client:
        for vertex in pipeline.vertices:
            stream = f"{pipeline.name}-{vertex}"
            for lane in pipeline.lanes(vertex):
                message = await _last_message(client, stream, f"{stream}.{lane}.>")
                if message is not None:
                    found[vertex, lane] = _mark_in(message)
    return found


def _mark_in(message: dict[str, Any]) -> mark_pb2.Mark:
    """The last message of a lane is its mark, or a frame with the mark in a header."""
    if message["subject"].endswith(".p"):
        return mark_pb2.Mark.FromString(base64.b64decode(message.get("data", "")))
    for line in base64.b64decode(message.get("hdrs", "")).decode().splitlines():
        name, _, text = line.partition(":")
        if name.strip() == _MARK_HEADER:
            return mark_pb2.Mark.FromString(base64.b64decode(text.strip()))
    raise ValueError(f"the last message of a lane, {message['subject']} at {message['seq']}, holds no mark")


async def _last_message(client: Client, stream: str, subject: str) -> dict[str, Any] | None:
    request = json.dumps({"last_by_subj": subject}).encode()
    answer = json.loads((await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=30)).data)
    if "error" in answer:
        if answer["error"].get("err_code") in (_NO_MESSAGE, _NO_STREAM):
            return None
        raise ValueError(f"stream {stream} cannot be read: {answer['error']}")
    message: dict[str, Any] = answer["message"]
    return message


@asynccontextmanager
async def _open_broker(store: Path) -> AsyncIterator[Client]:
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    # A name, not a number with which the configuration would begin, which the server could not parse.
    key = f"k{secrets.token_hex()}"
    with tempfile.TemporaryDirectory(prefix="millstream-oracle-") as name:
        config = Path(name) / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: {json.dumps(name)}\nmax_payload: {_PAYLOAD_BYTES_MAX}\n'
            f"jetstream {{ store_dir: {json.dumps(str(store.absolute()))} }}\n"
            f"accounts {{ {_ACCOUNT} {{ jetstream: enabled, users: [{{user: oracle, password: $ORACLE_KEY}}] }} }}\n"
        )
        with (Path(name) / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(beside) if beside.exists() else "nats-server",
                "-c",
                str(config),
                stdout=log,
                stderr=log,
                env={**os.environ, "ORACLE_KEY": key},
            )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                url = await _url(process, Path(name))
                client = await nats.connect(url, user="oracle", password=key)
            try:
                yield client
            finally:
                await client.close()
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


async def _url(process: asyncio.subprocess.Process, directory: Path) -> str:
    path = directory / f"nats-server_{process.pid}.ports"
    while True:
        if process.returncode is not None:
            raise OSError(f"the oracle's broker ended: {(directory / 'log').read_text(errors='replace')[-2000:]}")
        with suppress(FileNotFoundError, ValueError):
            return str(json.loads(path.read_text())["nats"][0])
        await asyncio.sleep(0.01)
