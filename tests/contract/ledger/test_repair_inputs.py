"""What `millstream repair` does where a lane reads several edges: each has a position and losses of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.account import consumed
from millstream.ledger.packs import Pack
from millstream.ledger.protocol import StoredFrame
from millstream.ledger.witness import merged
from millstream.record import ALL_INPUTS, BufferId, LaneId, Position
from tests.contract.ledger.test_repair import PACKED, found, owner_of, remove, repairing
from tests.support.ledgers import JetStreamHarness, LaneOwner, open_jetstream_harness
from tests.unit.vertex.lane_rig import records_of

PIPELINE = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: more, source: {generator: {records: 100}}}
    - {name: a, udf: {python: "f.py:f", state: {}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: a}
    - {from: more, to: a}
    - {from: a, to: out}
"""
READER = LaneId("a", ALL_INPUTS, 0)
BUFFERS = {name: BufferId(f"{name}-a", 0) for name in ("in", "more")}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


async def write(owner: LaneOwner, data: bytes, records: int) -> bytes:
    commit = owner.commit_of((BUFFERS[owner.lane.vertex], data))
    (total,) = commit.mark.written
    total.records += records
    await owner.send(commit)
    return data


async def finish(reader: LaneOwner, edge: str, stored: StoredFrame, records: int, size: int) -> None:
    """Have the reader commit that it has finished so many records of an edge's first frame, of so many bytes."""
    commit = reader.commit_of()
    done = commit.mark.inputs.add(edge=edge, records=records, bytes=size)
    done.sequence, done.record_index = Position.within(stored.sequence, records)
    done.read.extend(merged([], [stored.witness] if stored.witness else []))
    commit.mark.account.inputs += records
    commit.mark.account.processed += records
    await reader.send(commit)


@pytest.mark.guarantee("I2", "I10", "I15")
@pytest.mark.parametrize("usable", [True, False], ids=["a frame is lost", "the frame that was read in part is lost"])
async def test_what_is_lost_of_one_edge_is_accepted_for_that_edge(
    harness: JetStreamHarness, tmp_path: Path, usable: bool
) -> None:
    source = await owner_of(harness, LaneId("in", "source", 0))
    other = await owner_of(harness, LaneId("more", "source", 0))
    reader = await owner_of(harness, READER)
    pack = await write(source, Pack(PACKED).encode() if usable else b"no frame", 12)
    lost, _ = [await write(source, records_of(value).encode(), 1) for value in (b"lost", b"last")]
    await write(other, Pack(PACKED).encode(), 12)
    first, second, _ = await source.ledger.peek(BUFFERS["in"], 0, 10)
    (fine,) = await other.ledger.peek(BUFFERS["more"], 0, 10)
    await finish(reader, "more-a", fine, 9, sum(frame.size for frame in PACKED[:2]))
    await finish(reader, "in-a", first, 5, PACKED[0].size if usable else 0)
    if usable:
        await remove(harness, second.sequence)
    async with repairing(harness, tmp_path, PIPELINE) as repair:
        (finding,) = await found(repair, accept=True)
        assert finding.records == (1 if usable else 7)
        assert not await found(repair)
    mark = (await owner_of(harness, READER)).stored.mark
    expected = (1, len(lost)) if usable else (7, len(pack))
    assert [(item.edge, item.records, item.bytes) for item in mark.accepted] == [("in-a", *expected)]
    assert {gap.edge for gap in mark.given_up} == {"in-a"}
    assert {done.edge: done.record_index for done in mark.inputs} == {"more-a": 9, "in-a": 5 if usable else 0}
    assert {one.buffer.edge: one.records for one in consumed(READER, mark)} == {"more-a": 9, "in-a": 5 + expected[0]}
