"""HTTP push end to end: 200 means committed, a repeated id has no effect, also after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from millstream.ports import free_ports
from tests.support.children import together
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


async def post(session: aiohttp.ClientSession, port: int, number: int, **headers: str) -> int:
    """Send one record; waits for the server to listen."""
    url = f"http://127.0.0.1:{port}/vertices/in"
    body = json.dumps({"number": number}).encode()
    while True:
        try:
            async with session.post(url, data=body, headers=headers) as answer:
                return answer.status
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(0)


@pytest.mark.guarantee("I1")
async def test_a_record_sent_again_counts_once_also_after_a_restart(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_ports()
    monkeypatch.setenv("PUSH_TOKEN", "secret")
    path = files.write(
        f"- name: in\n  source: {{http: {{port: {port}, auth: {{token: {{env: PUSH_TOKEN}}}}}}}}\n"
        + files.file_sink("out"),
        ["in -> out"],
    )
    allowed = {"Authorization": "Bearer secret"}
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        running = asyncio.ensure_future(run.run())
        assert await post(session, port, 0) == 401
        for number in (1, 2, 1):
            assert await post(session, port, number, **allowed, **{"x-numaflow-id": f"id-{number}"}) == 200
        assert (await run.account("in")).outputs == 2, "what was answered is committed"
        run.stop()
        await running

        running = asyncio.ensure_future(run.run())
        for number in (2, 3):
            assert await post(session, port, number, **allowed, **{"x-millstream-id": f"id-{number}"}) == 200
        run.stop()
        await running
        account = await run.account("in")
        # What the source committed before it was stopped is still in the buffer; the sink reads it in the next run.
        running = asyncio.ensure_future(run.run())
        while (await run.account("out")).inputs < 3:
            assert not running.done()
        run.stop()
        await running
    assert files.numbers("out") == [1, 2, 3]
    assert (account.outputs, account.repeated_ids) == (3, 2)


@pytest.mark.sweep
async def test_many_senders_are_all_answered(files: PipelineFiles, tmp_path: Path) -> None:
    port = free_ports()
    path = files.write(
        f"- name: in\n  source: {{http: {{port: {port}}}}}\n" + files.file_sink("out"),
        ["in -> out"],
    )
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        running = asyncio.ensure_future(run.run())
        statuses = await together(*(post(session, port, number) for number in range(200)))
        while (await run.account("out")).inputs < 200:
            assert not running.done()
        run.stop()
        await running
    assert statuses == [200] * 200
    assert sorted(files.numbers("out")) == list(range(200))
