"""Logs of reduces, and the input they keep, that are damaged: named by a run, told by a repair, and gone on without.

No window closes here, so there is no Spark: what counts is what the lanes hold, and that they go on.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.technology import TECHNOLOGY
from millstream.durable import listen
from millstream.errors import DamageError, first_cause
from millstream.nats.connection import open_connection
from millstream.record import BufferId, LaneId
from millstream_runner.local.directory import KnownLedgers
from millstream_runner.local.repair.finding import Finding
from millstream_runner.local.repair.repair import Repair
from tests.mesh.reducing import (
    Event,
    assert_balanced,
    reduce,
    running,
    source,
    taken_in,
    write_events,
)
from tests.support.ledgers import LaneOwner
from tests.support.pipelines import PipelineRun, open_pipeline

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

LOST = "lost with a damaged log (millstream repair)"
IN = LaneId("in", "source", 0)
BUFFER = BufferId("in-sum", 0)


class _KilledError(Exception):
    """The process is gone, at one of its durable steps."""


def pipeline(files: PipelineFiles, group_by: str) -> Path:
    vertices = source(more=", follow: true") + reduce("{fixed: {length: 10s}}", group_by=f"keyed: true{group_by}")
    return files.write(vertices + files.file_sink("out"), ["in -> sum", "sum -> out"])


async def give(tmp_path: Path, run: PipelineRun, *times: float) -> None:
    """One event at each time, numbered by it; returns when they were taken in, and the run has stopped."""
    before = (await run.account("sum")).inputs
    write_events(tmp_path / "in.jsonl", [Event(int(s), s, "k") for s in times])
    async with running(run) as task:
        await taken_in(run, "sum", before + len(times), task)


NO_SPARK = "127.0.0.1:1"


def damage(run: PipelineRun) -> None:
    """Flip a bit of the header of every segment of the log."""
    for path in (run.windows / "sum/0").glob("*.wal"):
        data = bytearray(path.read_bytes())
        data[60] ^= 1
        path.write_bytes(data)


async def refused(run: PipelineRun, *texts: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run.run()
    error = first_cause(caught.value)
    assert isinstance(error, DamageError), error
    for text in (*texts, "millstream repair"):
        assert text in str(error)


@asynccontextmanager
async def repairing(run: PipelineRun, tmp_path: Path) -> AsyncIterator[Repair]:
    async with TECHNOLOGY.open(run.server.access, "p", name="test") as buffer:
        yield Repair(run.plan, buffer, KnownLedgers(tmp_path / "ledgers.json"), run.windows, tmp_path / "states")


async def repaired(run: PipelineRun, tmp_path: Path, stop_at: int | None = None) -> list[Finding]:
    """Accept everything; with `stop_at`, be killed at that point, if it comes so far."""
    points: list[str] = []

    def reached(point: str, vertex: str) -> None:
        points.append(point)
        if len(points) - 1 == stop_at:
            raise _KilledError(point)

    listen(reached if stop_at is not None else None)
    findings: list[Finding] = []
    try:
        async with repairing(run, tmp_path) as repair:
            async for finding in repair.findings():
                findings.append(finding)
                await finding.accept()
    finally:
        listen(None)
    async with repairing(run, tmp_path) as repair:
        assert not [finding async for finding in repair.findings()]
    return findings


async def remove_frame(run: PipelineRun, sequence: int) -> None:
    async with open_connection(run.server.access) as connection:
        await connection.api("STREAM.MSG.DELETE.p-in", {"seq": sequence, "no_erase": True})


@pytest.mark.guarantee("I10")
async def test_a_damaged_log_is_given_up_with_its_open_windows(files: PipelineFiles, tmp_path: Path) -> None:
    async with open_pipeline(pipeline(files, ""), tmp_path / "broker", spark=NO_SPARK) as run:
        await give(tmp_path, run, 1, 2)
        damage(run)
        await refused(run.again(), "p/sum/window.0", "sum/0/")
        async with repairing(run, tmp_path) as repair:
            (told,) = [finding async for finding in repair.findings()]
        assert (told.kind, told.records) == ("log", 2)
        assert "lane sum/window.0" in told.what
        # Killed at every step, each time a step later, it ends in the same.
        for stop_at in range(100):
            try:
                await repaired(run, tmp_path, stop_at)
            except _KilledError:
                continue
            break
        assert stop_at > 10
        account = await run.account("sum")
        assert (account.dropped, account.open) == ({LOST: 2}, 0)
        await give(tmp_path, run.again(), 3)
        await assert_balanced(run, open_records=1)


@pytest.mark.guarantee("I10")
async def test_a_damaged_log_is_made_anew_where_the_input_is_kept(files: PipelineFiles, tmp_path: Path) -> None:
    path = pipeline(files, ", keepInput: true")
    async with open_pipeline(path, tmp_path / "broker", spark=NO_SPARK) as run:
        for time in range(1, 4):
            await give(tmp_path, run.again(), time)
        damage(run)
        await refused(run.again(), "p/sum/window.0")
        (finding,) = await repaired(run, tmp_path)
        assert (finding.kind, finding.records) == ("log", 0)
        assert "nothing is lost" in finding.affects
        await give(tmp_path, run.again(), 4)
        await assert_balanced(run, open_records=4)
        # Damage of the input that is kept: nothing is lost while the log is there, and it does not stop the lane.
        async with open_jetstream_broker(run.server.access, "p") as broker:
            ledger = await broker.existing_ledger("in")
            assert ledger is not None
            kept = [frame.sequence for frame in await ledger.peek(BUFFER, 0, 100)]
        await remove_frame(run, kept[1])
        (finding,) = await repaired(run, tmp_path)
        assert (finding.kind, finding.records) == ("kept-input", 0)
        assert "frame 2 of lane in/source.0 cannot be read" in finding.what
        await give(tmp_path, run.again(), 5)
        await assert_balanced(run, open_records=5)
        # Both: the open windows are lost, also where the lane finds it by itself.
        shutil.rmtree(run.windows / "sum/0")
        await refused(run.again(), "holds 4 records", "counts 5")
        (finding,) = await repaired(run, tmp_path)
        assert (finding.kind, finding.records) == ("log", 5)
        await give(tmp_path, run.again(), 6)
        assert (await run.account("sum")).dropped == {LOST: 5}
        await assert_balanced(run, open_records=1)


@pytest.mark.guarantee("I10")
async def test_a_frame_that_a_reduce_cannot_use_is_stepped_over(files: PipelineFiles, tmp_path: Path) -> None:
    async with open_pipeline(pipeline(files, ""), tmp_path / "broker", spark=NO_SPARK) as run:
        await give(tmp_path, run, 1, 2)
        async with open_jetstream_broker(run.server.access, "p") as broker:
            ledger = await broker.existing_ledger("in")
            assert ledger is not None
            owner = LaneOwner(ledger, IN, await ledger.take_over(IN, "test"))
            commit = owner.commit_of((BUFFER, b"\xff"))
            commit.mark.sequence = 0
            commit.mark.written[0].records += 7
            await owner.send(commit)
        await refused(run.again(), "buffer in-sum.0", "of lane in/source.0 at sequence", "cannot be used")
        (finding,) = await repaired(run, tmp_path)
        assert (finding.kind, finding.records) == ("buffer", 7)
        await give(tmp_path, run.again(), 3)
        await assert_balanced(run, open_records=3)
