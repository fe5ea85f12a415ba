"""Commands that look into buffers with large frames: what they count and show, and how much they hold at once."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from millstream.buffers.jetstream.technology import TECHNOLOGY as JETSTREAM
from millstream.ledger.packs import Pack
from millstream.ledger.protocol import LedgerLimits
from millstream.limits import MIB
from millstream.record import BufferId, LaneId
from millstream.spec.loading import load
from millstream_runner.cli.main import main
from millstream_runner.local.view import PipelineView
from tests.support.ledgers import PIPELINE as PIPELINE_NAME
from tests.support.ledgers import JetStreamHarness, LaneOwner, open_jetstream_harness
from tests.unit.vertex.lane_rig import records_of

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: out}
"""
BUFFER = BufferId("in-out", 0)
PACKS = 24
PACK = Pack([records_of(b"%d" % number + b"x" * MIB) for number in range(2)])
HELD_MAX = 32 * MIB
"""A page, the text of a message of the broker, and what is decoded of it; all packs have 48 MiB."""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        (tmp_path / "pipeline.yaml").write_text(PIPELINE)
        ledger = await opened.broker.ledger("in", LedgerLimits(frames_per_buffer_max=1000))
        source = LaneId("in", "source", 0)
        owner = LaneOwner(ledger, source, await ledger.take_over(source, "owner"))
        for _ in range(PACKS):
            await owner.commit((BUFFER, PACK.encode()))
        yield opened


@asynccontextmanager
async def viewing(harness: JetStreamHarness, tmp_path: Path) -> AsyncIterator[PipelineView]:
    plan = load(tmp_path / "pipeline.yaml").plan
    async with JETSTREAM.open(harness.server.access, PIPELINE_NAME, name="view") as buffer:
        yield PipelineView(plan, buffer.broker, buffer.stores)


@contextmanager
def holding_little() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < HELD_MAX


async def test_what_waits_is_counted_a_few_frames_at_a_time(harness: JetStreamHarness, tmp_path: Path) -> None:
    async with viewing(harness, tmp_path) as view:
        with holding_little():
            assert await view.waiting() == {BUFFER: 2 * PACKS}


@pytest.mark.sweep
async def test_a_buffer_with_too_many_bytes_is_not_counted(
    harness: JetStreamHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream_runner.local.view.COUNTED_BYTES_MAX", PACKS * len(PACK.encode()))
    async with viewing(harness, tmp_path) as view:
        assert await view.waiting() == {BUFFER: 2 * PACKS}
        monkeypatch.setattr("millstream_runner.local.view.COUNTED_BYTES_MAX", PACKS * len(PACK.encode()) - 1)
        assert await view.waiting() == {}


@pytest.mark.parametrize("count", [1, 100, *(pytest.param(count, marks=pytest.mark.sweep) for count in (7, 2 * PACKS))])
async def test_peek_reads_no_more_than_it_needs(
    harness: JetStreamHarness, tmp_path: Path, capfd: pytest.CaptureFixture[str], count: int
) -> None:
    server = harness.server
    broker = ["--broker", server.url, "--broker-access", str(server.access_file)]
    words = ["peek", "in-out", "--count", str(count), *broker, "--file", str(tmp_path / "pipeline.yaml")]
    with holding_little():
        assert await asyncio.to_thread(main, words) == 0
    lines = capfd.readouterr().out.splitlines()
    shown = min(count, 2 * PACKS)
    assert sum("xxxx" in line for line in lines) == shown
    assert len(lines) >= shown
