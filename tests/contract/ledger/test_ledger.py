"""What every ledger must do, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from millstream import codes
from millstream import limits as all_limits
from millstream.errors import BufferFullError, FencedError, StorageFullError
from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.record import ID_DIGEST_BYTES, BufferId, LaneId, id_digest
from tests.support.children import together
from tests.support.errors import raises
from tests.support.ledgers import Harness, LaneOwner

A = BufferId("v-a", 0)
B = BufferId("v-b", 1)
WAIT_S = 60.0


async def take(frames: AsyncIterator[StoredFrame], count: int) -> list[StoredFrame]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(frames) for _ in range(count)]


async def stored(ledger: Ledger, buffer: BufferId) -> list[bytes]:
    return [frame.data for frame in await ledger.peek(buffer, 0, 10_000)]


async def ids_of(ledger: Ledger, lane: LaneId) -> list[bytes]:
    """Digests in the order in which they were stored."""
    found = [stored async for stored in ledger.ids(lane)]
    assert all(later.age_s <= earlier.age_s for earlier, later in pairwise(found))
    together = b"".join(stored.digests for stored in found)
    return [together[start : start + ID_DIGEST_BYTES] for start in range(0, len(together), ID_DIGEST_BYTES)]


def digests(*ids: str) -> list[bytes]:
    return [id_digest(record_id.encode()) for record_id in ids]


@pytest.mark.guarantee("I1", "I4")
async def test_frames_of_a_commit_arrive_in_order_in_every_buffer(owner: LaneOwner, ledger: Ledger) -> None:
    receipt = await owner.commit((A, b"a1"), (B, b"b1"), (A, b"a2"))
    later = await owner.commit((A, b"a3"))
    async with ledger.read(A, 0) as frames_of_a, ledger.read(B, 0) as frames_of_b:
        assert [(sequence, data) for sequence, data, _ in await take(frames_of_a, 3)] == [
            (receipt.frame_sequences[0], b"a1"),
            (receipt.frame_sequences[2], b"a2"),
            (later.frame_sequences[0], b"a3"),
        ]
        assert [(sequence, data) for sequence, data, _ in await take(frames_of_b, 1)] == [
            (receipt.frame_sequences[1], b"b1")
        ]


async def test_a_commit_may_have_a_mark_and_nothing_else(owner: LaneOwner, ledger: Ledger) -> None:
    receipt = await owner.commit()
    assert receipt.frame_sequences == ()
    found = await ledger.mark(owner.lane)
    assert found is not None
    assert found == owner.stored


async def test_a_lane_has_no_mark_before_its_first(ledger: Ledger) -> None:
    assert await ledger.mark(LaneId("v", "in-v", 7)) is None


async def test_taking_over_keeps_the_position_and_raises_the_epoch(owner: LaneOwner, ledger: Ledger) -> None:
    await owner.commit((A, b"a"))
    taken = await ledger.take_over(owner.lane, "second")
    assert (taken.mark.sequence, taken.mark.epoch, taken.mark.owner) == (1, owner.stored.mark.epoch + 1, "second")


@pytest.mark.guarantee("I1")
async def test_an_owner_that_was_replaced_is_fenced_and_nothing_of_its_commit_is_stored(
    owner: LaneOwner, ledger: Ledger, harness: Harness
) -> None:
    await owner.commit((A, b"a1"))
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    await elsewhere.take_over(owner.lane, "second")
    with raises(codes.LANE_TAKEN_OVER, match=r"'second' \(epoch 2"):
        await owner.commit((A, b"a2"), (B, b"b2"))
    assert await stored(ledger, A) == [b"a1"]
    assert await stored(ledger, B) == []


async def test_lanes_do_not_fence_each_other(owner: LaneOwner, ledger: Ledger) -> None:
    other = LaneOwner(ledger, LaneId("v", "in-v", 1), await ledger.take_over(LaneId("v", "in-v", 1), "other"))
    await together(*(lane.commit((A, b"a"), (B, b"b")) for lane in (owner, other)))
    await together(*(lane.commit((A, b"a"), (B, b"b")) for lane in (owner, other)))
    assert len(await stored(ledger, A)) == 4


async def test_two_that_take_over_at_once_leave_one_owner(owner: LaneOwner, ledger: Ledger) -> None:
    first, second = await together(ledger.take_over(owner.lane, "second"), ledger.take_over(owner.lane, "third"))
    assert {first.mark.epoch, second.mark.epoch} == {2, 3}
    last = await ledger.mark(owner.lane)
    assert last in (first, second)


@pytest.mark.guarantee("I1")
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("frames", [[(B, b"b2")], [(A, b"a2"), (B, b"b2")], []])
async def test_a_commit_whose_answer_is_lost_has_landed_exactly_once(
    owner: LaneOwner, ledger: Ledger, harness: Harness, landed: bool, frames: list[tuple[BufferId, bytes]]
) -> None:
    await owner.commit((A, b"a1"))
    harness.lose_answer(landed=landed)
    async with asyncio.timeout(WAIT_S):
        receipt = await owner.commit(*frames)
    assert ledger.statistics().answers_settled == int(landed)
    # The receipt is right, so the lane can go on with it.
    assert [frame.sequence for frame in await ledger.peek(B, 0, 10)] == list(receipt.frame_sequences[-1:])
    await owner.commit((A, b"a3"))
    assert await stored(ledger, A) == [b"a1", *(data for buffer, data in frames if buffer == A), b"a3"]
    assert await stored(ledger, B) == [data for buffer, data in frames if buffer == B]


async def test_several_answers_in_a_row_may_be_lost(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    for landed in (False, False, True):
        harness.lose_answer(landed=landed)
    async with asyncio.timeout(WAIT_S):
        await owner.commit((A, b"a"))
    assert await stored(ledger, A) == [b"a"]


class TestFull:
    @pytest.fixture
    def limits(self) -> LedgerLimits:
        return LedgerLimits(frames_per_buffer_max=3, bytes_max=8 * all_limits.MIB)

    async def test_a_full_buffer_refuses_the_whole_commit_until_it_is_trimmed(
        self, owner: LaneOwner, ledger: Ledger
    ) -> None:
        first = await owner.commit((A, b"a1"), (A, b"a2"), (A, b"a3"))
        commit = owner.commit_of((B, b"b4"), (A, b"a4"))
        with pytest.raises(BufferFullError):
            await owner.send(commit)
        assert await stored(ledger, B) == []
        assert ledger.statistics().full_refusals == 1
        await ledger.trim({A: first.frame_sequences[0]})
        await owner.send(commit)
        assert await stored(ledger, A) == [b"a2", b"a3", b"a4"]
        assert await stored(ledger, B) == [b"b4"]

    async def test_the_mark_of_a_full_buffer_can_still_move(self, owner: LaneOwner, ledger: Ledger) -> None:
        await owner.commit((A, b"a1"), (A, b"a2"), (A, b"a3"))
        for _ in range(5):
            await owner.commit()
        assert (await ledger.take_over(owner.lane, "second")).mark.sequence == 6

    async def test_a_full_storage_refuses_the_whole_commit_until_there_is_room(
        self, owner: LaneOwner, ledger: Ledger
    ) -> None:
        large = bytes(3 * all_limits.MIB)
        first = await owner.commit((A, large), (A, large))
        commit = owner.commit_of((B, b"small"), (B, large))
        with pytest.raises(StorageFullError):
            await owner.send(commit)
        assert await stored(ledger, B) == []
        await ledger.trim({A: first.frame_sequences[0]})
        await owner.send(commit)
        assert await stored(ledger, B) == [b"small", large]

    async def test_ids_never_fill_a_buffer(self, owner: LaneOwner, ledger: Ledger) -> None:
        for number in range(8):
            await owner.commit(ids=(f"id{number}",))
        assert await ids_of(ledger, owner.lane) == digests(*(f"id{number}" for number in range(8)))


async def test_ids_are_kept_with_their_commit_and_expire(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    await owner.commit((A, b"a"), ids=("x", 'quote " and \u00e4'), ids_ttl_s=1.0)
    await owner.commit(ids=("y",), ids_ttl_s=3600.0)
    assert await ids_of(ledger, owner.lane) == digests("x", 'quote " and \u00e4', "y")
    assert await ids_of(ledger, LaneId("v", "in-v", 9)) == []

    async def expired() -> bool:
        return await ids_of(ledger, owner.lane) == digests("y")

    await harness.pass_time(2.0, expired)
    # Only the ids are gone.
    assert await stored(ledger, A) == [b"a"]


async def test_many_ids_are_kept(owner: LaneOwner, ledger: Ledger) -> None:
    ids = tuple(f"{number}" for number in range(100_000))
    await owner.commit(ids=ids)
    assert await ids_of(ledger, owner.lane) == digests(*ids)


@pytest.mark.guarantee("I1")
async def test_ids_are_read_to_their_end_from_a_slow_broker(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    ids = tuple(f"{number:0100d}" for number in range(3000))
    for first in range(0, len(ids), 100):
        await owner.commit((A, b"a"), ids=ids[first : first + 100])
    await owner.commit((A, b"a"))
    harness.slow_down()
    async with asyncio.timeout(WAIT_S):
        assert await ids_of(ledger, owner.lane) == digests(*ids)


async def test_trimming_removes_up_to_what_it_is_told_and_no_more(owner: LaneOwner, ledger: Ledger) -> None:
    receipt = await owner.commit((A, b"a1"), (B, b"b1"), (A, b"a2"), (A, b"a3"))
    await ledger.trim({A: receipt.frame_sequences[2]})
    assert await stored(ledger, A) == [b"a3"]
    assert await stored(ledger, B) == [b"b1"]
    await ledger.trim({A: 0})
    assert await stored(ledger, A) == [b"a3"]
    assert await ledger.last_sequence(A) == receipt.frame_sequences[3]
    await ledger.trim({A: receipt.frame_sequences[3] + 100})
    assert await stored(ledger, A) == []
    assert await ledger.last_sequence(A) == 0
    assert await ledger.mark(owner.lane) == owner.stored


@pytest.mark.guarantee("I1")
async def test_trimming_leaves_a_lane_its_mark(owner: LaneOwner, ledger: Ledger) -> None:
    for number in range(3):
        receipt = await owner.commit((A, b"%d" % number))
    for _ in range(2):
        await ledger.trim({A: receipt.frame_sequences[0]})
        assert await stored(ledger, A) == [b"2"]
        assert await ledger.last_sequence(A) == receipt.frame_sequences[0]
        assert await ledger.mark(owner.lane) == owner.stored
    receipt = await owner.commit((A, b"3"))
    await ledger.trim({A: receipt.frame_sequences[0]})
    assert await stored(ledger, A) == [b"3"]
    # The mark is elsewhere now.
    await owner.commit((B, b"b"))
    await ledger.trim({A: receipt.frame_sequences[0]})
    assert await stored(ledger, A) == []
    await owner.commit()
    await ledger.trim({B: await ledger.last_sequence(B)})
    assert await stored(ledger, B) == []
    assert await ledger.mark(owner.lane) == owner.stored
    await owner.commit((A, b"4"))
    assert await stored(ledger, A) == [b"4"]


async def test_trimming_removes_what_every_lane_wrote(owner: LaneOwner, ledger: Ledger) -> None:
    quiet = LaneOwner(ledger, LaneId("v", "in-v", 1), await ledger.take_over(LaneId("v", "in-v", 1), "quiet"))
    await quiet.commit((A, b"q1"))
    await quiet.commit((A, b"q2"))
    for number in range(3):
        receipt = await owner.commit((A, b"%d" % number))
    await ledger.trim({A: receipt.frame_sequences[0] - 1})
    assert await stored(ledger, A) == [b"q2", b"2"]
    await quiet.commit()
    await owner.commit()
    await ledger.trim({A: receipt.frame_sequences[0]})
    assert await stored(ledger, A) == []
    for lane in (owner, quiet):
        await lane.commit((A, b"more"))
        assert await ledger.mark(lane.lane) == lane.stored


@pytest.mark.guarantee("I1")
async def test_commits_of_every_form_follow_each_other(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    forms: list[tuple[list[tuple[BufferId, bytes]], tuple[str, ...]]] = [
        ([(A, b"a")], ()),
        ([], ()),
        ([(A, b"a"), (B, b"b")], ()),
        ([(A, b"a")], ("id",)),
        ([], ("other",)),
    ]
    written: list[bytes] = []
    for first in forms:
        for second in forms:
            for frames, ids in (first, second):
                receipt = await owner.commit(*frames, ids=ids)
                assert await ledger.mark(owner.lane) == owner.stored
                written += [data for buffer, data in frames if buffer == A]
                if receipt.frame_sequences:
                    assert await ledger.last_sequence(frames[-1][0]) == receipt.frame_sequences[-1]
            elsewhere = await (await harness.other_process()).existing_ledger("v")
            assert elsewhere is not None
            taken = await elsewhere.take_over(owner.lane, "second")
            assert taken.mark.sequence == owner.stored.mark.sequence
            with pytest.raises(FencedError):
                await owner.commit((A, b"late"))
            owner.stored = taken
    assert await stored(ledger, A) == written
    async with ledger.read(A, 0) as frames_of_a:
        assert [frame.data for frame in await take(frames_of_a, len(written))] == written


async def test_peeking_takes_nothing_and_does_not_wait(owner: LaneOwner, ledger: Ledger) -> None:
    receipt = await owner.commit(*((A, b"%d" % number) for number in range(5)))
    for _ in range(2):
        peeked = await ledger.peek(A, receipt.frame_sequences[1], 2)
        assert [frame.data for frame in peeked] == [b"2", b"3"]
    assert await ledger.peek(A, receipt.frame_sequences[4], 2) == []
    assert await ledger.last_sequence(B) == 0


async def test_reading_waits_for_what_is_still_to_come(owner: LaneOwner, ledger: Ledger) -> None:
    async with ledger.read(A, 0) as frames, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(take(frames, 1))
        await owner.commit((B, b"other"))
        await owner.commit((A, b"a1"))
        assert [frame.data for frame in await first] == [b"a1"]
        second = tasks.create_task(take(frames, 1))
        await owner.commit((A, b"a2"))
        assert [frame.data for frame in await second] == [b"a2"]


async def test_reading_starts_after_the_position_given(owner: LaneOwner, ledger: Ledger) -> None:
    receipt = await owner.commit(*((A, b"%d" % number) for number in range(5)))
    async with ledger.read(A, receipt.frame_sequences[2]) as frames:
        assert [frame.data for frame in await take(frames, 2)] == [b"3", b"4"]


@pytest.mark.guarantee("I4")
async def test_two_readers_each_get_everything(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    async with ledger.read(A, 0) as here, elsewhere.read(A, 0) as there:
        for start in range(0, 300, 50):
            await owner.commit(*((A, b"%d" % number) for number in range(start, start + 50)))
        expected = [b"%d" % number for number in range(300)]
        assert [frame.data for frame in await take(here, 300)] == expected
        assert [frame.data for frame in await take(there, 300)] == expected
    assert ledger.statistics().read_restarts == 0


async def test_a_reader_goes_on_while_what_it_has_read_is_trimmed(owner: LaneOwner, ledger: Ledger) -> None:
    async with ledger.read(A, 0) as frames:
        for number in range(200):
            await owner.commit((A, b"%d" % number))
            (frame,) = await take(frames, 1)
            assert frame.data == b"%d" % number
            await ledger.trim({A: frame.sequence})
    # The last one holds the mark of its lane.
    assert await stored(ledger, A) == [b"199"]


async def test_watching_sees_what_passes_and_keeps_nothing(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    begun = await owner.commit((A, b"before"))
    async with elsewhere.watch(A, begun.frame_sequences[0]) as watched, ledger.read(A, 0) as frames:
        await take(frames, 1)
        for number in range(20):
            await owner.commit((A, b"%d" % number), (B, b"other"))
            (read,) = await take(frames, 1)
            (seen,) = await take(watched, 1)
            assert seen == read
            await ledger.trim({A: read.sequence})
    assert await stored(ledger, A) == []


async def test_a_watch_that_is_behind_goes_on_where_frames_are_left(
    owner: LaneOwner, ledger: Ledger, harness: Harness
) -> None:
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    count = 3 * all_limits.FRAMES_IN_FLIGHT_MAX
    async with elsewhere.watch(A, 0) as watched:
        receipts = [await owner.commit((A, b"%d" % number)) for number in range(count)]
        await ledger.trim({A: receipts[-2].frame_sequences[0]})
        seen = await take(watched, 1)
        while seen[-1].data != b"%d" % (count - 1):
            seen += await take(watched, 1)
    numbers = [int(frame.data) for frame in seen]
    assert numbers == sorted(set(numbers))
    # As many as it may hold, and the one that was left. What is missing shows in the names.
    assert len(numbers) <= all_limits.FRAMES_IN_FLIGHT_MAX + 1
    assert [frame.witness.number for frame in seen if frame.witness] == [number + 1 for number in numbers]


async def test_frames_of_every_size_come_back_whole(owner: LaneOwner, ledger: Ledger) -> None:
    sizes = [0, 1, 100, all_limits.FRAME_BYTES_MAX, all_limits.RECORD_BYTES_MAX + 1024]
    for size in sizes:
        await owner.commit((A, b"\r\n" * (size // 2) + b"x" * (size % 2)))
    async with ledger.read(A, 0) as frames:
        assert [len(frame.data) for frame in await take(frames, len(sizes))] == sizes


async def test_a_frame_larger_than_a_message_is_the_users_to_change(owner: LaneOwner, ledger: Ledger) -> None:
    with raises(codes.RECORD_TOO_LARGE):
        await owner.commit((A, b"a"), (A, bytes(all_limits.MESSAGE_BYTES_MAX)))
    await owner.commit((A, b"b"))
    assert await stored(ledger, A) == [b"b"]


@pytest.mark.guarantee("I1")
async def test_a_commit_may_be_as_long_as_a_batch_and_no_longer(owner: LaneOwner, ledger: Ledger) -> None:
    longest = all_limits.COMMIT_MESSAGES_MAX - 1
    receipt = await owner.commit(*((A, b"%d" % number) for number in range(longest)))
    assert len(receipt.frame_sequences) == longest
    with raises(codes.BROKER_ANSWER, match="is 1000"):
        await owner.commit(*((A, b"x") for _ in range(longest + 1)))
    assert [frame.sequence for frame in await ledger.peek(A, 0, 2000)] == list(receipt.frame_sequences)


async def test_a_process_that_starts_again_finds_everything(
    owner: LaneOwner, harness: Harness, limits: LedgerLimits
) -> None:
    await owner.commit((A, b"a1"), ids=("x",))
    again = await (await harness.other_process()).ledger("v", limits)
    assert await again.mark(owner.lane) == owner.stored
    assert await stored(again, A) == [b"a1"]
    assert await ids_of(again, owner.lane) == digests("x")
    assert again.ledger_id == owner.ledger.ledger_id


async def test_a_ledger_is_brought_to_new_limits(owner: LaneOwner, ledger: Ledger, harness: Harness) -> None:
    await owner.commit((A, b"a1"), (A, b"a2"))
    smaller = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=2))
    with pytest.raises(BufferFullError):
        await LaneOwner(smaller, owner.lane, owner.stored).commit((A, b"a3"))
    assert await stored(ledger, A) == [b"a1", b"a2"]


async def test_deleting_removes_every_ledger_and_what_comes_after_is_new(
    owner: LaneOwner, ledger: Ledger, harness: Harness, limits: LedgerLimits
) -> None:
    await owner.commit((A, b"a1"))
    await harness.broker.delete()
    assert await harness.broker.existing_ledger("v") is None
    anew = await harness.broker.ledger("v", limits)
    assert anew.ledger_id != ledger.ledger_id
    assert await anew.mark(owner.lane) is None
    assert await stored(anew, A) == []


async def test_what_was_committed_is_counted(owner: LaneOwner, ledger: Ledger) -> None:
    before = ledger.statistics().commits
    await owner.commit((A, b"12345"), (B, b"678"))
    async with ledger.read(A, 0) as frames:
        await take(frames, 1)
    statistics = ledger.statistics()
    mark_bytes = owner.stored.mark.ByteSize()
    assert statistics.commits == before + 1
    assert statistics.commit_messages == before + 3
    assert statistics.commit_bytes >= 8 + mark_bytes
    assert (statistics.frames_read, statistics.bytes_read) == (1, 5)


async def test_a_reader_that_takes_its_time_while_nothing_new_comes_finds_no_damage(
    harness: Harness, owner: LaneOwner, ledger: Ledger
) -> None:
    values = [str(number).encode() for number in range(25)]
    for value in values:
        await owner.commit((A, value))
    async with ledger.read(A, 0, []) as frames:
        found = [data for _, data, _ in await take(frames, 1)]
        # Whatever checks whether all is as it was does so for as long as frames are taken.
        harness.slow_down()
        for _ in values[1:]:
            await asyncio.sleep(0.15)
            found += [data for _, data, _ in await take(frames, 1)]
        await owner.commit((A, b"more"))
        found += [data for _, data, _ in await take(frames, 1)]
    assert found == [*values, b"more"]
