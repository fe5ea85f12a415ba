"""A lane that reads two edges: order, watermark, position and trimming of each, from owner to owner."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from millstream import limits
from millstream.account import consumed
from millstream.clock import END_OF_TIME_US, SystemClock
from millstream.errors import DamageError
from millstream.frame import Frame, frame_of_records
from millstream.ledger.rewriting import rewritten
from millstream.ledger.witness import from_messages, given_up_of, not_passed
from millstream.record import ALL_INPUTS, BufferId, LaneId, Position, Record
from millstream.spec.programs import Table
from millstream.spec.tables import TableInput, Wait
from millstream.telemetry.telemetry import Telemetry
from millstream.watermark.store import follow
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_reader import buffer as buffer_module
from millstream_reader.buffer import BufferReader, open_buffer_reader
from millstream_reader.tracker import Tracker
from millstream_vertex import merged_input
from millstream_vertex.core import LaneCore
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import Lane
from millstream_vertex.merged_input import MergedBuffer, MergedInput
from millstream_vertex.outputs import ToBuffers
from millstream_vertex.stage import Stage, StageInput, StageResult
from millstream_vertex.stages import Stages, Step
from millstream_vertex.trimming import Trimmer
from millstream_writer.committer import Committer, Unit
from millstream_writer.routing import Route, Router
from tests.unit.vertex.lane_rig import Rig, open_rig

JOIN = LaneId("map", ALL_INPUTS, 0)
OUT = BufferId("map-out", 0)
VERTICES = ("a", "b")
INPUTS = {vertex: BufferId(f"{vertex}-map", 0) for vertex in VERTICES}
SOURCES = {vertex: LaneId(vertex, "source", 0) for vertex in VERTICES}


class Passing(Stage):
    """Puts out what it gets, and notes the watermarks and the names of records."""

    waits = False

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        """The watermark before each frame, and the position of its first record."""
        self.names: set[tuple[bytes, str]] = set()
        """Of every record."""

    async def on_frame(self, given: StageInput) -> StageResult:
        self.seen.append((given.watermark_us, given.origin.position(0)))
        self.names.update((value, given.origin.position(at)) for at, value in enumerate(given.frame.values()))
        result = StageResult(frame=given.frame)
        result.account.inputs = result.account.processed = result.account.outputs = given.frame.records
        return result


class Join:
    """The lane of all edges between two vertices and an output."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.stage = Passing()
        self.tables: dict[str, TableInput] = {}
        """The table that the records of a vertex are read as."""
        self.trimmers: dict[str, Trimmer] = {}
        self.input: MergedInput
        """Of the lane opened last."""
        self.inputs: list[tuple[LaneInput, BufferId]] = []
        self.readers: list[BufferReader] = []
        self._sources: dict[str, Committer] = {}

    async def feed(self, vertex: str, *frames: Frame, watermark_us: int = 0, ended: bool = False) -> None:
        """Have one of the vertices commit these frames one by one, and publish its watermark."""
        if vertex not in self._sources:
            routes = Router([Route(INPUTS[vertex].edge, 1, None)])
            self._sources[vertex] = await self.rig.committer(SOURCES[vertex], routes)
        source = self._sources[vertex]
        for frame in frames:
            unit = Unit(source_position=b"", frames=[(INPUTS[vertex], frame)])
            await source.commit([unit], watermark_us=watermark_us)
        if ended:
            await source.commit([], watermark_us=END_OF_TIME_US, ended=True)
        entry = OtEntry(epoch=source.mark.epoch, watermark_us=max(watermark_us, source.mark.watermark_us), ended=ended)
        entry.outputs.add(edge=INPUTS[vertex].edge, partition=0, sequence=source.sequences[INPUTS[vertex]])
        (await self.rig.stores.store(vertex)).publish(SOURCES[vertex], entry)

    @asynccontextmanager
    async def owned(self, records_max: int | None = None) -> AsyncIterator[Lane]:
        """The lane of the next owner."""
        router = Router([Route(OUT.edge, 1, None)])
        committer = await self.rig.committer(JOIN, router)
        marked = {done.edge: done for done in committer.mark.inputs}
        tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
        store = await self.rig.stores.store(JOIN.vertex)
        core = LaneCore(JOIN, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
        wake, changed = asyncio.Event(), asyncio.Event()
        buffers = []
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            background = []
            for vertex, buffer in INPUTS.items():
                ledger = await self.rig.ledger(vertex)
                done = marked.get(buffer.edge, mark_pb2.InputProgress())
                lane_input = LaneInput(buffer, [SOURCES[vertex]], back_edge=False, changed=changed)
                reading = open_buffer_reader(
                    ledger,
                    buffer,
                    Position(done.sequence, done.record_index),
                    lane_input,
                    witnesses=from_messages(done.read),
                    given_up=given_up_of(committer.mark, buffer.edge),
                    in_parts=True,
                    wake=wake,
                    joins=True,
                )
                trimmer = self.trimmers[vertex] = Trimmer(ledger.trim)
                reader = await stack.enter_async_context(reading)
                self.readers.append(reader)
                table = self.tables.get(vertex)
                buffers.append(MergedBuffer(reader, lane_input, trimmer, vertex, table, done.records))
                self.inputs.append((lane_input, buffer))
                following = follow(await self.rig.stores.store(vertex), [lane_input.observe])
                background.append(tasks.create_task(following))
            self.input = MergedInput(core, buffers, wake, changed)
            stages = Stages(
                [Step(JOIN, self.stage, router, core.telemetry, core.counters)], ToBuffers(core, router), core.clock
            )
            yield Lane(
                core,
                self.input,
                stages,
                paced=False,
                may_grow=True,
                leaves=False,
                records_max=records_max,
            )
            for task in background:
                task.cancel()
        for trimmer in self.trimmers.values():
            await trimmer.finish()

    async def read(self) -> dict[str, tuple[int, int, int]]:
        """By edge: sequence and index of the mark, and how many records it counts."""
        mark = await self.rig.mark(JOIN)
        return {done.edge: (done.sequence, done.record_index, done.records) for done in mark.inputs}

    async def left(self, vertex: str) -> list[int]:
        """Sequences of the frames that are stored before the lane."""
        frames = await (await self.rig.ledger(vertex)).peek(INPUTS[vertex], 0, 1000)
        return [frame.sequence for frame in frames]


@pytest.fixture
async def join() -> AsyncIterator[Join]:
    async with open_rig() as rig:
        yield Join(rig)


def frames_of(name: str, times_us: Sequence[int]) -> list[Frame]:
    """A frame for each time, with two records."""
    return [
        frame_of_records([Record(f"{name}{us}.{part}".encode(), us) for part in range(2)], ingest_time_us=0)
        for us in times_us
    ]


async def put_out(join: Join) -> list[str]:
    return [value.decode() for value in await join.rig.values(OUT)]


async def until_put_out(join: Join, count: int) -> None:
    async with asyncio.timeout(20):
        while len(await put_out(join)) < count:  # noqa: ASYNC110 - a buffer has no event for it
            await asyncio.sleep(0.001)


async def ran(join: Join) -> None:
    """Run the lane to the end of both inputs."""
    async with join.owned() as lane, asyncio.timeout(20):
        await lane.run()


@pytest.mark.guarantee("I4")
async def test_what_is_there_is_read_by_event_time_and_each_edge_in_order(join: Join) -> None:
    await join.feed("a", *frames_of("a", [10, 30, 20]), ended=True)
    await join.feed("b", *frames_of("b", [15, 25]), ended=True)
    async with join.owned(records_max=2) as lane, asyncio.timeout(20):
        await lane.run()
    firsts = [value.partition(".")[0] for value in await put_out(join)][::2]
    # a20 follows a30, which was written before it.
    assert firsts == ["a10", "b15", "b25", "a30", "a20"]
    # A record is named by the edge that it came by.
    assert [name.split("/")[:3] for _, name in join.stage.seen] == [["map", f"{name[0]}-map", "0"] for name in firsts]
    assert {edge: records for edge, (_, _, records) in (await join.read()).items()} == {"a-map": 6, "b-map": 4}


async def test_a_quiet_edge_holds_nothing_up(join: Join) -> None:
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await join.feed("b", *frames_of("b", [50]))
        await until_put_out(join, 2)
        await join.feed("a", *frames_of("a", [40]))
        await until_put_out(join, 4)
        lane.stop()
        await running


async def test_an_edge_with_earlier_records_does_not_keep_another_waiting(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_input, "PASSED_OVER_MAX", 3)
    monkeypatch.setattr(buffer_module, "AHEAD_FRAMES", 100)
    await join.feed("b", *frames_of("b", [900, 901]), ended=True)
    await join.feed("a", *frames_of("a", range(12)), ended=True)
    edges = []
    async with join.owned(), asyncio.timeout(20):
        for reader, frames in zip(join.readers, (12, 2), strict=True):
            while len(reader._frames) < frames:  # noqa: ASYNC110 - what is there is no event
                await asyncio.sleep(0.001)
        while (read := await join.input.next(lambda: 2, lambda: None)) is not None:
            edges.append(read.lineage.edge[0])
    assert "".join(edges) == "aaabaaabaaaaaa"


@pytest.mark.guarantee("I5")
async def test_the_watermark_is_that_of_the_slowest_edge(join: Join) -> None:
    store = await join.rig.stores.store(JOIN.vertex)
    published: asyncio.Queue[int] = asyncio.Queue()
    async with join.owned() as lane, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(store, [lambda update: published.put_nowait(update.entry.watermark_us)]))
        running = tasks.create_task(lane.run())

        async def until_published(watermark_us: int) -> None:
            async with asyncio.timeout(20):
                while (found := await published.get()) != watermark_us:
                    assert found < watermark_us

        await join.feed("a", *frames_of("a", [100]), watermark_us=100)
        await join.feed("b", *frames_of("b", [40]), watermark_us=40)
        await until_published(40)
        await join.feed("b", watermark_us=70)
        await until_published(70)
        await join.feed("b", *frames_of("b", [150]), watermark_us=150)
        await until_published(100)
        lane.stop()
        await running
        following.cancel()
    assert max(watermark_us for watermark_us, _ in join.stage.seen) <= 70


@pytest.mark.guarantee("I1")
async def test_a_lane_ends_when_all_edges_have(join: Join) -> None:
    await join.feed("a", *frames_of("a", [1]), ended=True)
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(join, 2)
        assert not running.done()
        await join.feed("b", *frames_of("b", [2]), ended=True)
        async with asyncio.timeout(20):
            await running
    assert (await join.rig.mark(JOIN)).ended
    assert len(await put_out(join)) == 4


@pytest.mark.guarantee("I5")
async def test_the_watermark_does_not_pass_what_is_only_read(join: Join) -> None:
    for vertex in VERTICES:
        await join.feed(vertex, *frames_of(vertex, [10]), watermark_us=5)
    async with join.owned(), asyncio.timeout(20):
        for _ in VERTICES:
            assert await join.input.next(lambda: 2, lambda: None) is not None
        for vertex in VERTICES:
            await join.feed(vertex, watermark_us=90)
        for lane_input, buffer in join.inputs:
            while lane_input.watermark_at(await (await join.rig.ledger(buffer.edge[0])).last_sequence(buffer)) < 90:
                await join.input.moved()
        # The next owner reads both frames again.
        assert join.input.advance(quiet=False) < 10


@pytest.mark.slow
@pytest.mark.guarantee("I1", "I4", "I6")
@pytest.mark.parametrize("seed", range(4))
async def test_each_record_is_put_out_once_whoever_owns_the_lane(join: Join, seed: int) -> None:
    rng, wanted = random.Random(seed), dict[str, list[str]](a=[], b=[])
    time_us = 0
    for _ in range(10):
        for _ in range(6):
            vertex, time_us = rng.choice(VERTICES), time_us + rng.randrange(5)
            records = [Record(f"{vertex}{time_us}.{part}".encode(), time_us) for part in range(rng.randrange(1, 6))]
            wanted[vertex] += [record.value.decode() for record in records]
            await join.feed(vertex, frame_of_records(records, ingest_time_us=0))
        async with join.owned(records_max=rng.choice([1, 2, None])) as lane:
            running = asyncio.create_task(lane.run())
            before = len(await put_out(join))
            written = sum(map(len, wanted.values()))
            await until_put_out(join, rng.randrange(before, written + 1))
            if rng.random() < 0.5:
                lane.stop()
            else:
                running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    for vertex in VERTICES:
        await join.feed(vertex, ended=True)
    await ran(join)
    found = await put_out(join)
    assert {vertex: [one for one in found if one.startswith(vertex)] for vertex in VERTICES} == wanted
    mark = await join.rig.mark(JOIN)
    assert mark.ended
    assert {done.buffer.edge: done.records for done in consumed(JOIN, mark)} == {
        f"{vertex}-map": len(wanted[vertex]) for vertex in VERTICES
    }
    # The newest frame of each stays, for the check of the next reader.
    assert [len(await join.left(vertex)) for vertex in VERTICES] == [1, 1]
    # However they were cut and joined.
    assert len(join.stage.names) == len({name for _, name in join.stage.names}) == sum(map(len, wanted.values()))


async def until_read(join: Join, vertex: str, frames: int) -> None:
    """Wait until so many frames of an edge are there."""
    async with asyncio.timeout(20):
        while len(join.readers[VERTICES.index(vertex)]._frames) < frames:  # noqa: ASYNC110 - what is there is no event
            await asyncio.sleep(0.001)


@pytest.mark.guarantee("I1")
async def test_small_frames_that_wait_are_one_batch_which_may_be_committed_in_parts(join: Join) -> None:
    await join.feed("a", *frames_of("a", range(5)))
    async with join.owned():
        await until_read(join, "a", 5)
        batch = await join.input.next(lambda: 7, lambda: None)
        assert batch is not None
        assert batch.frame.values() == [b"a%d.%d" % (us, part) for us in range(3) for part in range(2)]
        names = [batch.lineage.origin(JOIN).position(index) for index in range(6)]
        assert names == [f"map/a-map/0/{sequence}/{index}" for sequence in (2, 3, 4) for index in range(2)]
        units = batch.finish([(stop, Unit()) for stop in (1, 3, 6)])
        assert [unit.position for unit in units] == [Position.within(2, 1), Position.within(3, 1), Position(4, 0)]
        assert [[witness.number for witness in unit.witnesses] for unit in units] == [[1], [1, 2], [2, 3]]
        sizes = [len(frame.data) for frame in await (await join.rig.ledger("a")).peek(INPUTS["a"], 0, 3)]
        assert [unit.account.input_bytes for unit in units] == [0, sizes[0], sizes[1] + sizes[2]]
        rest = [await join.input.next(lambda: 1, lambda: None) for _ in range(3)]
        assert [one.frame.values() for one in rest if one is not None] == [[b"a3.0"], [b"a3.1"], [b"a4.0"]]


async def test_what_a_joined_frame_would_lose_keeps_frames_apart(join: Join) -> None:
    with_ids = frame_of_records([Record(b"c", 2, id="x")], ingest_time_us=0)
    traced = frame_of_records(
        [Record(b"d", 3)], ingest_time_us=0, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    )
    await join.feed("a", *frames_of("a", [0, 1]), with_ids, traced, *frames_of("e", [4, 5]))
    async with join.owned():
        await until_read(join, "a", 6)
        batches = [await join.input.next(lambda: None, lambda: None) for _ in range(3)]
        assert [one.frame.records for one in batches if one is not None] == [4, 1, 5]


@pytest.mark.guarantee("I1")
async def test_what_is_not_committed_is_not_trimmed(join: Join) -> None:
    await join.feed("a", *frames_of("a", range(0, 20, 2)))
    await join.feed("b", *frames_of("b", range(1, 21, 2)))
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(join, 8)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    read = await join.read()
    for vertex in VERTICES:
        sequence, _, _ = read[f"{vertex}-map"]
        assert min(await join.left(vertex)) == sequence


@pytest.mark.guarantee("I15")
async def test_a_past_that_was_replaced_is_noticed_for_each_edge(join: Join) -> None:
    await join.feed("a", *frames_of("a", [1]))
    await join.feed("b", *frames_of("b", [2]))
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(join, 4)
        lane.stop()
        await running
    async with rewritten(await join.rig.ledger("map"), JOIN, "test") as mark:
        (done,) = [done for done in mark.inputs if done.edge == "b-map"]
        done.read[0].commit += 1
    with pytest.raises(ExceptionGroup) as caught:
        async with join.owned() as lane, asyncio.timeout(20):
            await lane.run()
    assert caught.group_contains(DamageError, match="b-map")


def test_what_a_repair_gave_up_stays_until_the_reader_of_that_edge_has_passed_it() -> None:
    mark = mark_pb2.Mark()
    for edge, sequence in (("a-map", 9), ("b-map", 3)):
        done = mark.inputs.add(edge=edge, sequence=sequence)
        # Lanes of two vertices may have one key.
        done.read.add(lane="source.0", sequence=sequence, number=1)
    gaps = [mark_pb2.GivenUp(edge=edge, lane="source.0", sequence=5, through=2) for edge in ("a-map", "b-map")]
    assert [gap.edge for gap in not_passed(gaps, mark)] == ["b-map"]


def read_as_table(join: Join, vertex: str, wait: Wait) -> None:
    join.tables[vertex] = TableInput(JOIN.vertex, "rates", Table(), INPUTS[vertex].edge, wait)


async def edges_read(join: Join, count: int) -> str:
    """The edges of the next frames that the lane reads, whatever is known of the inputs by now."""
    found = ""
    async with asyncio.timeout(20):
        for _ in range(count):
            read = await join.input.next(lambda: 2, lambda: None)
            assert read is not None
            found += read.lineage.edge[0]
    return found


async def waits(join: Join) -> bool:
    """Whether the lane reads nothing of what is there."""
    reading = asyncio.create_task(join.input.next(lambda: 2, lambda: None))
    async with asyncio.timeout(20):
        while sum(reader.ready is not None for reader in join.readers) < 1:  # noqa: ASYNC110 - it is no event
            await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0)
    is_waiting = not reading.done()
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    return is_waiting


async def test_records_wait_for_the_end_of_a_table_and_for_no_pause_of_it(join: Join) -> None:
    read_as_table(join, "b", "end")
    await join.feed("a", *frames_of("a", [1, 2]))
    await join.feed("b", *frames_of("b", [70, 80]))
    async with join.owned():
        assert await edges_read(join, 2) == "bb"
        assert await waits(join)
        await join.feed("b", *frames_of("b", [90]), ended=True)
        assert await edges_read(join, 3) == "baa"


async def test_records_wait_for_so_many_of_a_table_and_not_again_after_a_restart(join: Join) -> None:
    read_as_table(join, "b", 3)
    await join.feed("a", *frames_of("a", [1, 2]))
    await join.feed("b", *frames_of("b", [70]))
    async with join.owned():
        assert await edges_read(join, 1) == "b"
        assert await waits(join)
        await join.feed("b", *frames_of("b", [80]))
        assert await edges_read(join, 3) == "baa"
    # Nothing of that was committed.
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(join, 8)
        lane.stop()
        await running
    await join.feed("a", *frames_of("a", [3]))
    async with join.owned():
        assert await edges_read(join, 1) == "a"


async def test_what_is_there_of_a_table_comes_first_but_not_for_ever(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_input, "PASSED_OVER_MAX", 3)
    monkeypatch.setattr(buffer_module, "AHEAD_FRAMES", 100)
    read_as_table(join, "b", 0)
    await join.feed("a", *frames_of("a", [1, 2]))
    await join.feed("b", *frames_of("b", range(900, 909)))
    async with join.owned(), asyncio.timeout(20):
        for reader, frames in zip(join.readers, (2, 9), strict=True):
            while len(reader._frames) < frames:  # noqa: ASYNC110 - what is there is no event
                await asyncio.sleep(0.001)
        assert await edges_read(join, 11) == "bbbabbbabbb"


@pytest.mark.guarantee("I5")
async def test_a_table_holds_no_watermark_back_and_is_never_late(join: Join) -> None:
    read_as_table(join, "b", 0)
    await join.feed("a", *frames_of("a", [100]), watermark_us=100)
    async with join.owned() as lane:
        running = asyncio.create_task(lane.run())
        await until_put_out(join, 2)
        # Nothing is known of the watermark of the table.
        async with asyncio.timeout(20):
            while join.input.watermark_after(()) < 100:
                await join.input.moved()
        await join.feed("b", *frames_of("b", [5]))
        await until_put_out(join, 4)
        lane.stop()
        await running
    assert (await join.rig.mark(JOIN)).account.late == 0


async def test_the_log_names_the_table_that_records_wait_for(
    join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(merged_input, "WAIT_NAMED_S", 0.001)
    read_as_table(join, "b", 5)
    await join.feed("b", *frames_of("b", [7]))
    await join.feed("a", *frames_of("a", [1]))
    async with join.owned():
        assert await edges_read(join, 1) == "b"
        reading = asyncio.create_task(join.input.next(lambda: 2, lambda: None))
        async with asyncio.timeout(20):
            while not caplog.messages:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.001)
        reading.cancel()
    (line,) = caplog.messages
    assert "records wait for table rates, whose edge b-map has brought 2 records so far" in line
    assert "requires 5 records" in line
