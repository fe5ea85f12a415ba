"""Tables of a function in its own process: what the protocol says of them, and what the client makes of it."""

from __future__ import annotations

import asyncio
import os
import signal

from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer
from millstream.udf.function import LocalFunction
from millstream.udf.sidecar import python_command
from millstream.udf.states import StateEntries, TableUpdate
from millstream.udf.streams import MapStream, TableStream
from tests.contract.udf.conftest import HERE, NAME, Open, frame_of, values_of
from tests.contract.udf.test_states import Command, greeted

NOTHING = StateEntries([0, 0], [], b"", [], [], [])


def command(name: str) -> list[str]:
    return python_command(f"{HERE / 'reading_functions.py'}:{name}")


def tables_in(stream: MapStream) -> TableStream:
    assert isinstance(stream, TableStream)
    return stream


async def read(stream: TableStream, version: int) -> MapAnswer:
    return await stream.keyed_call(frame_of([b"a", b"b"]), NOTHING, watermark_us=0, tables_version=version)


def update(base: int, version: int, **entries: bytes) -> TableUpdate:
    return TableUpdate(base, version, "rates", [(key.encode(),) for key in entries], list(entries.values()))


async def exercised(sidecar: LocalFunction) -> None:
    async with sidecar.open_map(FunctionKind.MAP, NAME) as opened:
        stream = tables_in(opened)
        assert (stream.takes_tables, list(stream.tables), list(stream.states)) == (True, ["rates"], [])
        assert (await read(stream, 3)).lacks_tables
        for part in (update(0, 1, a=b"1", b=b"2"), update(1, 2, c=b"x" * 300_000)):
            answer = await stream.update_tables(part)
            assert (answer.error, answer.lacks_tables) == ("", False)
        assert values_of(await read(stream, 2)) == [b"1 of 3", b"2 of 3"]
        assert (await stream.update_tables(update(1, 3, a=b"9"))).lacks_tables
        await stream.update_tables(update(2, 4, a=b"3", c=b""))
        assert (await read(stream, 2)).lacks_tables
        assert values_of(await read(stream, 4)) == [b"3 of 2", b"2 of 2"]
        # Another stream has none, and neither has another process.
        async with sidecar.open_map(FunctionKind.MAP, NAME) as other:
            assert (await read(tables_in(other), 4)).lacks_tables
        pid = sidecar.statistics().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert (await read(stream, 4)).lacks_tables
        await stream.update_tables(update(0, 5, b=b"7"))
        assert values_of(await read(stream, 5)) == [b"- of 1", b"7 of 1"]


async def test_a_stream_has_the_tables_that_it_was_sent(open_function: Open) -> None:
    for name in ("Reading", "Concurrently"):
        async with open_function(command(name)) as sidecar, asyncio.timeout(60):
            await exercised(sidecar)


async def test_an_sdk_without_tables_says_nothing_of_them(open_function: Open, go_command: list[str]) -> None:
    go: Command = lambda name: [*go_command, name]  # noqa: E731 - as the fixture of the states
    async with greeted(open_function, go("Remember"), over_socket=True) as (_, welcome):
        assert not welcome.takes_tables
