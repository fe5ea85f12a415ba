"""What `millstream repair` finds in a broker, and what is left when it is accepted."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes, limits
from millstream.account import consumed
from millstream.buffers.jetstream.references import REFERENCE
from millstream.buffers.jetstream.requests import message_headers
from millstream.buffers.jetstream.technology import TECHNOLOGY as JETSTREAM
from millstream.durable import listen
from millstream.errors import DamageError
from millstream.frame import Frame, build_frame
from millstream.ledger.frames import decoded
from millstream.ledger.packs import Pack
from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.ledger.sharing import Sharing
from millstream.ledger.witness import from_messages, given_up_of, merged, not_passed
from millstream.nats.connection import open_connection
from millstream.record import BufferId, LaneId, Position
from millstream.spec.loading import load
from millstream.values import Values
from millstream_runner.local.directory import KnownLedgers
from millstream_runner.local.repair.finding import Finding
from millstream_runner.local.repair.repair import Repair
from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2
from tests.support.errors import raises
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
    - {name: a, sink: {blackhole: {}}}
    - {name: b, sink: {blackhole: {}}}
  edges:
    - {from: in, to: a}
    - {from: in, to: b}
"""
OF_A_MAP = """\
apiVersion: millstream.io/v1alpha1
kind: Pipeline
metadata: {name: p}
spec:
  vertices:
    - {name: in, source: {generator: {records: 100}}}
    - {name: a, udf: {builtin: {name: cat}}}
    - {name: out, sink: {blackhole: {}}}
  edges:
    - {from: in, to: a, chain: false}
    - {from: a, to: out}
"""
A, B = BufferId("in-a", 0), BufferId("in-b", 0)
SOURCE, READER = LaneId("in", "source", 0), LaneId("a", "in-a", 0)
WAIT_S = 60.0
LIMITS = LedgerLimits(frames_per_buffer_max=1000)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def repairing(harness: JetStreamHarness, tmp_path: Path, pipeline: str = PIPELINE) -> AsyncIterator[Repair]:
    (tmp_path / "pipeline.yaml").write_text(pipeline)
    plan = load(tmp_path / "pipeline.yaml").plan
    async with JETSTREAM.open(harness.server.access, PIPELINE_NAME, name="test", tolerate_lost=True) as buffer:
        yield Repair(plan, buffer, KnownLedgers(tmp_path / "ledgers.json"), tmp_path / "windows", tmp_path / "states")


async def found(repair: Repair, *, accept: bool = False) -> list[Finding]:
    findings = []
    async for finding in repair.findings():
        findings.append(finding)
        if accept:
            await finding.accept()
    return findings


async def owner_of(harness: JetStreamHarness, lane: LaneId) -> LaneOwner:
    ledger = await harness.broker.ledger(lane.vertex, LIMITS)
    return LaneOwner(ledger, lane, await ledger.take_over(lane, "owner"))


async def write(owner: LaneOwner, number: int, frame: bytes | None = None) -> None:
    frame = frame if frame is not None else records_of(b"%d" % number).encode()
    commit = owner.commit_of((A, frame), (B, frame))
    for total in commit.mark.written:
        total.records += 1
    await owner.send(commit)


async def read_all(ledger: Ledger, reader: LaneOwner) -> list[StoredFrame]:
    """Read what there is, as a lane does, and commit that it was read."""
    mark = reader.stored.mark
    count = len(await ledger.peek(A, mark.sequence, 1000))
    frames: list[StoredFrame] = []
    async with ledger.read(A, mark.sequence, from_messages(mark.read), given_up_of(mark, A.edge)) as reading:
        while len(frames) < count:
            async with asyncio.timeout(WAIT_S):
                frames.append(await anext(reading))
            decoded("in", A, frames[-1])
    commit = reader.commit_of()
    commit.mark.sequence = frames[-1].sequence
    commit.mark.account.inputs += len(frames)
    read = merged(commit.mark.read, [frame.witness for frame in frames if frame.witness])
    del commit.mark.read[:]
    commit.mark.read.extend(read)
    kept = not_passed(mark.given_up, commit.mark)
    del commit.mark.given_up[:]
    commit.mark.given_up.extend(kept)
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
@pytest.mark.parametrize(("apart", "first_torn"), [(False, 5), (True, 9)])
async def test_a_torn_batch_is_cut_off(
    harness: JetStreamHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool, first_torn: int
) -> None:
    """`apart`: the batch only refers to its frames."""
    if apart:
        monkeypatch.setattr(limits, "FRAME_APART_BYTES_MIN", 1)
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
        where = f"sequences {first_torn} to {first_torn + 1}"
        assert f"lane in/source.0 is stored in part in p-in, {where}" in first.what
        assert first.affects.startswith("2 uncommitted frames")
        assert first.lost[0].what == f"sequence {first_torn}, on its way to in-a.0: 1 record"
        assert first.lost[0].records[0].startswith(f"record a/in-a/0/{first_torn}/0 (")
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


def _falling() -> bytes:
    frame = build_frame([b"abc", b"d"], array("q", [1, 2]), ingest_time_us=0, ids=[b"one", b"two"])
    values = frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets([0, 9, 4]), data=b"abcd")
    return replace(frame, contents=Values(values.SerializeToString())).encode()


def _no_text() -> bytes:
    return build_frame([b"a"], array("q", [1]), ingest_time_us=0, keys=[[b"\xff\xfe"]]).encode()


BAD = {"no frame": b"\xff\xff", "offsets that fall": _falling(), "keys that are not text": _no_text()}


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("place", [1, 2, 4])
async def test_a_frame_that_cannot_be_used_is_named_and_stepped_over(
    harness: JetStreamHarness, tmp_path: Path, kind: str, place: int
) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    for number in range(1, 5):
        await write(source, number, BAD[kind] if number == place else None)
    with raises(codes.FRAME_UNREADABLE, match=rf"frame {place} of lane in/source\.0 at sequence \d+ cannot be used"):
        await read_all(source.ledger, await owner_of(harness, READER))
    reader = await owner_of(harness, READER)
    async with repairing(harness, tmp_path) as repair:
        (first,) = await found(repair)
        assert first.records == 1
        assert f"frame {place} of lane in/source.0" in first.lost[0].what
        assert (first.lost[0].records[:1] == ["record one (event time 1970-01-01T00:00:00.000001Z)"]) == (
            kind == "offsets that fall"
        )
        await found(repair, accept=True)
        assert not await found(repair)
    reader = await owner_of(harness, READER)
    assert [decoded("in", A, frame).values() for frame in await read_all(source.ledger, reader)] == [
        [b"%d" % number] for number in range(1, 5) if number != place
    ]
    assert [done.records for done in consumed(READER, reader.stored.mark)] == [4]
    source = await owner_of(harness, SOURCE)
    await write(source, 5)
    assert len(await read_all(source.ledger, reader)) == 1
    # The last frame that is there is the end that the lane upstream tells.
    assert place != 4 or (await source.ledger.last_sequence(A)) == reader.stored.mark.sequence


@pytest.mark.guarantee("I10")
async def test_a_reference_to_nothing_is_named_and_stepped_over(
    harness: JetStreamHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_APART_BYTES_MIN", 1)
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    for number in range(3):
        await write(source, number)
    (_, second, _) = await source.ledger.peek(A, 0, 10)
    async with open_connection(harness.server.access) as connection:
        request = {"seq": second.sequence}
        message = (await connection.api("STREAM.MSG.GET.p-in", request))["message"]
    await remove(harness, int(message_headers(message)[REFERENCE].split()[0]))
    with raises(codes.FRAME_UNREADABLE, match=r"frame 2 of lane in/source\.0 .* its data no longer exists"):
        await read_all(source.ledger, reader)
    async with repairing(harness, tmp_path) as repair:
        (first,) = await found(repair, accept=True)
        assert first.records == 1
        assert not await found(repair)
    reader = await owner_of(harness, READER)
    frames = await read_all(source.ledger, reader)
    assert [decoded("in", A, frame).values() for frame in frames] == [[b"0"], [b"2"]]
    assert [done.records for done in consumed(READER, reader.stored.mark)] == [3]


async def remove(harness: JetStreamHarness, *sequences: int, vertex: str = "in") -> None:
    """As a server does that finds a part of a file damaged."""
    async with open_connection(harness.server.access) as connection:
        for sequence in sequences:
            await connection.api(f"STREAM.MSG.DELETE.p-{vertex}", {"seq": sequence, "no_erase": True})


@pytest.mark.guarantee("I10", "I15")
async def test_gaps_anywhere_in_a_buffer_are_given_up_in_one_call(harness: JetStreamHarness, tmp_path: Path) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    for number in range(3):
        await write(source, number)
    await read_all(source.ledger, reader)
    for number in range(3, 12):
        await write(source, number)
    waiting = [frame.sequence for frame in await source.ledger.peek(A, reader.stored.mark.sequence, 100)]
    await remove(harness, waiting[0], waiting[3], waiting[4], waiting[8])
    async with repairing(harness, tmp_path) as repair:
        first, *others = await found(repair)
        assert not others
        assert first.records == 4
        frames = ["frame 4", "frames 7 to 8", "frame 12"]
        told = [f"{which} of lane in/source.0 cannot be read" for which in frames]
        assert [item.what for item in first.lost] == told
        assert "value '5'" in first.lost[1].previous
        assert "value '8'" in first.lost[1].following
        await found(repair, accept=True)
        assert not await found(repair)
    reader = await owner_of(harness, READER)
    await read_all(source.ledger, reader)
    source = await owner_of(harness, SOURCE)
    await write(source, 12)
    assert len(await read_all(source.ledger, reader)) == 1
    assert not reader.stored.mark.given_up
    assert [done.records for done in consumed(READER, reader.stored.mark)] == [13]
    # What was given up says nothing of what is damaged later.
    await write(source, 13)
    await write(source, 14)
    (gone, _) = await source.ledger.peek(A, reader.stored.mark.sequence, 2)
    await remove(harness, gone.sequence)
    with raises(codes.BUFFER_GAP, match=r"frame 13 of lane source\.0 is followed by frame 15"):
        await read_all(source.ledger, reader)


class _KilledError(Exception):
    """The process is gone, at one of its durable steps."""


async def _damaged_frames(harness: JetStreamHarness) -> None:
    """A reader whose past was replaced, with gaps and frames that cannot be used behind it."""
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    await write(source, 0)
    await harness.save("in")
    await write(source, 1)
    await write(source, 2)
    await read_all(source.ledger, reader)
    await harness.set_back("in")
    source = await owner_of(harness, SOURCE)
    for number in range(10, 15):
        await write(source, number, BAD["no frame"] if number in (12, 14) else None)


async def _end_state(harness: JetStreamHarness) -> tuple[object, ...]:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    mark = reader.stored.mark
    frames = await source.ledger.peek(A, mark.sequence, 100)
    gaps = [(gap.lane, gap.after, gap.through) for gap in mark.given_up]
    accepted = [(item.edge, item.records, item.bytes) for item in mark.accepted]
    return [frame.data for frame in frames], consumed(READER, mark)[0].records, gaps, mark.account.inputs, accepted


@pytest.mark.guarantee("I10")
async def test_a_repair_that_is_killed_anywhere_is_made_again(harness: JetStreamHarness, tmp_path: Path) -> None:
    points: list[str] = []

    async def repaired(stop_at: int | None) -> None:
        points.clear()

        def reached(point: str, vertex: str) -> None:
            points.append(point)
            if len(points) - 1 == stop_at:
                raise _KilledError(point)

        listen(reached)
        try:
            async with repairing(harness, tmp_path) as repair:
                await found(repair, accept=True)
        finally:
            listen(None)

    await _damaged_frames(harness)
    await repaired(None)
    expected = await _end_state(harness)
    assert {"watermark.forget:before", "repair.remove:after", "ledger.commit:before"} <= set(points)
    for stop_at in range(len(points)):
        await harness.broker.delete()
        await _damaged_frames(harness)
        with pytest.raises(_KilledError):
            await repaired(stop_at)
        await repaired(None)
        assert await _end_state(harness) == expected


@pytest.mark.guarantee("I10")
async def test_what_was_given_up_covers_nothing_else(harness: JetStreamHarness, tmp_path: Path) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    await write(source, 0)
    await read_all(source.ledger, reader)
    for number in range(1, 7):
        await write(source, number)
    waiting = [frame.sequence for frame in await source.ledger.peek(A, reader.stored.mark.sequence, 100)]
    await remove(harness, waiting[3])
    async with repairing(harness, tmp_path) as repair:
        await found(repair, accept=True)
    # The frame in front of the gap is lost as well, later.
    await remove(harness, waiting[2])
    with raises(codes.BUFFER_GAP, match=r"frame 3 of lane source\.0 is followed by frame 6"):
        await read_all(source.ledger, await owner_of(harness, READER))


async def write_frames(owner: LaneOwner, *frames: Frame, stored_as: bytes | None = None) -> bytes:
    """Have the source store these frames as one, and return what is stored. `stored_as`: it is damaged since."""
    data = Pack(frames).encode() if len(frames) > 1 else frames[0].encode()
    commit = owner.commit_of((A, data if stored_as is None else stored_as))
    (total,) = commit.mark.written
    total.records += sum(frame.records for frame in frames)
    await owner.send(commit)
    return data if stored_as is None else stored_as


async def finish(reader: LaneOwner, stored: StoredFrame, records: int, size: int) -> None:
    """Have the reader commit that it has finished so many records of its first frame, and counted so many bytes."""
    commit = reader.commit_of()
    commit.mark.sequence, commit.mark.record_index = Position.within(stored.sequence, records)
    commit.mark.account.inputs, commit.mark.account.input_bytes = records, size
    commit.mark.read.extend(merged([], [stored.witness] if stored.witness else []))
    await reader.send(commit)


PACKED = [records_of(*(b"%d-%d" % (number, index) for index in range(4))) for number in range(3)]


@pytest.mark.guarantee("I2", "I10")
@pytest.mark.parametrize("pipeline", [OF_A_MAP, PIPELINE], ids=["map", "sink"])
@pytest.mark.parametrize("done", [3, 4, 9])
async def test_what_is_lost_after_a_pack_that_was_read_in_part_is_what_is_accepted(
    harness: JetStreamHarness, tmp_path: Path, pipeline: str, done: int
) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    await write_frames(source, *PACKED)
    lost, _ = [await write_frames(source, records_of(value)) for value in (b"lost", b"last")]
    pack, next_one, _ = await source.ledger.peek(A, 0, 10)
    counted = sum(frame.size for frame in PACKED[: done // 4])
    await finish(reader, pack, done, counted)
    await remove(harness, next_one.sequence)
    async with repairing(harness, tmp_path, pipeline) as repair:
        (finding,) = await found(repair, accept=True)
        assert finding.records == 1
        assert not await found(repair)
    mark = (await owner_of(harness, READER)).stored.mark
    assert [(item.records, item.bytes) for item in mark.accepted] == [(1, len(lost))]
    assert mark.record_index == done


@pytest.mark.guarantee("I2", "I10")
@pytest.mark.parametrize("done", [3, 4, 9])
async def test_the_rest_of_a_pack_that_cannot_be_used_is_given_up(
    harness: JetStreamHarness, tmp_path: Path, done: int
) -> None:
    source, reader = await owner_of(harness, SOURCE), await owner_of(harness, READER)
    damaged = await write_frames(source, *PACKED, stored_as=b"no frame")
    for value in (b"next", b"last"):
        await write_frames(source, records_of(value))
    pack, *behind = await source.ledger.peek(A, 0, 10)
    await finish(reader, pack, done, 0)
    async with repairing(harness, tmp_path, OF_A_MAP) as repair:
        (finding,) = await found(repair, accept=True)
        assert finding.records == 12 - done
        assert not await found(repair)
    reader = await owner_of(harness, READER)
    mark = reader.stored.mark
    assert [(item.records, item.bytes) for item in mark.accepted] == [(12 - done, len(damaged))]
    assert mark.record_index == 0, "of the next frame, nothing is done"
    assert await read_all(source.ledger, reader) == behind


SHARED = replace(LIMITS, sharing=Sharing.of({"_in-1": ("in-a", "in-b")}))


async def write_shared(owner: LaneOwner, number: int, frame: bytes | None = None) -> None:
    """As `write`, into the copy that both edges share."""
    frame = frame if frame is not None else records_of(b"%d" % number).encode()
    commit = owner.commit_of((A, frame))
    (total,) = (one for one in commit.mark.written if one.edge == A.edge)
    total.records += 1
    other = next((one for one in commit.mark.written if one.edge == B.edge), None) or commit.mark.written.add()
    other.CopyFrom(total)
    other.edge = B.edge
    await owner.send(commit)


async def has_read(reader: LaneOwner, frames: Sequence[StoredFrame]) -> None:
    """Have the reader commit that it has read these frames, whatever is in them."""
    commit = reader.commit_of()
    commit.mark.sequence = frames[-1].sequence
    commit.mark.account.inputs += len(frames)
    read = merged(commit.mark.read, [frame.witness for frame in frames if frame.witness])
    del commit.mark.read[:]
    commit.mark.read.extend(read)
    await reader.send(commit)


async def next_values(ledger: Ledger, lane: LaneId, own: Ledger, count: int) -> list[bytes]:
    """What the next owner of a reader's lane reads."""
    mark = (await own.take_over(lane, "next")).mark
    buffer = BufferId(lane.input, 0)
    found: list[bytes] = []
    witnesses, given_up = from_messages(mark.read), given_up_of(mark, buffer.edge)
    async with asyncio.timeout(WAIT_S), ledger.read(buffer, mark.sequence, witnesses, given_up) as arriving:
        while len(found) < count:
            found += decoded("in", buffer, await anext(arriving)).values()
    return found


@pytest.mark.guarantee("I10")
@pytest.mark.parametrize(("by_a", "by_b"), [(1, 1), (2, 2), (2, 4), (4, 2), (2, 3), (3, 2), (3, 3)])
async def test_a_frame_that_cannot_be_used_is_given_up_by_each_reader_of_its_copy(
    harness: JetStreamHarness, tmp_path: Path, by_a: int, by_b: int
) -> None:
    """The third of four frames. A reader may have it, as its last one or not: it is damaged since."""
    ledger = await harness.broker.ledger("in", SHARED)
    source = LaneOwner(ledger, SOURCE, await ledger.take_over(SOURCE, "owner"))
    for number in range(4):
        await write_shared(source, number, b"no frame" if number == 2 else None)
    stored = await ledger.peek(A, 0, 10)
    assert [frame.sequence for frame in stored] == [frame.sequence for frame in await ledger.peek(B, 0, 10)]
    lanes = {by: LaneId(by, f"in-{by}", 0) for by in "ab"}
    readers = {by: await owner_of(harness, lane) for by, lane in lanes.items()}
    for by, frames in (("a", by_a), ("b", by_b)):
        await has_read(readers[by], stored[:frames])
    async with repairing(harness, tmp_path) as repair:
        findings = await found(repair, accept=True)
        assert {finding.kind for finding in findings} <= {"buffer"}
        assert not [finding.what for finding in await found(repair)]
    source = LaneOwner(ledger, SOURCE, await ledger.take_over(SOURCE, "owner"))
    await write_shared(source, 4)
    for by, frames in (("a", by_a), ("b", by_b)):
        left = [b"%d" % number for number in range(frames, 5) if number != 2]
        assert await next_values(ledger, lanes[by], readers[by].ledger, len(left)) == left
