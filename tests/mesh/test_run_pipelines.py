"""`millstream run` from start to end: ends by itself, drains, goes on, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.buffers.jetstream.server_config import ACCOUNT
from tests.mesh.running import Ended, Running, command, start, until_gone
from tests.support.pipelines import open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(900)
RECORDS = 60_000


def numbered(files: PipelineFiles, records: int, *, function: str = "identity") -> Path:
    return files.write(
        files.generator(records) + files.function(function) + files.file_sink("out"), ["in => map", "map -> out"]
    )


def endless(files: PipelineFiles, function: str = "identity") -> None:
    """The same with a source that a test finds at work, however slow the machine is."""
    files.write(
        files.generator(None, rpu=8000) + files.function(function) + files.file_sink("out"),
        ["in => map", "map -> out"],
        # The source cannot be far ahead of the sink: a drain takes a moment.
        more="limits: {bufferMaxLength: 4000}",
    )


async def assert_goes_on(files: PipelineFiles) -> Ended:
    """Run what an `endless` one has left with an end to it, further on than it can have come."""
    records = len(files.numbers("out")) + RECORDS
    numbered(files, records)
    ended = await command(files.directory, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert_each_once(files, records)
    return ended


def assert_each_once(files: PipelineFiles, records: int) -> None:
    assert files.numbers("out") == list(range(records))


async def drained(run: Running, files: PipelineFiles) -> Ended:
    """Ctrl-C, once the sink has written more; all that the source has made is there."""
    await run.until_more("out")
    run.interrupt()
    ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert_each_once(files, run.records("in"))
    return ended


@pytest.mark.sweep
@pytest.mark.guarantee("I2")
async def test_a_bounded_pipeline_ends_by_itself_and_is_found_ended_the_next_time(
    files: PipelineFiles, tmp_path: Path
) -> None:
    numbered(files, RECORDS)
    first = await command(tmp_path, "run", "pipeline.yaml")
    assert first.exit_code == 0, first.err
    assert "account: BALANCED" in first.out
    assert "done: everything has been processed" in first.out
    assert_each_once(files, RECORDS)
    status = json.loads((await command(tmp_path, "status", "-o", "json")).out)
    assert not status["running"]
    assert status["state"] == "done"
    assert status["durability"] == "fsync (verified)"
    assert [vertex["records"] for vertex in status["vertices"]] == [RECORDS] * 3

    # As a version before the broker asked who talks has left it.
    (streams,) = tmp_path.glob(f".millstream/*/broker/**/jetstream/{ACCOUNT}")
    streams.rename(streams.with_name("$G"))
    second = await command(tmp_path, "run", "pipeline.yaml", "--quiet")
    assert (second.exit_code, second.out, second.err) == (0, "", "")
    assert streams.exists()
    assert_each_once(files, RECORDS)

    shutil.rmtree(tmp_path / "out")
    third = await command(tmp_path, "run", "pipeline.yaml", "--fresh")
    assert third.exit_code == 0, third.err
    assert_each_once(files, RECORDS)


@pytest.mark.guarantee("I1", "I2")
async def test_ctrl_c_drains_and_the_next_run_goes_on(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids("broker", "in-0", "map-0", "out-0")
        assert {name for name in pids if not name.startswith("worker.")} == {"broker", "in-0", "map-0", "out-0"}
        run.interrupt()
        ended = await run.ended()
        await until_gone(list(pids.values()))
        assert run.pids() == {}
    assert ended.exit_code == 0, ended.err
    assert "draining" in ended.err
    assert "account: BALANCED" in ended.out
    assert "stopped, after" in ended.out
    assert "wait" not in ended.out
    before = files.numbers("out")
    assert before
    assert before == list(range(len(before)))

    await assert_goes_on(files)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I8", "I9")
async def test_a_killed_runner_takes_all_with_it_and_the_next_run_goes_on(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids("broker", "in-0", "map-0", "out-0")
        run.kill()
        assert (await run.ended()).exit_code == -signal.SIGKILL
        await until_gone(list(pids.values()))
    text = (await command(tmp_path, "status")).out
    assert "interrupted" in text
    assert "not running" in text

    await assert_goes_on(files)


@pytest.mark.guarantee("I1", "I9")
async def test_a_run_survives_the_death_of_each_of_its_processes(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        await run.until(lambda: run.records("out") > 0)
        for name in ("broker", "map-0", "out-0", "in-0"):
            before = await run.pid(name)
            os.kill(before, signal.SIGKILL)
            await run.until_replaced(name, before)
        ended = await drained(run, files)
    for name in ("the broker", "worker.1 (map-0, out-0):", "in-0:"):
        assert f"{name} was killed from outside (SIGKILL; was the machine out of memory?); it is restarted" in ended.err


@pytest.mark.sweep
async def test_a_vertex_that_somebody_else_stops_is_started_again(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        await run.until(lambda: run.records("out") > 0)
        before = await run.pid("map-0")
        os.kill(before, signal.SIGTERM)
        await run.until_replaced("map-0", before)
        ended = await drained(run, files)
    assert "worker.1 (map-0, out-0): ended before its lanes had" in ended.err


@pytest.mark.sweep
@pytest.mark.parametrize(
    "moment", ["all is processed", pytest.param("all processes have ended", marks=pytest.mark.sweep)]
)
async def test_a_ctrl_c_behind_the_end_changes_nothing(moment: str, files: PipelineFiles, tmp_path: Path) -> None:
    numbered(files, 10, function="held")
    (tmp_path / "hold").touch()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b" " * 4096)
    os.set_blocking(writer, True)
    # It has a result to print, and nothing reads it yet.
    async with start(tmp_path, "run", "pipeline.yaml", "--quiet", "-o", "json", out=writer) as run:
        os.close(writer)
        pids = list((await run.all_pids("broker", "in-0", "map-0", "out-0")).values())
        (tmp_path / "hold").unlink()
        if moment == "all is processed":
            # Its broker is there for a moment longer.
            while run.json("status.json")["state"] != "done":  # noqa: ASYNC110  # another process has no event
                await asyncio.sleep(0.01)
        else:
            await until_gone(pids)
        run.interrupt()
        with os.fdopen(reader, "rb") as printed:
            result = json.loads(await asyncio.to_thread(printed.read))
        assert (await run.ended()).exit_code == 0
    assert result["account"]["balanced"]


async def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        pids = await run.all_pids("broker", "in-0", "map-0", "out-0")
        # The broker does not answer, so the drain cannot end.
        os.kill(pids["broker"], signal.SIGSTOP)
        await run.interrupt_twice()
        ended = await run.ended()
        await until_gone(list(pids.values()))
    assert ended.exit_code == 130
    assert "stopped at once" in ended.out
    await assert_goes_on(files)


def _waiting(run: Running, vertex: str) -> int:
    return sum(one["waiting"] for one in run.json("status.json").get("vertices", []) if one["vertex"] == vertex)


@pytest.mark.sweep
async def test_a_run_can_be_looked_at_from_outside(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files, "held")
    # The map reads nothing, however long the commands take.
    hold = tmp_path / "hold"
    hold.touch()
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        # The sink may start after the input of the map is there.
        await run.until(lambda: _waiting(run, "map") >= 5 and run.json("status.json")["state"] == "running")
        refused = await command(tmp_path, "run", "pipeline.yaml")
        status = json.loads((await command(tmp_path, "status", "-o", "json")).out)
        peeked = await command(tmp_path, "peek", "in-map", "--count", "3", "-o", "json")
        again = await command(tmp_path, "peek", "in-map", "--count", "3", "-o", "json")
        os.kill(await run.pid("map-0"), signal.SIGKILL)
        hold.unlink()
        await run.until(lambda: run.json("status.json")["states"]["map"].endswith("restarted 1x"))
        logs = await command(tmp_path, "logs", "map")
        run.interrupt()
        assert (await run.ended()).exit_code == 0

    assert refused.exit_code == 4
    assert f"in use by process {run.process.pid}" in refused.err
    assert status["running"]
    assert status["state"] == "running"
    assert {name for one in status["processes"] for name in one["replicas"] or [one["name"]]} == {
        *("broker", "in-0", "map-0", "out-0")
    }
    records = [json.loads(line) for line in peeked.out.splitlines()]
    assert len(records) == 3
    first = json.loads(records[0]["value"])["number"]
    assert [json.loads(record["value"])["number"] for record in records] == [first, first + 1, first + 2]
    # Nothing was consumed: its contents can be seen again.
    assert again.out == peeked.out
    assert logs.exit_code == 0
    assert all(" map-0 " in line for line in logs.out.splitlines() if "INFO" in line)

    # The same without a run: what the killed processes left in the buffer, if anything, and an edge there is not.
    stopped = await command(tmp_path, "peek", "in-map")
    assert stopped.exit_code == 0, stopped.err
    assert "buffer in-map.0 has no records" in stopped.out
    wrong = await command(tmp_path, "peek", "in-out")
    assert wrong.exit_code == 2
    assert "no edge 'in-out'; its edges are: in-map, map-out" in wrong.err


@pytest.mark.sweep
async def test_a_healthy_run_logs_where_its_lanes_begin_resume_and_end(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await drained(run, files)
    await assert_goes_on(files)
    records = len(files.numbers("out"))

    async def lines(*options: str) -> list[dict[str, object]]:
        ended = await command(tmp_path, "logs", "-o", "json", *options)
        assert ended.exit_code == 0, ended.err
        return [json.loads(line) for line in ended.out.splitlines()]

    told = await lines("map")
    messages = [str(line["message"]) for line in told]
    assert messages[0] == "starting vertex map of pipeline p"
    assert any("begins (epoch 1)" in message for message in messages)
    assert any("stopped: " in message for message in messages)
    assert any("resumes after " in message and "up to sequence " in message for message in messages)
    assert f"ended: {records:,} records read: {records:,} processed" in messages[-1]
    assert (told[-1]["lane"], told[-1]["level"], told[-1]["process"]) == ("in-map.0", "info", "map-0")
    assert await lines("map", "--tail", "1") == told[-1:]
    assert await lines("map", "--since", "1d", "--level", "info") == told
    assert await lines("map", "--level", "error") == []
    assert await lines("map", "--since", str(told[-1]["time"]).replace("+00:00", "Z")) == told[-1:]
    assert await lines("map", "--since", "2100-01-01T00:00:00Z") == []
    assert not any("___" in str(line["message"]) for line in await lines("broker"))
    assert (await command(tmp_path, "logs", "--since", "yesterday")).exit_code == 2


@pytest.mark.sweep
async def test_a_pipeline_that_runs_elsewhere_is_looked_at_through_its_broker(
    files: PipelineFiles, tmp_path: Path
) -> None:
    path = numbered(files, 100)
    async with open_pipeline(path, tmp_path / "run") as run:
        broker = ("--broker", run.server.url, "--broker-access", str(run.server.access_file), "--file", "pipeline.yaml")
        nothing = await command(tmp_path, "status", *broker)
        assert nothing.exit_code == 2
        assert "has no data of pipeline p" in nothing.err
        await run.run()
        status = json.loads((await command(tmp_path, "status", "-o", "json", *broker)).out)
        assert [(vertex["vertex"], vertex["records"]) for vertex in status["vertices"]] == [
            ("in", 100),
            ("map", 100),
            ("out", 100),
        ]
        table = (await command(tmp_path, "status", *broker)).out
        assert "in-map.0" in table
        assert "done" in table
        peeked = await command(tmp_path, "peek", "map-out", "--from", "1", *broker)
        assert peeked.exit_code == 0, peeked.err
        assert (await command(tmp_path, "peek", "map-out", "--broker", run.server.url)).exit_code == 2
