"""What holds records up: a function that waits, and a sink whose target does not answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

IN_FLIGHT = 50

WAITING = f"""\
import asyncio
import json

running = 0
peak = 0
full = asyncio.Event()


async def process(value):
    global running, peak
    running += 1
    peak = max(peak, running)
    if running == {IN_FLIGHT}:
        full.set()
    # No call ends until so many are in flight at once.
    await full.wait()
    await asyncio.sleep(0)
    running -= 1
    return json.dumps({{"number": json.loads(value)["number"], "peak": peak}})
"""


@pytest.mark.parametrize("place", ["udf", "limits"])
async def test_a_waiting_function_has_as_many_records_in_flight_as_the_pipeline_says(
    files: PipelineFiles, tmp_path: Path, place: str
) -> None:
    (tmp_path / "waiting.py").write_text(WAITING, encoding="utf-8")
    own = f", concurrency: {IN_FLIGHT}" if place == "udf" else ""
    path = files.write(
        files.generator(20_000)
        + f"- name: map\n  udf: {{python: 'waiting.py:process'{own}}}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
        more="" if own else f"limits: {{concurrency: {IN_FLIGHT}}}",
    )
    async with open_pipeline(path, tmp_path / "broker") as run:
        await run.run()
    rows = files.rows("out")
    assert [row["number"] for row in rows] == list(range(20_000))
    assert max(row["peak"] for row in rows) == IN_FLIGHT


RECORDS = 100_000
RECORD_BYTES = 1000
BUFFER_RECORDS = 5000
COMMIT_RECORDS = 9000
"""What a commit of 8 MiB holds of them: by so many a soft bound may be overshot."""
HELD_MIN = 2 * BUFFER_RECORDS * 8 // 10
"""A writer waits at 80 % of a buffer, not before."""
HELD_MAX = 2 * (BUFFER_RECORDS + COMMIT_RECORDS)
"""Over both buffers: what a lane has in flight is still in its buffer."""
READINGS = 25


class Target:
    """An HTTP server that answers only while its gate is open, and keeps the numbers it was sent."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.port = 0
        self.numbers: list[int] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.set()
        await self.gate.wait()
        self.numbers += [int(digits) for digits in re.findall(rb'"number": *(\d+)', body)]
        return web.Response()


@asynccontextmanager
async def open_target() -> AsyncIterator[Target]:
    target = Target()
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.add_routes([web.post("/", target.take)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        target.port = runner.addresses[0][1]
        yield target
    finally:
        await runner.cleanup()


async def made_when_it_stands(run: PipelineRun) -> int:
    """Records the source has made, once the buffers are full and so many readings in a row are the same."""
    made, same = 0, 0
    while made < HELD_MIN or same < READINGS:
        now = (await run.account("in")).outputs
        made, same = now, same + 1 if now == made else 0
    return made


@pytest.mark.guarantee("I2", "I8")
async def test_a_sink_that_stands_still_stops_the_source_within_the_buffers_bounds_and_nothing_is_lost(
    files: PipelineFiles, tmp_path: Path
) -> None:
    async with open_target() as target:
        http = f"{{url: 'http://127.0.0.1:{target.port}/', batch: {{maxRecords: 1000}}}}"
        path = files.write(
            files.generator(RECORDS, msgSize=RECORD_BYTES)
            + files.function("identity")
            + f"- name: out\n  sink: {{http: {http}}}\n",
            ["in => map", "map -> out"],
            more=f"limits: {{bufferMaxLength: {BUFFER_RECORDS}}}",
        )
        async with open_pipeline(path, tmp_path / "broker") as run:
            running = asyncio.ensure_future(run.run())
            await target.asked.wait()
            made = await made_when_it_stands(run)
            disk = sum(file.stat().st_size for file in (tmp_path / "broker").rglob("*") if file.is_file())
            assert (await run.account("out")).inputs == 0
            target.gate.set()
            await running
            accounts = [await run.account(vertex) for vertex in ("in", "map", "out")]
    assert made <= HELD_MAX
    # Each record is in one of the two buffers, with the columns beside its value.
    assert disk <= HELD_MAX * (RECORD_BYTES + 100)
    assert target.numbers == list(range(RECORDS))
    assert [account.outputs or account.processed for account in accounts] == [RECORDS] * 3
    assert all(account.difference == 0 for account in accounts)
