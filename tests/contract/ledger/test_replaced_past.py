"""What a reader has read is named by what was in it: a past that was replaced is noticed before a record is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millstream import codes
from millstream.errors import DamageError, FencedError
from millstream.ledger.marks import taken_over, takeover
from millstream.ledger.protocol import GivenUp, Ledger, LedgerLimits, StoredFrame, Witness
from millstream.record import BufferId, LaneId
from millstream_vertex.taking_over import held_instead
from tests.support.errors import raises
from tests.support.ledgers import Harness, LaneOwner

A = BufferId("v-a", 0)
B = BufferId("v-b", 0)
WAIT_S = 60.0
AGAIN = pytest.mark.parametrize("again", [0, 1, 2, 7])
"""Frames that are written again, behind a reader that has read four, of which two are lost: fewer, as many, more."""


async def take(frames: AsyncIterator[StoredFrame], count: int) -> list[StoredFrame]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(frames) for _ in range(count)]


def witnesses(frames: list[StoredFrame]) -> list[Witness]:
    """What the mark of who has read these says: the last one of each lane."""
    last = {frame.witness.lane: frame.witness for frame in frames if frame.witness is not None}
    return list(last.values())


async def write_again(owner: LaneOwner, frames: int) -> None:
    """As the next owner of the lane does: from the position that the mark has."""
    owner.stored = await owner.ledger.take_over(owner.lane, "second")
    for number in range(frames):
        await owner.commit((A, b"other %d" % number))


@pytest.mark.guarantee("I10", "I15")
@AGAIN
async def test_a_ledger_that_lost_its_end_and_was_written_again_is_noticed(
    owner: LaneOwner, ledger: Ledger, harness: Harness, again: int
) -> None:
    await owner.commit((A, b"0"))
    await owner.commit((A, b"1"))
    await harness.save("v")
    await owner.commit((A, b"2"))
    await owner.commit((A, b"3"))
    async with ledger.read(A, 0, []) as frames:
        read = await take(frames, 4)
    await harness.set_back("v")
    await write_again(owner, again)
    with raises(
        codes.LEDGER_CUT, match=r"(frame 4 of lane in-v\.0 at sequence 5.*|lost its latest.*)millstream repair"
    ):
        async with ledger.read(A, read[-1].sequence, witnesses(read)) as frames:
            await take(frames, 1)


@pytest.mark.guarantee("I10", "I15")
@AGAIN
async def test_a_reader_that_stays_open_notices_it_as_well(
    owner: LaneOwner, ledger: Ledger, harness: Harness, again: int
) -> None:
    await owner.commit((A, b"0"))
    await owner.commit((A, b"1"))
    await harness.save("v")
    await owner.commit((A, b"2"))
    await owner.commit((A, b"3"))
    async with ledger.read(A, 0, []) as frames:
        await take(frames, 4)
        await harness.set_back("v")
        await write_again(owner, again)
        with pytest.raises(DamageError):
            await take(frames, 1)


@pytest.mark.guarantee("I15")
@AGAIN
async def test_a_reader_that_had_not_come_so_far_reads_on(
    owner: LaneOwner, ledger: Ledger, harness: Harness, again: int
) -> None:
    await owner.commit((A, b"0"))
    await owner.commit((A, b"1"))
    await harness.save("v")
    await owner.commit((A, b"2"))
    async with ledger.read(A, 0, []) as frames:
        read = await take(frames, 1)
    await harness.set_back("v")
    await write_again(owner, again)
    async with ledger.read(A, read[-1].sequence, witnesses(read)) as frames:
        rest = await take(frames, 1 + again)
    assert [frame.data for frame in rest] == [b"1", *(b"other %d" % number for number in range(again))]


@pytest.mark.guarantee("I10", "I15")
async def test_a_reader_whose_own_mark_went_back_misses_what_was_trimmed(owner: LaneOwner, ledger: Ledger) -> None:
    for number in range(4):
        await owner.commit((A, b"%d" % number))
    async with ledger.read(A, 0, []) as frames:
        read = await take(frames, 4)
    await ledger.trim({A: read[2].sequence})
    for done in (read[:1], read[:3]):
        with raises(codes.LEDGER_CUT):
            async with ledger.read(A, done[-1].sequence, witnesses(done)) as frames:
                await take(frames, 1)
    # One that has lost its mark altogether has read nothing, as far as it knows.
    with raises(codes.BUFFER_GAP, match=r"frame 0 of lane in-v\.0 is followed by frame 4"):
        async with ledger.read(A, 0, []) as frames:
            await take(frames, 1)


@pytest.mark.guarantee("I10")
async def test_the_first_frame_of_each_lane_is_missed_too(owner: LaneOwner, ledger: Ledger) -> None:
    other = LaneOwner(ledger, LaneId("v", "in-v", 1), await ledger.take_over(LaneId("v", "in-v", 1), "other"))
    for number in range(2):
        await other.commit((A, b"other %d" % number))
    await owner.commit((A, b"0"))
    async with ledger.read(A, 0, []) as frames:
        read = await take(frames, 3)
    await other.commit((A, b"other 2"))
    await other.commit((A, b"other 3"))
    # That the other lane's number 2 was read is forgotten: what comes next of it does not follow then.
    told = [witness if witness.lane == "in-v.0" else witness._replace(number=1) for witness in witnesses(read)]
    with raises(codes.BUFFER_GAP, match=r"frame 1 of lane in-v\.1 is followed by frame 3"):
        async with ledger.read(A, read[-1].sequence, told) as frames:
            await take(frames, 1)
    async with ledger.read(A, read[-1].sequence, witnesses(read)) as frames:
        assert [frame.data for frame in await take(frames, 2)] == [b"other 2", b"other 3"]


@pytest.mark.guarantee("I15")
async def test_what_is_read_once_more_must_be_what_it_was(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    await owner.commit((A, b"0"))
    await harness.save("v")
    await owner.commit((A, b"1"))
    async with ledger.read(A, 0, []) as frames:
        first, partly = await take(frames, 2)
    # As a lane does whose mark is in the middle of a frame, or that reads all of its input again.
    for after in (first.sequence, 0):
        async with ledger.read(A, after, witnesses([first, partly])) as frames:
            assert (await take(frames, 1 + (after == 0)))[-1].data == b"1"
    await harness.set_back("v")
    await write_again(owner, 3)
    for after in (first.sequence, 0):
        with raises(codes.LEDGER_CUT, match=r"frame 2 of lane in-v\.0 at sequence 3, no longer exists"):
            async with ledger.read(A, after, witnesses([first, partly])) as frames:
                await take(frames, 1)


@pytest.mark.guarantee("I10")
async def test_an_owner_whose_mark_went_back_says_so(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    await owner.commit((A, b"0"))
    await harness.save("v")
    await owner.commit((A, b"1"))
    await harness.set_back("v")
    with raises(codes.LEDGER_CUT):
        await owner.commit((A, b"2"))


@pytest.mark.guarantee("I10", "I15")
@pytest.mark.parametrize("what", ["commit", "takeover"])
async def test_an_owner_of_another_past_stores_nothing_though_the_sequence_is_the_one_it_expects(
    owner: LaneOwner, ledger: Ledger, harness: Harness, limits: LedgerLimits, what: str
) -> None:
    await owner.commit((A, b"0"))
    await harness.save("v")
    await owner.commit((A, b"1"))
    commit = owner.commit_of((A, b"2"))
    if what == "takeover":
        # It has read the mark, and its own is on the way while the ledger is set back.
        commit = takeover(owner.lane, taken_over(owner.stored, "late", b"late"), owner.stored)
    await harness.set_back("v")
    second = await (await harness.other_process()).ledger("v", limits)
    stored = await second.take_over(owner.lane, "second")
    assert stored.sequence == owner.stored.sequence
    with raises(codes.LEDGER_CUT, match=r"the mark of lane v/in-v\.0, which was at sequence 3, was replaced"):
        await ledger.commit(commit)
    assert await second.mark(owner.lane) == stored


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_is_fenced_and_not_damaged(owner: LaneOwner, ledger: Ledger) -> None:
    await owner.commit((A, b"0"))
    await ledger.take_over(owner.lane, "second")
    with pytest.raises(FencedError):
        await owner.commit((A, b"1"))


@pytest.mark.guarantee("I10", "I15")
async def test_what_a_target_has_read_is_compared_with_what_the_buffer_holds_now(
    owner: LaneOwner, ledger: Ledger, harness: Harness
) -> None:
    await owner.commit((A, b"0"))
    await harness.save("v")
    await owner.commit((A, b"1"))
    await owner.commit((A, b"2"))
    async with ledger.read(A, 0, []) as frames:
        read = [frame.witness for frame in await take(frames, 3)]
    last = read[-1]
    assert last is not None
    lost = GivenUp(last.lane, 1, last.number - 1, last.number)
    assert await held_instead(ledger, A, [], last.sequence, last.name) is None
    await harness.set_back("v")
    assert await held_instead(ledger, A, [], last.sequence, last.name) == "no frame"
    await write_again(owner, 5)
    # The take-over has a sequence of its own, so another number is there now.
    assert await held_instead(ledger, A, [], last.sequence, last.name) not in (None, "no frame")
    assert await held_instead(ledger, A, [lost], last.sequence, last.name) is None
    other = [lost._replace(lane="another.0"), lost._replace(after=last.number, through=9)]
    assert await held_instead(ledger, A, other, last.sequence, last.name) is not None
