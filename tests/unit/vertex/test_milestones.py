"""A lane's milestones in its ledger: found again at the next opening, trimmed but for the last that is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream import codes
from millstream.ledger.protocol import Ledger, LedgerLimits
from millstream.limits import BUFFER_FRAMES_MAX
from millstream.record import LaneId
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.lane.milestones import Retracing, StoredMilestones, open_milestones
from millstream_reduce.lane.progress import check_records_known
from millstream_reduce.queue import Queue
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Unit
from tests.support.errors import raises
from tests.support.ledgers import LaneOwner, open_memory_harness
from tests.unit.reduce.queued import EDGE, frame_of
from tests.unit.reduce.queued import Lane as QueueLane

LANE = LaneId("sum", "window", 1)
A, B = "a-sum", "b-sum"


def milestone(closed_us: int, **positions: int) -> wal_pb2.Milestone:
    inputs = [wal_pb2.InputPosition(edge=f"{edge}-sum", sequence=sequence) for edge, sequence in positions.items()]
    return wal_pb2.Milestone(inputs=inputs, closed_us=closed_us)


def mark(closed_us: int, **positions: int) -> mark_pb2.ReduceProgress:
    done = [mark_pb2.InputProgress(edge=f"{edge}-sum", sequence=sequence) for edge, sequence in positions.items()]
    return mark_pb2.ReduceProgress(inputs=done, closed_us=closed_us)


FIRST, SECOND, THIRD = milestone(10, a=2), milestone(20, a=5, b=3), milestone(30, a=9, b=3)


async def commit(owner: LaneOwner, stored: StoredMilestones, *milestones: wal_pb2.Milestone) -> None:
    """In frames of one commit."""
    pairs = [stored.frame(one, 7) for one in milestones]
    receipt = await owner.commit(*((buffer, frame.encode()) for buffer, frame in pairs))
    sequences = {buffer: number for (buffer, _), number in zip(pairs, receipt.frame_sequences, strict=True)}
    stored.committed([Unit(frames=pairs)], sequences)


def check_whole(queue: Queue, counted: mark_pb2.Mark) -> None:
    check_records_known("p/sum", queue.directory, queue.records_known(), counted)


async def way_from(ledger: Ledger, **positions: int) -> list[wal_pb2.Milestone]:
    """What an owner would find that begins now, with a log that has come so far."""
    stored = await open_milestones(ledger, LANE, Trimmer(ledger.trim))
    return stored.way(mark(33, a=10, b=4), {f"{edge}-sum": sequence for edge, sequence in positions.items()})


END = milestone(33, a=10, b=4)


@pytest.mark.guarantee("I3")
async def test_milestones_are_found_again_until_the_next_one_takes_their_place() -> None:
    async with open_memory_harness() as harness:
        ledger = await harness.broker.ledger("sum", LedgerLimits(BUFFER_FRAMES_MAX))
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "owner"))
        assert await way_from(ledger) == [END]
        trimmer = Trimmer(ledger.trim)
        stored = await open_milestones(ledger, LANE, trimmer)
        await commit(owner, stored, FIRST)
        await commit(owner, stored, SECOND, THIRD)
        assert await way_from(ledger) == [FIRST, SECOND, THIRD, END]

        async def released(**positions: int) -> list[wal_pb2.Milestone]:
            stored.release({f"{edge}-sum": sequence for edge, sequence in positions.items()})
            await trimmer.finish()
            return await way_from(ledger)

        assert await released(a=4, b=3) == [FIRST, SECOND, THIRD, END]
        assert await released(a=5, b=2) == [FIRST, SECOND, THIRD, END]
        # Up to the second, the input is gone: it alone says what was closed by then.
        assert await released(a=8, b=3) == [SECOND, THIRD, END]
        # Both were one commit, and the third is the last.
        await commit(owner, stored)
        assert (await released(a=10, b=4))[-2:] == [THIRD, END]


async def test_a_log_that_is_old_begins_behind_what_it_has() -> None:
    async with open_memory_harness() as harness:
        ledger = await harness.broker.ledger("sum", LedgerLimits(BUFFER_FRAMES_MAX))
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "owner"))
        stored = await open_milestones(ledger, LANE, Trimmer(ledger.trim))
        await commit(owner, stored, FIRST, SECOND, THIRD)
        assert await way_from(ledger, a=1) == [FIRST, SECOND, THIRD, END]
        # Where it stands exactly there, what was done there may be missing.
        assert await way_from(ledger, a=2) == [FIRST, SECOND, THIRD, END]
        assert await way_from(ledger, a=3, b=1) == [SECOND, THIRD, END]
        assert await way_from(ledger, a=9, b=3) == [THIRD, END]
        assert await way_from(ledger, a=9, b=4) == [END]


@pytest.mark.parametrize(
    ("last", "gate"),
    [({A: 20, B: 20}, {A: 5, B: 3}), ({A: 4, B: 20}, {A: 4, B: 3}), ({A: 20}, {A: 5, B: 0})],
    ids=["all-stored", "some-trimmed", "all-of-one-trimmed"],
)
def test_what_is_gone_is_not_waited_for(last: dict[str, int], gate: dict[str, int]) -> None:
    retracing = Retracing([SECOND, END], last)
    assert retracing.gate == gate
    assert retracing.passed() == SECOND
    assert not retracing.has_ended
    assert retracing.passed() == END
    assert retracing.has_ended


@pytest.mark.guarantee("I10")
async def test_a_log_made_anew_that_lacks_records_is_refused_now_and_at_the_next_start(tmp_path: Path) -> None:
    lane = QueueLane(tmp_path / "log", input_is_kept=True)
    mark = mark_pb2.Mark(account=mark_pb2.Account(open=3))
    async with lane.opened() as queue:
        lane.append(queue, frame_of([1, 2, 12]))
        lane.append(queue, frame_of([13]))
        # What is in the log and not told is not counted by the mark yet.
        lane.progress.inputs.add(edge=EDGE, sequence=1)
        await queue.sync()
        await queue.committed(lane.progress)
        check_whole(queue, mark)
        # What is handed over is open until it is committed.
        (hand_over,) = queue.close(10)
        check_whole(queue, mark)
        await lane.commit(queue, hand_over)
        check_whole(queue, mark_pb2.Mark(account=mark_pb2.Account(open=2)))
    shutil.rmtree(lane.directory)
    for _ in range(2):
        async with lane.opened() as queue:
            if queue.is_behind:
                # The first frame was trimmed before any reduce kept it.
                lane.sequences[EDGE] = 1
                lane.append(queue, frame_of([13]))
                lane.retrace(queue)
            with raises(codes.LOG_BEHIND_LEDGER, match=r"holds 1 records .* counts 2: .* before `keepInput` was set"):
                check_whole(queue, mark_pb2.Mark(account=mark_pb2.Account(open=2)))
            await queue.sync()
