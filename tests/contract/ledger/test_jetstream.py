"""What only the ledger in JetStream can do wrong: settings, names, storage, commits that come late."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes, limits
from millstream.buffers.jetstream import durability, pull
from millstream.buffers.jetstream import ledger as jetstream
from millstream.buffers.jetstream.ledger import open_jetstream_broker
from millstream.buffers.jetstream.pull import PullReader
from millstream.buffers.jetstream.requests import until_created
from millstream.buffers.jetstream.server import open_nats_server
from millstream.errors import (
    BufferFullError,
    InfrastructureError,
    StorageFullError,
)
from millstream.ledger.protocol import DurabilityLevel, Ledger, LedgerLimits
from millstream.nats import pulling
from millstream.nats.access import BrokerAccess
from millstream.nats.connection import ApiError, BrokerConnection, open_connection
from millstream.record import BufferId, LaneId
from millstream_runner.chaos.plan import NetworkFault
from tests.nats_process import open_nats_process
from tests.support.answers import taken
from tests.support.errors import raises
from tests.support.ledgers import PIPELINE, JetStreamHarness, LaneOwner, open_jetstream_harness

A = BufferId("v-a", 0)
B = BufferId("v-b", 0)
C = BufferId("v-c", 0)
LANE = LaneId("v", "in-v", 0)
SMALL = LedgerLimits(frames_per_buffer_max=1000, bytes_max=64 * limits.MIB)
WAIT_S = 60.0
LARGE = b"large".ljust(limits.FRAME_APART_BYTES_MIN)
FORMS = pytest.mark.parametrize(
    "frames",
    [[(A, b"a1")], [(A, b"a1"), (B, b"b1")], [(A, LARGE), (B, LARGE)]],
    ids=["one message", "batch", "references"],
)
"""All forms that a commit has on the wire."""


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[JetStreamHarness]:
    async with open_jetstream_harness(tmp_path) as opened:
        yield opened


async def owner_of(harness: JetStreamHarness) -> LaneOwner:
    ledger = await harness.broker.ledger("v", SMALL)
    return LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))


async def stored(ledger: Ledger, buffer: BufferId) -> list[bytes]:
    return [frame.data for frame in await ledger.peek(buffer, 0, 1000)]


@pytest.mark.guarantee("I1")
@FORMS
async def test_a_commit_that_arrives_after_it_was_sent_again_is_refused(
    harness: JetStreamHarness, frames: list[tuple[BufferId, bytes]]
) -> None:
    owner = await owner_of(harness)
    harness.path.plan(NetworkFault.LATE_COMMIT)
    async with asyncio.timeout(WAIT_S):
        await owner.commit(*frames)
        answer = await harness.path.deliver_late()
    assert b'"err_code":10071' in answer
    await owner.commit((A, b"a2"))
    assert await stored(owner.ledger, A) == [*(data for buffer, data in frames if buffer == A), b"a2"]
    assert await stored(owner.ledger, B) == [data for buffer, data in frames if buffer == B]


@pytest.mark.guarantee("I1")
@FORMS
async def test_a_commit_that_arrives_just_before_it_is_sent_again_counts(
    harness: JetStreamHarness, frames: list[tuple[BufferId, bytes]]
) -> None:
    owner = await owner_of(harness)
    harness.path.plan(NetworkFault.LATE_COMMIT)
    answers: list[bytes] = []

    async def deliver_first() -> None:
        answers.append(await harness.path.deliver_late())

    async with asyncio.timeout(WAIT_S):
        committing = asyncio.ensure_future(owner.commit(*frames))
        await harness.path.delayed()
        harness.path.before_next_commit(deliver_first)
        receipt = await committing
    assert b'"err' not in answers[0]
    assert owner.ledger.statistics().answers_settled == 1
    assert [frame.sequence for frame in await owner.ledger.peek(A, 0, 10)] == [receipt.frame_sequences[0]]
    await owner.commit((A, b"a2"))
    assert await stored(owner.ledger, A) == [*(data for buffer, data in frames if buffer == A), b"a2"]
    assert await stored(owner.ledger, B) == [data for buffer, data in frames if buffer == B]


@pytest.mark.guarantee("I1")
@FORMS
async def test_a_late_commit_of_a_fenced_owner_changes_nothing(
    harness: JetStreamHarness, frames: list[tuple[BufferId, bytes]]
) -> None:
    owner = await owner_of(harness)
    elsewhere = await (await harness.other_process()).existing_ledger("v")
    assert elsewhere is not None
    harness.path.plan(NetworkFault.LATE_COMMIT)
    async with asyncio.timeout(WAIT_S):
        committing = asyncio.ensure_future(owner.commit(*frames))
        await harness.path.delayed()
        harness.path.before_next_commit(lambda: elsewhere.take_over(LANE, "second"))
        with raises(codes.LANE_TAKEN_OVER, match="'second'"):
            await committing
        assert b'"err_code":10071' in await harness.path.deliver_late()
    assert await stored(elsewhere, A) == await stored(elsewhere, B) == []


@pytest.mark.guarantee("I1")
async def test_a_mark_too_long_for_a_header_goes_as_a_message(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    before = owner.ledger.statistics().commit_messages
    owner.stored.mark.owner = "x" * 10_000
    await owner.commit((A, b"a1"))
    assert owner.ledger.statistics().commit_messages == before + 2
    assert await owner.ledger.mark(LANE) == owner.stored
    owner.stored.mark.owner = "x" * 1000
    await owner.commit((A, b"a2"))
    assert owner.ledger.statistics().commit_messages == before + 3
    assert await owner.ledger.mark(LANE) == owner.stored
    assert await stored(owner.ledger, A) == [b"a1", b"a2"]


@pytest.mark.guarantee("I10")
async def test_half_a_batch_with_others_behind_it_is_damage(harness: JetStreamHarness) -> None:
    # What a server leaves that stopped in the middle of a batch, before another lane wrote.
    owner = await owner_of(harness)
    await owner.commit((A, b"a1"))
    async with open_connection(harness.server.access) as other, asyncio.timeout(WAIT_S):
        # The server itself does not take half a batch, so this stands for its beginning.
        await other.request("p-v.in-v.0.d.v-a.0", b"half")
        with raises(codes.BROKER_AWAY):
            await owner.ledger.mark(LANE)
        # The mark before must not go.
        await owner.ledger.trim({A: await owner.ledger.last_sequence(A)})
        assert await stored(owner.ledger, A) == [b"a1", b"half"]
        await other.request("p-v.in-v.1.p", b"another lane")
        for asking in (owner.ledger.mark(LANE), owner.ledger.take_over(LANE, "second"), owner.commit((A, b"a2"))):
            with raises(codes.COMMIT_TORN):
                await asking


async def test_a_refused_commit_leaves_no_batch_behind(harness: JetStreamHarness) -> None:
    ledger = await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=1, bytes_max=64 * limits.MIB))
    owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
    await owner.commit((A, b"a1"))
    # More than the server has room for.
    for _ in range(60):
        with pytest.raises(BufferFullError):
            await owner.commit((B, b"b0"), (A, b"a2"))
    await owner.commit((B, b"b1"), (C, b"c1"))


async def test_too_many_batches_in_flight_are_waited_for(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    async with open_connection(harness.server.access) as other, asyncio.timeout(WAIT_S):
        # The server drops what idles for ten seconds, or when its sender ends it with a commit it cannot take.
        for number in range(50):
            await other.publish(
                "p-v.in-v.9.d.v-x.0", b"", {"Nats-Batch-Id": f"other{number}", "Nats-Batch-Sequence": "1"}
            )
        await taken(other.client)
        committing = asyncio.ensure_future(owner.commit((A, b"a1"), (B, b"b1")))
        for number in range(50):
            await other.publish(
                "p-v.in-v.9.d.v-x.0",
                b"",
                {"Nats-Batch-Id": f"other{number}", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "never"},
            )
        await committing
    assert await stored(owner.ledger, A) == [b"a1"]


async def test_storage_that_cannot_be_reserved_is_told_at_the_start(tmp_path: Path) -> None:
    async with (
        open_nats_server(tmp_path, file_store_bytes_max=32 * limits.MIB) as server,
        open_jetstream_broker(server.access, PIPELINE) as broker,
    ):
        with raises(codes.BROKER_RESERVATION):
            await broker.ledger("v", SMALL)


@pytest.mark.guarantee("I1")
async def test_storage_that_runs_out_refuses_whole_commits(tmp_path: Path) -> None:
    async with (
        open_nats_server(tmp_path, file_store_bytes_max=12 * limits.MIB) as server,
        open_jetstream_broker(server.access, PIPELINE) as broker,
    ):
        ledger = await broker.ledger("v", LedgerLimits(frames_per_buffer_max=1000, bytes_max=10 * limits.MIB))
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
        for _ in range(4):
            await owner.commit((A, bytes(limits.MIB)), (B, bytes(limits.MIB)))
        with pytest.raises(StorageFullError):
            await owner.commit((A, bytes(limits.MIB)), (B, bytes(limits.MIB)))
        assert len(await stored(ledger, A)) == len(await stored(ledger, B)) == 4
        await ledger.trim({A: await ledger.last_sequence(A)})
        await owner.commit((A, b"again"))


@pytest.mark.guarantee("I1", "I10")
async def test_nothing_is_written_behind_half_a_batch(tmp_path: Path) -> None:
    # A server that meets the end of its storage in the middle of a batch stops there. Streams of ours reserve their
    # storage, so another stream has to fill it.
    async with (
        open_nats_server(tmp_path, file_store_bytes_max=20 * limits.MIB) as server,
        open_jetstream_broker(server.access, PIPELINE) as broker,
        open_connection(server.access) as other,
        asyncio.timeout(60),
    ):
        ledger = await broker.ledger("v", LedgerLimits(frames_per_buffer_max=1000, bytes_max=10 * limits.MIB))
        owner = LaneOwner(ledger, LANE, await ledger.take_over(LANE, "first"))
        await other.api("STREAM.CREATE.other", {"name": "other", "subjects": ["other"], "storage": "file"})
        for _ in range(18):
            await other.request("other", bytes(limits.MIB))
        # Large ones would be stored apart, before the batch.
        frames = [(buffer, bytes(limits.FRAME_APART_BYTES_MIN - 1)) for buffer in (A, B) * 8]
        committing = asyncio.ensure_future(owner.commit(*frames))
        half = 0
        while not half:
            half = (await other.api("STREAM.INFO.p-v"))["state"]["last_seq"] - owner.stored.sequence
        assert 0 < half <= len(frames)
        taking_over = asyncio.ensure_future(ledger.take_over(LaneId("v", "in-v", 1), "another lane"))
        await other.api("STREAM.DELETE.other")
        await server.restart()
        receipt = await committing
        await taking_over
        assert receipt.frame_sequences == tuple(range(2, 2 + len(frames)))
        assert len(await stored(ledger, A)) == len(await stored(ledger, B)) == 8


@pytest.mark.guarantee("I10")
async def test_a_batch_that_a_restart_did_not_complete_never_will_be(harness: JetStreamHarness) -> None:
    # The end of the last block is cut: the last message of the batch is gone, and nothing that would complete it.
    owner = await owner_of(harness)
    await owner.commit((A, b"a1"), (B, b"b1"))
    await owner.commit((A, b"a2"), (B, b"b2"))
    await harness.server.kill()
    block = max((harness.stored_in("v") / "msgs").glob("*.blk"))
    with block.open("r+b") as file:
        file.truncate(block.stat().st_size - 58)
    for index in (harness.stored_in("v") / "msgs").glob("index.db"):
        index.unlink()
    await harness.server.start()
    where = r"lane in-v\.0, sequences 5 to 6 of p-v, and it was restarted since.*millstream repair"
    async with asyncio.timeout(WAIT_S):
        for asking in (owner.ledger.mark(LANE), owner.ledger.take_over(LANE, "second"), owner.commit((A, b"a3"))):
            with raises(codes.COMMIT_TORN, match=where):
                await asking
        # Another lane would write behind it.
        with raises(codes.COMMIT_TORN, match=where):
            await owner.ledger.take_over(LaneId("v", "in-v", 1), "other")


async def test_a_stream_of_another_pipeline_is_left_alone(harness: JetStreamHarness) -> None:
    unasked = DurabilityLevel.UNVERIFIED
    async with open_jetstream_broker(harness.server.access, "p-v", require=unasked) as broker:
        await broker.ledger("w", SMALL)
        with raises(codes.LEDGER_NAME_TAKEN, match="belongs to vertex w of pipeline p-v"):
            await harness.broker.ledger("v-w", SMALL)
        await harness.broker.delete()
        assert await broker.existing_ledger("w") is not None


async def test_a_ledger_of_another_layout_is_left_alone(harness: JetStreamHarness) -> None:
    await harness.broker.ledger("v", SMALL)
    async with open_connection(harness.server.access) as other:
        config = (await other.api("STREAM.INFO.p-v"))["config"]
        del config["metadata"]["millstream.layout"]
        await other.api("STREAM.UPDATE.p-v", config)
    elsewhere = await harness.other_process()
    for asking in (elsewhere.ledger("v", SMALL), elsewhere.existing_ledger("v")):
        with raises(codes.LEDGER_LAYOUT, match=r"layout unknown.*start the pipeline over"):
            await asking
    # Starting over is possible.
    await elsewhere.delete()
    await elsewhere.ledger("v", SMALL)


@pytest.mark.parametrize(("layout", "packs"), [("4", False), ("5", True)])
async def test_a_ledger_of_an_earlier_version_stores_only_what_that_version_reads(
    harness: JetStreamHarness, layout: str, packs: bool
) -> None:
    made = await harness.broker.ledger("v", SMALL)
    assert made.packs
    assert made.compresses
    async with open_connection(harness.server.access) as other:
        config = (await other.api("STREAM.INFO.p-v"))["config"]
        config["metadata"]["millstream.layout"] = layout
        await other.api("STREAM.UPDATE.p-v", config)
    earlier = await (await harness.other_process()).ledger("v", SMALL)
    assert (earlier.packs, earlier.compresses) == (packs, False)


async def test_a_name_that_cannot_be_a_subject_is_refused(harness: JetStreamHarness) -> None:
    with raises(codes.BROKER_NAME):
        await harness.broker.ledger("v.*", SMALL)


class TestDurability:
    async def test_it_is_read_from_the_server(self, harness: JetStreamHarness) -> None:
        found = (await harness.broker.ledger("v", SMALL)).durability
        assert (found.level, found.verified) == (DurabilityLevel.FSYNC, True)
        assert re.search(r"server millstream, by \$SYS\.REQ\.SERVER\.\w+\.VARZ: .*sync_always is true", found.evidence)

    async def test_a_server_that_syncs_later_is_refused_unless_asked_for(self, tmp_path: Path) -> None:
        async with open_nats_server(tmp_path, sync_always=False) as server:
            async with open_jetstream_broker(server.access, PIPELINE) as broker:
                with raises(codes.NOT_DURABLE, match="sync_interval: always"):
                    await broker.ledger("v", SMALL)
            async with open_jetstream_broker(server.access, PIPELINE, require=DurabilityLevel.PROCESS) as broker:
                found = (await broker.ledger("v", SMALL)).durability
                assert (found.level, found.verified) == (DurabilityLevel.PROCESS, True)

    @pytest.mark.parametrize("monitor_url", [None, "http://127.0.0.1:9"])
    async def test_a_broker_that_cannot_be_asked_is_refused_unless_its_user_says_so(
        self, tmp_path: Path, monitor_url: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jetstream, "_MONITOR_PATIENCE_S", 0.1)
        async with open_nats_process(tmp_path) as server:
            access = BrokerAccess(server.url, monitor_url=monitor_url)
            async with open_jetstream_broker(access, PIPELINE) as broker:
                with raises(codes.DURABILITY_UNKNOWN, match=r"is not known.*--durability unverified"):
                    await broker.ledger("v", SMALL)
            for taken in (DurabilityLevel.UNVERIFIED, DurabilityLevel.PROCESS):
                async with open_jetstream_broker(access, PIPELINE, require=taken) as broker:
                    found = (await broker.ledger("v", SMALL)).durability
                    assert not found.verified
                    assert found.evidence

    async def test_it_is_read_at_the_monitoring_endpoint_where_there_is_one(self, tmp_path: Path) -> None:
        async with open_nats_process(tmp_path) as server:
            assert server.monitor_url is not None
            access = BrokerAccess(server.url, monitor_url=server.monitor_url)
            async with open_jetstream_broker(access, PIPELINE) as broker:
                found = (await broker.ledger("v", SMALL)).durability
        assert (found.level, found.verified) == (DurabilityLevel.FSYNC, True)
        assert server.monitor_url in found.evidence

    async def test_settings_of_another_server_prove_nothing(
        self, harness: JetStreamHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jetstream, "_MONITOR_PATIENCE_S", 0.1)
        async with (
            open_nats_process(tmp_path) as other,
            open_jetstream_broker(replace(harness.server.access, monitor_url=other.monitor_url), PIPELINE) as broker,
        ):
            with raises(codes.DURABILITY_UNKNOWN):
                await broker.ledger("v", SMALL)

    async def test_any_server_of_a_cluster_speaks_for_it(self) -> None:
        settings = {"server_id": "A", "cluster": {"name": "c"}}
        assert durability.is_of(settings, {"server_id": "A"})
        assert durability.is_of(settings, {"server_id": "B", "cluster": "c"})
        assert not durability.is_of(settings, {"server_id": "B", "cluster": "d"})
        assert not durability.is_of({"server_id": "A", "cluster": {}}, {"server_id": "B"})


async def test_a_server_that_is_not_there_is_told_in_time() -> None:
    with raises(codes.BROKER_UNREACHABLE, match=r"127\.0\.0\.1:9 could not be reached"):
        async with open_connection(BrokerAccess("nats://127.0.0.1:9"), timeout_s=0.3):
            pass


async def test_a_server_that_is_not_there_does_not_show_the_password() -> None:
    with pytest.raises(InfrastructureError) as raised:
        async with open_connection(BrokerAccess("nats://127.0.0.1:9", "user", "secret"), timeout_s=0.3):
            pass
    assert "secret" not in str(raised.value)


async def test_a_reader_leaves_no_consumer_behind(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, b"a1"), ids=("x",))
    async with open_connection(harness.server.access) as other, asyncio.timeout(WAIT_S):
        async with owner.ledger.read(A, 0) as frames:
            await anext(frames)
            assert (await other.api("CONSUMER.NAMES.p-v"))["total"] == 1
        assert len([stored async for stored in owner.ledger.ids(LANE)]) == 1
        while (await other.api("CONSUMER.NAMES.p-v"))["total"]:
            pass


async def test_a_reader_whose_consumer_is_gone_makes_itself_another(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, b"a1"))
    async with (
        open_connection(harness.server.access) as other,
        owner.ledger.read(A, 0) as frames,
        asyncio.timeout(WAIT_S),
    ):
        await anext(frames)
        for name in (await other.api("CONSUMER.NAMES.p-v"))["consumers"]:
            await other.api(f"CONSUMER.DELETE.p-v.{name}")
        await owner.commit((A, b"a2"))
        assert (await anext(frames)).data == b"a2"
    assert owner.ledger.statistics().read_restarts == 1


@pytest.mark.guarantee("I8")
@pytest.mark.parametrize("small", [pytest.param(0, marks=pytest.mark.sweep), 40])
async def test_a_reader_that_is_slow_holds_no_more_than_its_limits(harness: JetStreamHarness, small: int) -> None:
    """`small`: frames in front of large ones, by whose size it asks for the first of these."""
    owner = LaneOwner(
        await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=1000)),
        LANE,
        await (await harness.broker.ledger("v", LedgerLimits(frames_per_buffer_max=1000))).take_over(LANE, "first"),
    )
    size = 4 * limits.MIB
    for data in [b"small"] * small + [bytes(size)] * 40:
        await owner.commit((A, data))
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(60):
        assert isinstance(frames, PullReader)
        seen = 0
        for _ in range(small + 40):
            await anext(frames)
            # A slow reader: everything that was asked for has time to arrive.
            for _ in range(20):
                await harness.broker.existing_ledger("v")
            seen = max(seen, frames.held_bytes)
    assert size < seen <= (pull.PULLS * pull.PULL_BYTES if small else limits.READ_AHEAD_BYTES_MAX)


async def test_a_reader_to_which_nothing_comes_waits_with_one_pull(
    harness: JetStreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def soon_s() -> float:
        nonlocal asked
        asked += 1
        return pulling.EXPIRES_MIN_S

    monkeypatch.setattr(pull, "_expires_s", soon_s)
    owner = await owner_of(harness)

    async def until_one_waits(other: BrokerConnection) -> None:
        while (await other.api("CONSUMER.LIST.p-v"))["consumers"][0]["num_waiting"] != 1:
            pass

    async with (
        open_connection(harness.server.access) as other,
        owner.ledger.read(A, 0) as frames,
        asyncio.TaskGroup() as tasks,
        asyncio.timeout(WAIT_S),
    ):
        assert isinstance(frames, PullReader)
        first = tasks.create_task(anext(frames))
        await until_one_waits(other)
        assert asked == 1
        await owner.commit((A, b"a1"))
        assert (await first).data == b"a1"
        second_one = tasks.create_task(anext(frames))
        # More may follow: from now on there is always one that the server can answer.
        # Nothing did, so all of these have expired before the next one.
        while asked <= pull.PULLS:  # noqa: ASYNC110  # a request has no event
            await asyncio.sleep(0.005)
        await until_one_waits(other)
        await owner.commit((A, b"a2"))
        assert (await second_one).data == b"a2"
    assert owner.ledger.statistics().read_restarts == 0


async def test_a_reader_in_a_process_that_stood_still_first_reads_what_has_come(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    async with owner.ledger.read(A, 0) as frames, asyncio.TaskGroup() as tasks, asyncio.timeout(WAIT_S):
        assert isinstance(frames, PullReader)
        first = tasks.create_task(anext(frames))
        # An answer that comes after the request to the server: it has that.
        await owner.ledger.last_sequence(A)
        # The process stands still. The server gives a sign of life every second.
        threading.Event().wait(3.5)
        await owner.commit((A, b"a1"))
        assert (await first).data == b"a1"
    assert owner.ledger.statistics().read_restarts == 0


async def test_a_reader_that_hears_nothing_begins_again(
    harness: JetStreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server's first sign of life comes after a second.
    monkeypatch.setattr(pulling, "_SILENCE_MAX_S", 0.2)
    owner = await owner_of(harness)
    async with owner.ledger.read(A, 0) as frames, asyncio.TaskGroup() as tasks, asyncio.timeout(WAIT_S):
        assert isinstance(frames, PullReader)
        first = tasks.create_task(anext(frames))
        while not owner.ledger.statistics().read_restarts:
            await harness.broker.existing_ledger("v")
        monkeypatch.undo()
        await owner.commit((A, b"a1"))
        assert (await first).data == b"a1"
        restarts = owner.ledger.statistics().read_restarts
        second_one = tasks.create_task(anext(frames))
        for _ in range(20):
            await harness.broker.existing_ledger("v")
        # A reader that waits for less than that does not.
        await owner.commit((A, b"a2"))
        assert (await second_one).data == b"a2"
        assert owner.ledger.statistics().read_restarts == restarts


@pytest.mark.guarantee("I10")
async def test_a_reader_of_a_stream_that_was_made_anew_says_so(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    await owner.commit((A, b"a1"))
    async with open_connection(harness.server.access) as other, asyncio.timeout(WAIT_S):
        config = (await other.api("STREAM.INFO.p-v"))["config"]
        async with owner.ledger.read(A, 0) as frames:
            await anext(frames)
            await other.api("STREAM.DELETE.p-v")
            await until_created(other, "p-v", config)
            with raises(codes.LEDGER_CUT, match=r"p-v\.\*\.\*\.d\.v-a\.0 was read up to sequence 2"):
                await anext(frames)


def _block(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("not a directory")


async def test_files_in_the_way_of_a_new_stream_are_not_final(harness: JetStreamHarness) -> None:
    """The server removes them when it fails."""
    place = harness.stored_in("v").with_name("late")
    config = {"name": "late", "subjects": ["late"], "storage": "file"}
    async with open_connection(harness.server.access) as connection, asyncio.timeout(WAIT_S):
        await asyncio.to_thread(_block, place)
        with pytest.raises(ApiError, match="10049"):
            await connection.api("STREAM.CREATE.late", config)
        await asyncio.to_thread(_block, place)
        assert (await until_created(connection, "late", config))["config"]["name"] == "late"


@pytest.mark.guarantee("I10")
async def test_a_position_the_stream_never_reached_is_damage(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    with raises(codes.LEDGER_CUT, match="up to sequence 1000"):
        async with owner.ledger.read(A, 1000):
            pass


@pytest.mark.guarantee("I10")
async def test_a_frame_that_the_server_drops_from_a_damaged_file_is_missed(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    for _ in range(20):
        await owner.commit((A, bytes(limits.MIB)))
    await damage(harness, "1.blk")
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        for _ in range(3):
            await anext(frames)
        with raises(codes.BUFFER_GAP, match=r"v-a\.0: frame 3 of lane in-v\.0 is followed by frame 8"):
            await anext(frames)


@pytest.mark.guarantee("I10")
async def test_a_lane_whose_mark_goes_back_says_so(harness: JetStreamHarness) -> None:
    owner = await owner_of(harness)
    for _ in range(20):
        await owner.commit((A, bytes(limits.MIB)))
    async with owner.ledger.read(A, 0) as frames, asyncio.timeout(WAIT_S):
        for _ in range(20):
            await anext(frames)
        await damage(harness, "3.blk")
        with raises(codes.LEDGER_CUT):
            await owner.commit((A, b"a"))
        with raises(codes.LEDGER_CUT, match="was read up to sequence 21"):
            await anext(frames)


async def damage(harness: JetStreamHarness, block: str) -> None:
    await harness.server.kill()
    path = harness.server.store_dir / "jetstream" / "millstream" / "streams" / "p-v" / "msgs" / block
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    await harness.server.start()
