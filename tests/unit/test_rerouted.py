"""The path of the conformance suites: which answer is lost, how late each is, and that a blocked loop is noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millstream_testing.rerouted import counted_turns, open_path


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """The port of a server that sends each line back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def asked(port: int, lines: int) -> list[bytes]:
    """The answers on one connection, until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for number in range(lines):
        writer.write(b"%d\n" % number)
        if not (answer := await reader.readline()):
            break
        found.append(answer)
    writer.close()
    return found


@pytest.mark.parametrize(("loses", "first", "second"), [(0, 3, 3), (1, 0, 3), (3, 2, 3), (5, 3, 1), (7, 3, 3)])
async def test_one_answer_is_lost_with_its_connection(loses: int, first: int, second: int) -> None:
    async with echoing() as port:
        with open_path(loses=loses) as path:
            rerouted = path.reroute(port)
            assert [len(await asked(rerouted, 3)) for _ in range(2)] == [first, second]
            assert path.lost == (loses in range(1, 7))
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", rerouted)


@pytest.mark.slow
async def test_a_loop_that_is_blocked_has_no_turns() -> None:
    async with echoing() as port:
        with open_path(late_s=0.05) as path:
            rerouted = path.reroute(port)
            async with counted_turns() as turns:
                assert len(await asked(rerouted, 4)) == 4
            assert turns.count > path.answers == 4
    async with counted_turns() as turns:
        blocked_s = time.monotonic() + 0.2
        while time.monotonic() < blocked_s:
            pass
    assert turns.count == 0
