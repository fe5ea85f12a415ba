"""Event time from outside: a record of a far year goes where `watermark.onFuture` says, and event time goes on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import pytest

from millstream.clock import MICROSECONDS
from millstream.errors import UserError
from millstream.limits import MAX_FUTURE_S
from millstream.ports import free_ports
from tests.mesh.conftest import PipelineFiles
from tests.support.pipelines import PipelineRun, open_pipeline

YEAR_9999_MS = 253_402_300_799_000
DEAD = "{from: in, to: dead, kind: deadLetter}"
FAR = """\
import json

from millstream_udf import Message


def far(value):
    row = json.loads(value)
    return Message(value, event_time=row["due"] * 1_000)
"""


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


def http(port: int) -> str:
    return f"- name: in\n  source: {{http: {{port: {port}}}}}\n"


class Sender:
    """Posts records, each with its number as id."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/vertices/in"

    async def send(self, number: int, ms: int | None = None, **members: int) -> int:
        """Waits for the server to listen; the status."""
        headers = {"x-millstream-id": str(number)}
        if ms is not None:
            headers["x-millstream-event-time"] = str(ms)
        body = json.dumps({"number": number, **members}).encode()
        while True:
            try:
                async with self._session.post(self._url, data=body, headers=headers) as answer:
                    return answer.status
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0)


async def until_inputs(run: PipelineRun, task: asyncio.Future[None], **counts: int) -> None:
    for vertex, count in counts.items():
        while (await run.account(vertex)).inputs < count:
            assert not task.done()


@pytest.mark.guarantee("I1", "I2")
async def test_a_record_of_a_far_year_is_a_dead_letter_once_and_the_watermark_stays(
    files: PipelineFiles, tmp_path: Path
) -> None:
    port = free_ports()
    path = files.write(http(port) + files.file_sink("out") + files.file_sink("dead"), ["in -> out", DEAD])
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        sender = Sender(session, port)
        for attempt in range(2):
            running = asyncio.ensure_future(run.run())
            # The second time, and after a restart, what was sent before has no effect.
            assert await sender.send(0) == 200
            assert await sender.send(1, YEAR_9999_MS) == 200
            assert await sender.send(2 + attempt) == 200
            await until_inputs(run, running, out=2 + attempt, dead=1)
            assert await run.published("in") <= (time.time() + MAX_FUTURE_S) * MICROSECONDS
            run.stop()
            await running
        account = await run.account("in")
    assert sorted(files.numbers("out")) == [0, 2, 3]
    (dead,) = files.envelopes("dead")
    assert json.loads(dead.value) == {"number": 1}
    assert "event time 9999-12-31T23:59:59.000000Z" in dead.reason
    assert "maxFuture" in dead.reason
    assert (account.dead_lettered, account.late, account.repeated_ids, account.difference) == (1, 0, 2, 0)


@pytest.mark.guarantee("I2")
async def test_without_a_dead_letter_edge_it_is_dropped_and_counted(files: PipelineFiles, tmp_path: Path) -> None:
    port = free_ports()
    path = files.write(http(port) + files.file_sink("out"), ["in -> out"])
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        sender = Sender(session, port)
        running = asyncio.ensure_future(run.run())
        assert [await sender.send(0, YEAR_9999_MS), await sender.send(1)] == [200, 200]
        await until_inputs(run, running, out=1)
        run.stop()
        await running
        account = await run.account("in")
    assert files.numbers("out") == [1]
    assert (account.dropped, account.late, account.difference) == ({"event time beyond maxFuture": 1}, 0, 0)


async def test_stop_ends_the_run_and_names_the_record(files: PipelineFiles, tmp_path: Path) -> None:
    port = free_ports()
    path = files.write(http(port) + files.file_sink("out"), ["in -> out"], more="watermark: {onFuture: stop}")
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        running = asyncio.ensure_future(run.run())
        sending = asyncio.ensure_future(Sender(session, port).send(0, YEAR_9999_MS))
        with pytest.RaisesGroup(
            pytest.RaisesExc(UserError, match=r"(?s)300 s ahead.*record 0 .*watermark\.onFuture"),
            flatten_subgroups=True,
        ):
            await running
        await asyncio.wait([sending])
        sending.exception()
        account = await run.account("in")
    assert account.inputs == 0, "nothing of it is committed"


@pytest.mark.guarantee("I2")
async def test_a_transformer_that_sets_a_far_event_time_is_held_back_as_well(
    files: PipelineFiles, tmp_path: Path
) -> None:
    (tmp_path / "far.py").write_text(FAR)
    port = free_ports()
    source = f"- name: in\n  source: {{http: {{port: {port}}}, transformer: {{python: 'far.py:far'}}}}\n"
    path = files.write(source + files.file_sink("out") + files.file_sink("dead"), ["in -> out", DEAD])
    now_ms = int(time.time() * 1000)
    async with open_pipeline(path, tmp_path / "broker") as run, aiohttp.ClientSession() as session:
        sender = Sender(session, port)
        running = asyncio.ensure_future(run.run())
        # What the sender claims does not count, only what the transformer makes of it.
        for number, (claimed, due) in enumerate(((YEAR_9999_MS, now_ms), (now_ms, YEAR_9999_MS), (now_ms, now_ms))):
            assert await sender.send(number, claimed, due=due) == 200
        await until_inputs(run, running, out=2, dead=1)
        assert await run.published("in") <= (time.time() + MAX_FUTURE_S) * MICROSECONDS
        run.stop()
        await running
    assert sorted(files.numbers("out")) == [0, 2]
    assert [json.loads(dead.value)["number"] for dead in files.envelopes("dead")] == [1]
