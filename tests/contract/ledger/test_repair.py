"""What `millstream repair` finds in a broker, and what is left when it is accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.account import consumed
from millstream.errors import DamageError
from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.ledger.witness import merged
from millstream.local.ledgers import KnownLedgers
from millstream.local.repair import Finding, Repair
from millstream.record import BufferId, LaneId
from millstream.spec.loading import load
from millstream.testing.ledgers import JetStreamHarness, LaneOwner, open_jetstream_harness
from millstream.watermark.jetstream import open_jetstream_ot_stores
from millstream.wire.nats import open_connection
from tests.unit.vertex.lane_rig import records_of

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: a, sink: {blackhole: {}}}
    - {name: b, sink: {blackhole: {}}}
  edges:
    - {from: in, to: a}
    - {from: in, to: b}
"""
A, B = BufferId("in-a", 0), BufferId("in-b", 0)
SOURCE, READER = LaneId("in", "source", 0), LaneId("a", "in-a", 0)
LIMITS = LedgerLimits(frames_per_buffer_max=1000)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def repairing(harness: JetStreamHarness, tmp_path: Path) -> AsyncIterator[Repair]:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    graph = load(tmp_path / "pipeline.yaml").graph
    async with (
        open_connection(harness.server.access) as connection,
        open_jetstream_ot_stores(connection, "p") as stores,
    ):
        known = KnownLedgers(tmp_path / "ledgers.json")
        yield Repair(graph, connection, harness.broker, stores, known, tmp_path / "windows")


async def found(repair: Repair, *, accept: bool = False) -> list[Finding]:
    findings = []
    async for finding in repair.findings():
        findings.append(finding)
        if accept:
            assert finding.accept is not None
            await finding.accept()
    return findings


async def owner_of(harness: JetStreamHarness, lane: LaneId) -> LaneOwner:
    ledger = await harness.broker.ledger(lane.vertex, LIMITS)
    return LaneOwner(ledger, lane, await ledger.take_over(lane, "owner"))


async def write(owner: LaneOwner, number: int) -> None:
    frame = records_of(b"%d" % number).encode()
    commit = owner.commit_of((A, frame), (B, frame))
    for total in commit.mark.written:
        total.records += 1
    await owner.send(commit)


async def read_all(ledger: Ledger, reader: LaneOwner) -> list[StoredFrame]:
    """Read what there is, and commit that it was read."""
    frames = list(await ledger.peek(A, reader.stored.mark.sequence, 1000))
    commit = reader.commit_of()
    commit.mark.sequence = frames[-1].sequence
    commit.mark.account.inputs += len(frames)
    read = merged(commit.mark.read, [frame.witness for frame in frames if frame.witness])
    del commit.mark.read[:]
    commit.mark.read.extend(read)
    await reader.send(commit)
    return frames


@pytest.mark.guarantee("I10")
async def test_where_nothing_is_damaged_nothing_is_found(harness: JetStreamHarness, tmp_path: Path) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    for number in range(3):
        await write(source, number)
    await read_all(source.ledger, reader)
    await write(source, 3)
    async with repairing(harness, tmp_path) as repair:
        assert not await found(repair)


@pytest.mark.guarantee("I10")
async def test_a_torn_batch_is_cut_off(harness: JetStreamHarness, tmp_path: Path) -> None:
    source = await owner_of(harness, SOURCE)
    await write(source, 0)
    await write(source, 1)
    before = await source.ledger.peek(A, 0, 10)
    await harness.server.kill()
    block = max((harness.stored_in("in") / "msgs").glob("*.blk"))
    with block.open("r+b") as file:
        file.truncate(block.stat().st_size - 58)
    for index in (harness.stored_in("in") / "msgs").glob("index.db"):
        index.unlink()
    await harness.server.start()
    async with repairing(harness, tmp_path) as repair:
        first, *_ = [finding async for finding in repair.findings() if "in part" in finding.what]
        assert "lane in/source.0 is stored in part in p-in, sequences 5 to 6" in first.what
        assert "sequence 5: 1 records on their way to in-a.0" in first.affects
        with pytest.raises(DamageError):
            await source.ledger.mark(SOURCE)
        await found(repair, accept=True)
        assert not await found(repair)
    again = await owner_of(harness, SOURCE)
    assert [total.frames for total in again.stored.mark.written] == [1, 1]
    await write(again, 1)
    assert [frame.data for frame in await source.ledger.peek(A, 0, 10)] == [frame.data for frame in before]


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("again", [0, 1, 4])
async def test_a_replaced_past_is_gone_on_behind(harness: JetStreamHarness, tmp_path: Path, again: int) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    await write(source, 0)
    await harness.save("in")
    await write(source, 1)
    await write(source, 2)
    read = await read_all(source.ledger, reader)
    await harness.set_back("in")
    source = await owner_of(harness, SOURCE)
    for number in range(again):
        await write(source, 10 + number)
    async with repairing(harness, tmp_path) as repair:
        (finding,) = await found(repair)
        assert "lane a/in-a.0 has read buffer in-a.0 up to sequence" in finding.what
        await found(repair, accept=True)
        assert not await found(repair)
    mark = (await owner_of(harness, READER)).stored.mark
    waiting = await source.ledger.peek(A, mark.sequence, 100)
    # Nothing is read twice by its sequence, and the account balances.
    assert all(frame.sequence > read[-1].sequence for frame in waiting)
    (done,) = consumed(READER, mark)
    assert done.records + len(waiting) == 1 + again
    assert mark.account.inputs == 3
    source = await owner_of(harness, SOURCE)
    await write(source, 99)
    assert (await source.ledger.peek(A, mark.sequence, 100))[-1].sequence > read[-1].sequence
    reader = await owner_of(harness, READER)
    read = await read_all(source.ledger, reader)
    assert len(read) == len(waiting) + 1
    async with repairing(harness, tmp_path) as repair:
        assert not await found(repair)
