"""Frames that JetStream stores apart from the batch that refers to them: they stay as long as a reader may need them,
and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream import codes, limits
from millstream.buffers.jetstream.pull import PullReader
from millstream.buffers.jetstream.references import REFERENCE, FramesApart
from millstream.buffers.jetstream.requests import message_headers
from millstream.errors import BufferFullError
from millstream.ledger.batch import commit_messages
from millstream.ledger.frames import decoded
from millstream.ledger.protocol import Ledger, LedgerLimits, StoredFrame
from millstream.nats.connection import BrokerConnection, open_connection
from millstream.record import BufferId, LaneId
from millstream_runner.chaos.plan import NetworkFault
from tests.support.errors import raises
from tests.support.ledgers import JetStreamHarness, LaneOwner, open_jetstream_harness

A = BufferId("v-a", 0)
B = BufferId("v-a", 1)
LANE = LaneId("v", "in-v", 0)
MANY = LedgerLimits(frames_per_buffer_max=1000)
TWO = LedgerLimits(frames_per_buffer_max=2)
WAIT_S = 60.0


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def looking(harness: JetStreamHarness) -> AsyncIterator[BrokerConnection]:
    async with open_connection(harness.server.access) as other, asyncio.timeout(WAIT_S):
        yield other


def large(name: str, size: int = limits.FRAME_APART_BYTES_MIN) -> bytes:
    return name.encode().ljust(size, b".")


async def owner_of(harness: JetStreamHarness, wanted: LedgerLimits = MANY) -> LaneOwner:
    ledger = await harness.broker.ledger("v", wanted)
    return LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))


async def first_of(frames: AsyncIterator[StoredFrame], count: int) -> list[StoredFrame]:
    return [await anext(frames) for _ in range(count)]


async def names(ledger: Ledger, buffer: BufferId, after: int = 0) -> list[str]:
    return [frame.data.rstrip(b".").decode() for frame in await ledger.peek(buffer, after, 1000)]


async def apart(other: BrokerConnection) -> dict[str, int]:
    """The number of frames that are stored apart, by the end of their subject."""
    state = (await other.api("STREAM.INFO.p-v", {"subjects_filter": "p-v.@.>"}))["state"]
    return {subject.removeprefix("p-v.@.in-v.0."): count for subject, count in (state.get("subjects") or {}).items()}


@pytest.mark.guarantee("I1")
async def test_large_frames_of_a_batch_are_read_like_all_others(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    ledger = owner.ledger
    await owner.commit((A, large("alone")))
    receipt = await owner.commit((A, large("a1")), (B, b"small"), (A, large("a2", 4 * limits.MIB)), ids=("x",))
    async with looking(harness) as other:
        # Not a frame that is a commit, and not a small one.
        assert await apart(other) == {"v-a.0": 2}
        message = (await other.api("STREAM.MSG.GET.p-v", {"seq": receipt.frame_sequences[0]}))["message"]
        assert "data" not in message
        assert message_headers(message)[REFERENCE].endswith(f" {limits.FRAME_APART_BYTES_MIN}")
        for reading in (ledger.read(A, 0), ledger.watch(A, 0)):
            async with reading as frames:
                read = await first_of(frames, 3)
            assert [frame.data for frame in read] == [large("alone"), large("a1"), large("a2", 4 * limits.MIB)]
            assert [frame.witness.number for frame in read if frame.witness] == [1, 2, 3]
            assert tuple(frame.sequence for frame in read[1:]) == receipt.frame_sequences[::2]
            assert read == await ledger.peek(A, 0, 10)
        assert await names(ledger, B) == ["small"]


@pytest.mark.guarantee("I1", "I8")
@pytest.mark.parametrize("read_here", [True, False])
async def test_a_trim_removes_what_readers_have_passed_and_nothing_else(
    harness: JetStreamHarness, read_here: bool
) -> None:
    """`read_here`: the process that trims has read the frames. Otherwise it was started after that."""
    owner = await owner_of(harness)
    for number in (1, 2, 3):
        await owner.commit((A, large(f"{number}a")), (A, large(f"{number}b")), (B, large(f"{number}c")))
    sequences = [frame.sequence for frame in await owner.ledger.peek(A, 0, 10)]
    last_of_b = await owner.ledger.last_sequence(B)
    broker = await harness.other_process()
    ledger = await broker.existing_ledger("v")
    assert ledger is not None
    async with looking(harness) as other:
        if read_here:
            for buffer, count in ((A, 6), (B, 3)):
                async with ledger.read(buffer, 0) as frames:
                    await first_of(frames, count)
        for passed, sequence in enumerate(sequences[:-1], 1):
            await ledger.trim({A: sequence})
            assert await names(ledger, A) == ["1a", "1b", "2a", "2b", "3a", "3b"][passed:]
            assert await apart(other) == {"v-a.0": 6 - passed, "v-a.1": 3}
        assert await names(ledger, B) == ["1c", "2c", "3c"]
        await ledger.trim({A: sequences[-2], B: last_of_b - 1})
        assert await names(ledger, B) == ["3c"]
        assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
        # The lane has moved on.
        await owner.commit((A, b"small"), (B, b"small"))
        for _ in range(2):
            # The first one may remove them up to the same place.
            await ledger.trim({A: await ledger.last_sequence(A), B: await ledger.last_sequence(B)})
        assert await apart(other) == {}
        assert await ledger.mark(LANE) == owner.stored


@pytest.mark.guarantee("I1", "I8")
async def test_frames_of_a_lane_that_has_ended_are_removed(harness: JetStreamHarness) -> None:
    # The reader's newest frame is from another lane.
    owner = await owner_of(harness)
    await owner.commit((A, large("a")), (B, large("b")))
    lane = LaneId("v", "in-v", 1)
    next_one = LaneOwner(owner.ledger, lane, await owner.ledger.take_over(lane, "next"))
    await next_one.commit((A, b"small"))
    ledger = await (await harness.other_process()).existing_ledger("v")
    assert ledger is not None
    await ledger.trim({A: await ledger.last_sequence(A) - 1})
    async with looking(harness) as other:
        assert await apart(other) == {"v-a.1": 1}


@pytest.mark.guarantee("I1", "I8")
@pytest.mark.parametrize("full", [large("full"), b"full"], ids=["before the batch", "with the batch"])
async def test_a_commit_that_is_refused_leaves_nothing_behind(harness: JetStreamHarness, full: bytes) -> None:
    owner = await owner_of(harness, TWO)
    for _ in range(2):
        await owner.commit((A, full), (B, b"small"))
    async with looking(harness) as other:
        before = await apart(other)
        await owner.ledger.trim({B: await owner.ledger.last_sequence(B)})
        for _ in range(20):
            with pytest.raises(BufferFullError):
                await owner.commit((B, large("b")), (A, full))
        assert await apart(other) == before
        await owner.ledger.trim({A: await owner.ledger.last_sequence(A)})
        await owner.commit((B, large("b")), (A, full))
    assert await names(owner.ledger, B) == ["b"]


@pytest.mark.guarantee("I1", "I8")
async def test_the_next_owner_removes_what_was_not_committed(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, large("a1")), (B, large("b1")))
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    harness.path.plan(NetworkFault.LATE_COMMIT)
    async with looking(harness) as other:
        committing = asyncio.ensure_future(owner.commit((A, large("a2")), (B, large("b2"))))
        await harness.path.delayed()
        assert await apart(other) == {"v-a.0": 2, "v-a.1": 2}
        harness.path.before_next_commit(lambda: elsewhere.take_over(LANE, "second"))
        with raises(codes.LANE_TAKEN_OVER, match="'second'"):
            await committing
        # What the first owner stored again, it has removed itself.
        assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
        assert b'"err_code":10071' in await harness.path.deliver_late()
    assert await names(elsewhere, A) == ["a1"]
    assert await names(elsewhere, B) == ["b1"]


@pytest.mark.guarantee("I1")
async def test_a_commit_that_is_stored_after_it_was_refused_has_its_frames(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    async with looking(harness) as other:

        async def limit_to(free: int) -> None:
            info = await other.api("STREAM.INFO.p-v")
            config = {**info["config"], "max_bytes": info["state"]["bytes"] + free}
            await other.api("STREAM.UPDATE.p-v", config)

        harness.path.plan(NetworkFault.LATE_COMMIT)
        committing = asyncio.ensure_future(owner.commit((A, large("a1")), (B, large("b1"))))
        await harness.path.delayed()
        harness.path.before_next_commit(lambda: limit_to(1))
        with raises(codes.BROKER_STORAGE_FULL):
            await committing
        # Those of the second attempt are removed. The first one may still be stored.
        assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
        await limit_to(limits.MIB)
        assert b'"count":3' in await harness.path.deliver_late()
    assert await names(owner.ledger, A) == ["a1"]
    assert await names(owner.ledger, B) == ["b1"]


@pytest.mark.guarantee("I1")
async def test_frames_are_stored_again_where_it_is_not_known_that_they_are_there(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, b"small"))
    await harness.save("v")
    messages = commit_messages("p-v", owner.commit_of((A, large("a1")), (B, large("b1"))))
    async with looking(harness) as other:
        frames = FramesApart(other, "p-v", messages, 2)

        async def stored() -> list[str]:
            """Where the frames are that the batch would refer to."""
            referring = await frames.store(WAIT_S)
            return [message.headers[REFERENCE].split()[0] for message in referring[:2]]

        first = await stored()
        assert await stored() == first
        # A batch whose answer was lost may still be stored, and then the next one is refused.
        frames.may_be_needed()
        assert await stored() == first
        await frames.remove()
        assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
        for lost in range(2):
            await harness.set_back("v")
            await other.connected()
            assert await apart(other) == {}
            # Other messages may be at these places now.
            await frames.remove()
            assert frames.has_left
            if lost:
                break
            await stored()
            assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
        # A connection that breaks again and again must not fill the stream.
        assert await frames.store(WAIT_S) == messages
        assert await apart(other) == {}


@pytest.mark.guarantee("I1", "I8")
@pytest.mark.parametrize("landed", [True, False])
async def test_a_commit_removes_the_frames_of_its_lost_attempts(harness: JetStreamHarness, landed: bool) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, large("a1")), (B, large("b1")))
    harness.lose_answer(landed=landed)
    async with looking(harness) as other:
        await owner.commit((A, large("a2")), (B, large("b2")))
        assert await apart(other) == {"v-a.0": 2, "v-a.1": 2}
    assert await names(owner.ledger, A) == ["a1", "a2"]
    assert await names(owner.ledger, B) == ["b1", "b2"]


@pytest.mark.guarantee("I1", "I8")
async def test_an_attempt_that_is_stored_late_leaves_no_frames_of_the_next_one(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    harness.path.plan(NetworkFault.LATE_COMMIT)
    async with looking(harness) as other:
        committing = asyncio.ensure_future(owner.commit((A, large("a1")), (B, large("b1"))))
        await harness.path.delayed()
        # The frames of the second attempt are stored before the batch of the first.
        harness.path.before_next_commit(harness.path.deliver_late)
        await committing
        assert await apart(other) == {"v-a.0": 1, "v-a.1": 1}
    assert await names(owner.ledger, A) == ["a1"]
    assert await names(owner.ledger, B) == ["b1"]


@pytest.mark.guarantee("I10")
async def test_a_reference_to_nothing_is_damage(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, large("a1")), (B, large("b1")))
    async with looking(harness) as other:
        found = (await other.api("STREAM.MSG.GET.p-v", {"seq": 1, "next_by_subj": "p-v.@.in-v.0.v-a.0"}))["message"]
        await other.api("STREAM.MSG.DELETE.p-v", {"seq": found["seq"]})
        async with owner.ledger.read(A, 0) as frames:
            (frame,) = await first_of(frames, 1)
    assert [frame] == await owner.ledger.peek(A, 0, 10)
    with raises(codes.FRAME_UNREADABLE, match=r"frame 1 of lane v/in-v\.0 .* its data no longer exists.*repair"):
        decoded("v", A, frame)


@pytest.mark.guarantee("I10")
async def test_a_reference_to_another_frame_is_damage(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    first = await owner.commit((A, large("a1")), (B, large("b1")))
    second = await owner.commit((A, large("a2")), (B, large("b2")))
    async with looking(harness) as other:
        one, two = [
            (await other.api("STREAM.MSG.GET.p-v", {"seq": receipt.frame_sequences[0]}))["message"]
            for receipt in (first, second)
        ]
        # A reference with the second one's name, to the first one's frame.
        headers = {**message_headers(two), REFERENCE: message_headers(one)[REFERENCE]}
        sent = {name: value for name, value in headers.items() if name.startswith("Millstream")}
        reply, answer = other.expect_answer()
        await other.publish("p-v.in-v.0.d.v-a.0", b"", sent, reply)
        await other.answer_of(answer, WAIT_S)
        async with owner.ledger.watch(A, 0) as frames:
            read = [frame.data for frame in await first_of(frames, 3)]
    assert read == [large("a1"), large("a2"), b""]
    assert [frame.data for frame in await owner.ledger.peek(A, 0, 10)] == read


@pytest.mark.guarantee("I10")
async def test_what_is_trimmed_while_it_is_watched_is_left_out(harness: JetStreamHarness) -> None:
    elsewhere = await (await harness.other_process()).ledger("v", MANY)
    owner = LaneOwner(elsewhere, LANE, await elsewhere.take_over(LANE, "first"))
    watching = await harness.broker.existing_ledger("v")
    assert watching is not None
    async with watching.watch(A, 0) as frames, asyncio.timeout(WAIT_S):
        next_one = asyncio.ensure_future(anext(frames))
        await owner.commit((A, large("a1")), (B, large("b1")))
        assert (await next_one).data == large("a1")
        # The references are on their way to the watcher when they are trimmed, with their frames.
        harness.slow_down()
        next_one = asyncio.ensure_future(anext(frames))
        for number in (2, 3):
            await owner.commit((A, large(f"a{number}")), (B, large(f"b{number}")))
        await elsewhere.trim({A: await elsewhere.last_sequence(A)})
        await owner.commit((A, large("a4")), (B, large("b4")))
        assert (await next_one).data == large("a4")


@pytest.mark.guarantee("I8")
async def test_a_slow_reader_requests_no_more_than_its_limit(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    size = 3 * limits.MIB
    for number in range(20):
        await owner.commit((A, large(f"a{number}", size)), (B, b"small"))
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        assert isinstance(frames, PullReader)
        most = 0
        for number in range(20):
            assert (await anext(frames)).data == large(f"a{number}", size)
            # A slow reader: everything that was requested has time to arrive.
            for _ in range(20):
                await harness.broker.existing_ledger("v")
            most = max(most, frames.held_bytes)
    # The first pull brings more references than that.
    assert 3 * size < most <= limits.READ_AHEAD_BYTES_MAX


@pytest.mark.guarantee("I1")
async def test_a_reader_continues_when_the_server_was_killed_under_its_requests(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    for number in range(12):
        await owner.commit((A, large(f"a{number}")), (B, b"small"))
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        read = [await anext(frames)]
        await harness.server.kill()
        await harness.server.start()
        while len(read) < 12:
            read.append(await anext(frames))
    assert [frame.data for frame in read] == [large(f"a{number}") for number in range(12)]


@pytest.mark.guarantee("I1")
async def test_a_reader_that_is_cancelled_again_and_again_loses_nothing(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    for number in range(12):
        await owner.commit((A, large(f"a{number}", 3 * limits.MIB)), (B, b"small"))
    read: list[StoredFrame] = []
    cancelled = 0
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        while len(read) < 12:
            # After so many steps of the event loop, which may be in the middle of a request.
            next_one = asyncio.ensure_future(anext(frames))
            for _ in range(cancelled % 7):
                await asyncio.sleep(0)
            if not next_one.done():
                next_one.cancel()
                cancelled += 1
            await asyncio.wait([next_one])
            if not next_one.cancelled():
                read.append(next_one.result())
    assert [frame.data for frame in read] == [large(f"a{number}", 3 * limits.MIB) for number in range(12)]
    assert cancelled


async def test_a_ledger_that_an_earlier_version_opens_gets_no_references(harness: JetStreamHarness) -> None:
    await harness.broker.ledger("v", MANY)
    async with looking(harness) as other:
        config = (await other.api("STREAM.INFO.p-v"))["config"]
        config["metadata"]["millstream.layout"] = "6"
        await other.api("STREAM.UPDATE.p-v", config)
        ledger = await (await harness.other_process()).ledger("v", MANY)
        assert ledger.packs
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
        await owner.commit((A, large("a1")), (B, large("b1")))
        assert await apart(other) == {}
        assert (await other.api("STREAM.INFO.p-v"))["config"]["metadata"]["millstream.layout"] == "6"
    assert await names(ledger, A) == ["a1"]
