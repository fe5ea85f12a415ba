"""How a connection for calls gets to its stream, on both event loops."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from millstream_udf.calls_socket import SUFFIX, TOKEN_BYTES, open_calls_sockets

TIMEOUT_S = 60


@contextmanager
def no_more_files() -> Iterator[None]:
    """In it, this process cannot open another file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    # Descriptors are given in ascending order, so none is free below this one.
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_that_cannot_be_copied_ends_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], loop: str
) -> None:
    path = f"{tmp_path}/s"

    async def pair() -> None:
        running = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks, open_calls_sockets(path, tasks) as sockets:
            assert sockets is not None
            with sockets.expecting() as (token, arriving):
                named = TOKEN_BYTES.to_bytes(4, "little") + token
                with socket.socket(socket.AF_UNIX) as refused, socket.socket(socket.AF_UNIX) as taken:
                    for connection in (refused, taken):
                        connection.setblocking(False)
                        await running.sock_connect(connection, path + SUFFIX)
                    while len(sockets._unnamed) < 2:  # noqa: ASYNC110 - the loop accepts both
                        await asyncio.sleep(0)
                    with no_more_files():
                        await running.sock_sendall(refused, named)
                        assert await running.sock_recv(refused, 1) == b""
                    assert not arriving.done()
                    await running.sock_sendall(taken, named)
                    assert (await arriving).fileno() >= 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(pair())
    assert "a connection for calls was refused: [Errno 24] Too many open files" in capsys.readouterr().err
