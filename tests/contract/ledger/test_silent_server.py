"""A server that takes connections and answers nothing about its streams: it is not well, and that is reported."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream.buffers.jetstream.requests import until_answered
from millstream.buffers.jetstream.server import open_nats_server
from millstream.buffers.jetstream.stream_health import ask_for_streams
from millstream.nats.access import BrokerAccess
from millstream.nats.connection import open_connection
from tests.nats_process import open_nats_process

WITHOUT_STREAMS = 'listen: "127.0.0.1:-1"\n'


_ASKED = 4
"""How often a question is asked: more often than it takes to be reported."""


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def test_a_server_is_well_when_it_answers_for_its_streams(tmp_path: Path) -> None:
    async with open_nats_server(tmp_path / "well") as well:
        port, access = port_of(well.access.url), well.access
        assert await ask_for_streams(port, access) == []
        async with open_connection(access, name="test") as connection:
            for name in ("one", "two"):
                await until_answered(connection, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
        assert await ask_for_streams(port, access) == []
    assert await ask_for_streams(port, access) is None
    async with open_nats_process(tmp_path / "silent", WITHOUT_STREAMS) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ask_for_streams(port_of(server.url), BrokerAccess(server.url))


async def test_a_question_that_is_never_answered_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_nats_process(tmp_path, WITHOUT_STREAMS) as server,
        open_connection(BrokerAccess(server.url), name="test") as connection,
    ):
        with caplog.at_level(logging.INFO):
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(until_answered(connection, "STREAM.INFO.one"))
                while sum("asking again" in record.getMessage() for record in caplog.records) <= _ASKED:
                    assert not asking.done()
                    await asyncio.sleep(0.01)
                asking.cancel()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "accepts connections, but has not answered STREAM.INFO.one 3 times in a row" in warnings[0]
