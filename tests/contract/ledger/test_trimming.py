"""What trimming asks of a real broker: requests grow with the lanes that write plus those that read, not with both."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from nats.aio.subscription import Subscription

from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.server import open_nats_server
from millstream.ledger.protocol import Ledger, LedgerLimits
from millstream.limits import MIB
from millstream.nats.connection import open_connection
from millstream.record import BufferId, LaneId
from millstream_runner.chaos.lossy_path import Wire, open_lossy_path
from millstream_runner.chaos.plan import NetworkFault
from millstream_vertex.trimming import Trimmer
from tests.support.children import together
from tests.support.ledgers import PIPELINE, JetStreamHarness, LaneOwner, open_jetstream_harness

FRAMES = 3
"""Of each writer in each buffer."""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def counted(harness: JetStreamHarness) -> AsyncIterator[Counter[str]]:
    """Requests to the JetStream API while the block runs, by kind."""
    requests: Counter[str] = Counter()
    async with open_connection(harness.server.access) as connection:
        subscription = await connection.client.subscribe("$JS.API.STREAM.>")
        # Until the subscription hears what its own connection asks.
        while not waiting(subscription):
            await connection.api("STREAM.NAMES")
        while waiting(subscription):
            await subscription.next_msg()
        yield requests
        await connection.client.flush()
        while waiting(subscription):
            requests[".".join((await subscription.next_msg()).subject.split(".")[2:-1])] += 1


def waiting(subscription: Subscription) -> int:
    return subscription.pending_msgs


async def written(ledger: Ledger, lanes: int) -> tuple[list[BufferId], list[LaneOwner]]:
    """So many lanes write into so many buffers, as neighbours of equal width do."""
    buffers = [BufferId("v-a", partition) for partition in range(lanes)]
    owners = []
    for partition in range(lanes):
        lane = LaneId("v", "in-v", partition)
        owners.append(LaneOwner(ledger, lane, await ledger.take_over(lane, "first")))
    for number in range(FRAMES):
        data = [(buffer, b"%d" % number) for buffer in buffers]
        await together(*(owner.commit(*data) for owner in owners))
    return buffers, owners


async def stored(ledger: Ledger, buffer: BufferId) -> list[bytes]:
    return [frame.data for frame in await ledger.peek(buffer, 0, 1000)]


@pytest.mark.guarantee("I1", "I8")
async def test_a_mark_that_a_reader_has_seen_is_not_requested(harness: JetStreamHarness) -> None:
    ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=100))
    (buffer,), (owner,) = await written(ledger, 1)
    idle = LaneOwner(ledger, LaneId("v", "in-v", 1), await ledger.take_over(LaneId("v", "in-v", 1), "first"))
    async with ledger.read(buffer, 0) as frames:
        read = [(await anext(frames)).sequence for _ in range(FRAMES)]
        async with counted(harness) as requests:
            await ledger.trim({buffer: read[-2]})
        assert requests["STREAM.MSG.GET"] == 0
        assert await stored(ledger, buffer) == [b"2"]
        # The frame that holds the mark of a lane that writes no more stays, whatever others have written since.
        await idle.commit((buffer, b"idle"))
        for number in (3, 4):
            await owner.commit((buffer, b"%d" % number))
        read += [(await anext(frames)).sequence for _ in range(3)]
        for through, asked in ((read[-3], 0), (read[-2], 1)):
            async with counted(harness) as requests:
                await ledger.trim({buffer: through})
            assert requests["STREAM.MSG.GET"] == asked
        assert await stored(ledger, buffer) == [b"idle", b"4"]
    mark = await ledger.mark(idle.lane)
    assert mark is not None
    assert mark.sequence == read[-3]


@pytest.mark.guarantee("I1", "I8")
async def test_marks_of_a_stream_that_was_deleted_are_not_those_of_its_successor(harness: JetStreamHarness) -> None:
    limits = LedgerLimits(frames_per_buffer_max=100)
    ledger = await harness.broker.ledger("v", limits)
    (buffer,), (owner,) = await written(ledger, 1)
    async with ledger.read(buffer, 0) as frames:
        for number in range(FRAMES):
            await owner.commit((buffer, b"%d" % number))
        read = [(await anext(frames)).sequence for _ in range(2 * FRAMES)]
    await harness.broker.delete()
    ledger = await harness.broker.ledger("v", limits)
    (buffer,), (owner,) = await written(ledger, 1)
    last = await ledger.last_sequence(buffer)
    assert last < read[-1]
    await ledger.trim({buffer: last})
    mark = await ledger.mark(owner.lane)
    assert mark is not None
    assert mark.sequence == last


@pytest.mark.guarantee("I1", "I8")
async def test_a_purge_is_decided_again_when_the_connection_was_lost(tmp_path: Path) -> None:
    # The server may have come back with an older stream, in which the purge would remove the mark of a lane.
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(open_nats_server(tmp_path))
        path = await stack.enter_async_context(
            open_lossy_path(server.port, Wire("nats", b"$JS.API.STREAM.PURGE", b'"purged"'))
        )
        access = replace(server.access, url=path.url)
        broker = await stack.enter_async_context(open_jetstream_broker(access, PIPELINE))
        ledger = await broker.ledger("v", LedgerLimits(frames_per_buffer_max=100))
        (buffer,), _ = await written(ledger, 1)
        path.plan(NetworkFault.LOSE_COMMIT)
        async with counted(JetStreamHarness(broker, server, path, stack)) as requests:
            await ledger.trim({buffer: await ledger.last_sequence(buffer) - 1})
        assert path.planned == 0
        # The second attempt also removes the mark of the takeover.
        assert (requests["STREAM.INFO"], requests["STREAM.PURGE"]) == (5, 2)
        assert await stored(ledger, buffer) == [b"%d" % (FRAMES - 1)]


@pytest.mark.guarantee("I1", "I8")
@pytest.mark.parametrize("lanes", [1, 8, 32])
async def test_requests_do_not_grow_with_writers_times_readers(harness: JetStreamHarness, lanes: int) -> None:
    ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=2000))
    buffers, _ = await written(ledger, lanes)
    trimmer = Trimmer(ledger.trim)
    for buffer in buffers:
        trimmer.consumed(buffer, await ledger.last_sequence(buffer) - 1)
    # Of one lane, a commit is one frame, which has replaced the mark of the takeover.
    replaced = 1 if lanes == 1 else 0
    async with counted(harness) as requests:
        await trimmer.finish()
    # Each buffer by itself would be asked `lanes` times as much.
    assert requests == {"STREAM.INFO": 3, "STREAM.MSG.GET": lanes, "STREAM.PURGE": lanes + replaced}
    for buffer in buffers:
        assert len(await stored(ledger, buffer)) == 1


@pytest.mark.guarantee("I1", "I8")
async def test_marks_that_lie_in_one_buffer_cost_no_requests_for_the_others(harness: JetStreamHarness) -> None:
    lanes = 8
    ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=2000))
    buffers, owners = await written(ledger, lanes)
    # A commit of one frame has its mark in it.
    await together(*(owner.commit((buffers[-1], b"last")) for owner in owners))
    trimmer = Trimmer(ledger.trim)
    for buffer in buffers:
        trimmer.consumed(buffer, await ledger.last_sequence(buffers[-1]))
    async with counted(harness) as requests:
        await trimmer.finish()
    # One for each buffer, in the last one for each lane, and one for each mark that these frames have replaced.
    assert requests == {"STREAM.INFO": 3, "STREAM.MSG.GET": lanes, "STREAM.PURGE": 3 * lanes - 1}
    assert [len(await stored(ledger, buffer)) for buffer in buffers] == [0] * (lanes - 1) + [lanes]
    for owner in owners:
        assert await ledger.mark(owner.lane) == owner.stored


@pytest.mark.guarantee("I8")
async def test_what_is_removed_frees_the_disk(harness: JetStreamHarness) -> None:
    ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=100))
    (buffer,), (owner,) = await written(ledger, 1)
    most = 0
    for _ in range(40):
        await owner.commit((buffer, bytes(MIB)))
        await ledger.trim({buffer: await ledger.last_sequence(buffer) - 1})
        most = max(most, sum(file.stat().st_size for file in harness.server.store_dir.rglob("*.blk")))
    # A file of the server has up to 8 MiB. If something before what is removed stays, three of them stay.
    assert most < 12 * MIB
    mark = await ledger.mark(owner.lane)
    assert mark == owner.stored
