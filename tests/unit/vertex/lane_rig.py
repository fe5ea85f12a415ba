"""One vertex's lanes on ledgers and OT stores in memory, with functions of the real SDK run in this process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from millstream import limits
from millstream.account import Account
from millstream.clock import END_OF_TIME_US, START_OF_TIME_US, Clock, SystemClock
from millstream.compression import Compression
from millstream.frame import Frame, frame_of_records
from millstream.ledger.memory import Faults, open_memory_broker
from millstream.ledger.packs import frames_in
from millstream.ledger.protocol import Broker, Ledger, LedgerLimits
from millstream.ledger.witness import from_messages
from millstream.naming import WITH_VALUES, Naming
from millstream.record import BufferId, LaneId, Position, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.telemetry.telemetry import Telemetry
from millstream.udf.answers import MapAnswer
from millstream.udf.native.messages import map_answer_of
from millstream.udf.pieces import PieceByPiece, PiecesLostError
from millstream.udf.streams import MapStream
from millstream.watermark.future import FutureBound
from millstream.watermark.memory import MemoryOtStores, OtMemory, open_memory_ot_stores
from millstream.watermark.source import SourceWatermark
from millstream.watermark.store import follow
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.watermark.v1.ot_pb2 import OtEntry
from millstream_reader.buffer import open_buffer_reader
from millstream_reader.ids import SeenIds
from millstream_reader.source import SourceLane
from millstream_reader.tracker import Tracker
from millstream_udf.answering import answer_map, context_of, encode_map
from millstream_udf.defining import define
from millstream_udf.execution import FunctionLane, open_function
from millstream_udf.streaming import stream_map
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.buffer_input import BufferInput
from millstream_vertex.core import LaneCore
from millstream_vertex.event_times import EventTimes
from millstream_vertex.input import LaneInput
from millstream_vertex.lane import Lane as VertexLane
from millstream_vertex.mapping import MapStage
from millstream_vertex.outputs import Output, ToBuffers
from millstream_vertex.source_input import SourceInput
from millstream_vertex.stage import Stage
from millstream_vertex.stages import Stages, Step
from millstream_vertex.trimming import Trimmer
from millstream_vertex.unreadable import Unreadable
from millstream_writer.backpressure import Backpressure, BufferLimits
from millstream_writer.committer import Committer, Member, Unit
from millstream_writer.routing import Route, Router

UPSTREAM = LaneId("in", "source", 0)
LANE = LaneId("map", "in-map", 0)
INPUT = BufferId("in-map", 0)
STOP = RetryPolicy(Backoff(0.0, steps=1), OnFailure.STOP)


def records_of(*values: bytes, time_us: int = 0) -> Frame:
    return frame_of_records([Record(value, time_us + number) for number, value in enumerate(values)], ingest_time_us=0)


class InProcessStream:
    """A function's stream without the stream: what is asked and answered is encoded as on the wire."""

    def __init__(self, lane: FunctionLane, hello: udf_pb2.Hello) -> None:
        self._lane = lane
        self._hello = hello
        self.calls: list[int] = []
        """Records of each call."""
        self.arrow: list[bool] = []
        """Whether each call had Arrow columns in place of values."""

    @property
    def calls_max(self) -> int:
        return 8

    @property
    def takes_arrow(self) -> bool:
        return self._lane.definition.takes_arrow

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
        alone: bool = False,
    ) -> MapAnswer:
        self.calls.append(frame.records)
        self.arrow.append(bool(frame.contents.arrow))
        call = udf_pb2.SealedMapCall(
            call_id=1,
            frame=frame.encode(),
            watermark_us=watermark_us,
            attempt=attempt,
            id_prefix=id_prefix,
            first_index=first_index,
        )
        answer = b"".join(encode_map(await answer_map(self._lane, self._hello, call)))
        return map_answer_of(
            udf_pb2.SealedMapResponse.FromString(answer).answer,
            frame.records,
            times_allowed=True,
            arrow_allowed=self._hello.may_return_arrow,
        )


class InProcessParts(InProcessStream):
    """A `StreamedMapStream`."""

    loses = 0
    """So many of the next calls lose the stream after the first part of their answer."""

    async def streamed_call(
        self, frame: Frame, take: Callable[[MapAnswer], Awaitable[None]], **options: Any
    ) -> MapAnswer:
        *parts, last = await self._parts(frame, **options)
        for part in parts:
            await take(part)
            if self.loses:
                self.loses -= 1
                raise PiecesLostError
        return last

    async def call(self, frame: Frame, **options: Any) -> MapAnswer:
        *before, last = await self._parts(frame, **options)
        return replace(last, before=tuple(before))

    async def _parts(
        self, frame: Frame, *, alone: bool = False, watermark_us: int = 0, **options: Any
    ) -> list[MapAnswer]:
        self.calls.append(frame.records)
        call = udf_pb2.SealedMapCall(call_id=1, frame=frame.encode(), watermark_us=watermark_us, **options)
        parts: list[MapAnswer] = []
        whole = PieceByPiece()

        async def send(part: udf_pb2.SealedMapAnswer) -> None:
            message = udf_pb2.SealedMapResponse.FromString(b"".join(encode_map(part)))
            parts.append(map_answer_of(message.answer, frame.records, streaming=True))
            whole.add(parts[-1])

        await send(await stream_map(self._lane, self._hello, call, b"", send))
        return parts


@asynccontextmanager
async def open_parts(function: Callable[..., Any]) -> AsyncIterator[InProcessParts]:
    """As `open_stream`, for a function that sends its outputs while it makes them."""
    definition = define(function, "function")
    hello = udf_pb2.Hello(protocol_version=1, kind=definition.kinds[0], pipeline="p", vertex="map", streaming=True)
    async with open_function(definition, context_of(hello)) as opened:
        yield InProcessParts(opened.lane(), hello)


@asynccontextmanager
async def open_stream(
    function: Callable[..., Any], *, may_return_arrow: bool = False
) -> AsyncIterator[InProcessStream]:
    definition = define(function, function.__name__)
    hello = udf_pb2.Hello(
        protocol_version=1,
        kind=definition.kinds[0],
        pipeline="p",
        vertex="map",
        lane="in-map.0",
        may_return_arrow=may_return_arrow,
    )
    async with open_function(definition, context_of(hello)) as opened:
        yield InProcessStream(opened.lane(), hello)


def stage_of(
    stream: MapStream,
    policy: RetryPolicy = STOP,
    *,
    dead_letter: bool = False,
    tags: bool = False,
    naming: Naming = WITH_VALUES,
    bound: FutureBound | None = None,
    concurrency: int = 0,
    takes_arrow: bool = False,
) -> MapStage:
    return MapStage(
        stream,
        policy,
        where="p/map/in-map.0",
        has_dead_letter=dead_letter,
        needs_tags=tags,
        rng=random.Random(1),
        naming=naming,
        bound=bound,
        concurrency=concurrency,
        takes_arrow=takes_arrow,
    )


def open_backpressure(
    buffers: Sequence[BufferId], records_usable: int = 1_000_000, bytes_usable: int = 2**40, writers: int = 1
) -> Backpressure:
    bounds = BufferLimits(2 * records_usable, 2 * bytes_usable, records_usable, bytes_usable, writers)
    return Backpressure(dict.fromkeys(buffers, bounds))


class Rig:
    """A broker, OT stores, and the lane `LANE` between the vertices `in` and whatever the routes lead to."""

    def __init__(self, broker: Broker, faults: Faults, stores: MemoryOtStores, hard_frames_max: int) -> None:
        self.broker = broker
        self.faults = faults
        self.stores = stores
        self.compression = Compression.LZ4
        self._limits = LedgerLimits(frames_per_buffer_max=hard_frames_max)
        self._source: Committer | None = None
        self._ledgers: dict[str, Ledger] = {}
        self.input: LaneInput | None = None
        """Of the lane opened last."""
        self.trimmer: Trimmer | None = None
        """The same."""

    async def ledger(self, vertex: str) -> Ledger:
        if vertex not in self._ledgers:
            self._ledgers[vertex] = await self.broker.ledger(vertex, self._limits)
        return self._ledgers[vertex]

    async def committer(
        self,
        lane: LaneId,
        router: Router,
        backpressure: Backpressure | None = None,
        *,
        never_waits_for: Sequence[BufferId] = (),
        members: Sequence[Member] = (),
        ids_ttl_s: float = 0.0,
    ) -> Committer:
        """The lane's committer after a takeover."""
        ledger = await self.ledger(lane.vertex)
        taken_over = await ledger.take_over(lane, "test")
        sequences = {buffer: await ledger.last_sequence(buffer) for buffer in router.buffers}
        backpressure = backpressure if backpressure is not None else open_backpressure(router.buffers)
        return Committer(
            ledger,
            lane,
            taken_over,
            sequences,
            router,
            backpressure,
            compression=self.compression,
            never_waits_for=never_waits_for,
            members=members,
            ids_ttl_s=ids_ttl_s,
        )

    async def feed(self, *frames: Frame, watermark_us: int = 0, ended: bool = False, together: bool = False) -> None:
        """Have the lane upstream commit these frames into the lane's buffer, one by one or `together`, and publish its
        watermark."""
        if self._source is None:
            self._source = await self.committer(UPSTREAM, Router([Route(INPUT.edge, 1, None)]))
        units = [Unit(source_position=b"", frames=[(INPUT, frame)]) for frame in frames]
        for commit in [units] if together else [[unit] for unit in units]:
            await self._source.commit(commit, watermark_us=watermark_us)
        if ended:
            await self._source.commit([], watermark_us=END_OF_TIME_US, ended=True)
        await self.tell(self._source.mark.watermark_us, ended=ended)

    async def tell(self, watermark_us: int, *, ended: bool = False) -> None:
        """Have the lane upstream publish a watermark, and what it has written so far."""
        assert self._source is not None
        entry = OtEntry(epoch=self._source.mark.epoch, watermark_us=watermark_us, ended=ended)
        entry.outputs.add(edge=INPUT.edge, partition=0, sequence=self._source.sequences[INPUT])
        (await self.stores.store("in")).publish(UPSTREAM, entry)

    @asynccontextmanager
    async def map_lane(
        self,
        stream: MapStream,
        routes: Sequence[Route],
        *,
        policy: RetryPolicy = STOP,
        backpressure: Backpressure | None = None,
        dead_letter: Sequence[Route] = (),
        slice_records_max: int | None = None,
        concurrency: int = 0,
    ) -> AsyncIterator[VertexLane]:
        """The open lane; run it inside. `concurrency`: what the function says of itself."""
        router = Router(routes, dead_letter)
        committer = await self.committer(LANE, router, backpressure)
        self.input = lane_input = LaneInput(INPUT, [UPSTREAM], back_edge=False)
        tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
        store = await self.stores.store(LANE.vertex)
        core = LaneCore(LANE, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
        needs_tags = router.needs_tags
        stage = stage_of(stream, policy, dead_letter=bool(dead_letter), tags=needs_tags, concurrency=concurrency)
        async with self._lane_of(core, router, stage, lane_input, slice_records_max) as lane:
            yield lane

    @asynccontextmanager
    async def stage_lane(
        self, stage: Stage, routes: Sequence[Route], clock: Clock, dead_letter: Sequence[Route] = ()
    ) -> AsyncIterator[VertexLane]:
        """The open lane of any stage."""
        router = Router(routes, dead_letter)
        committer = await self.committer(LANE, router)
        self.input = lane_input = LaneInput(INPUT, [UPSTREAM], back_edge=False)
        tracker = Tracker(pieces_max=limits.FRAMES_IN_FLIGHT_MAX, bytes_max=limits.BYTES_IN_FLIGHT_MAX)
        store = await self.stores.store(LANE.vertex)
        before = await store.take_over(LANE, committer.mark.epoch)
        published_us = START_OF_TIME_US if before is None else before.watermark_us
        core = LaneCore(LANE, committer, store, Telemetry(), clock, tracker, watermarks=True, published_us=published_us)
        async with self._lane_of(core, router, stage, lane_input, None) as lane:
            yield lane

    @asynccontextmanager
    async def _lane_of(
        self, core: LaneCore, router: Router, stage: Stage, lane_input: LaneInput, records_max: int | None
    ) -> AsyncIterator[VertexLane]:
        committer, upstream = core.committer, await self.ledger("in")
        start = Position(committer.mark.sequence, committer.mark.record_index)
        reading = open_buffer_reader(
            upstream, INPUT, start, lane_input, witnesses=from_messages(committer.mark.read), in_parts=True
        )
        async with reading as reader, asyncio.TaskGroup() as tasks:
            self.trimmer = trimmer = Trimmer(upstream.trim)
            beside = (follow(await self.stores.store("in"), [lane_input.observe]), trimmer.run())
            background = [tasks.create_task(one) for one in beside]
            step = Step(LANE, stage, router, core.telemetry, core.counters)
            stages = Stages([step], ToBuffers(core, router), core.clock)
            if router.piece.records < limits.FRAME_RECORDS_MAX:
                records_max = min(router.piece.records, records_max or router.piece.records)
            buffer_input = BufferInput(core, reader, lane_input, trimmer)
            paced = bool(stages.concurrencies)
            yield VertexLane(
                core, buffer_input, stages, paced=paced, may_grow=True, leaves=False, records_max=records_max
            )
            for task in background:
                task.cancel()
            await trimmer.finish()

    async def mark(self, lane: LaneId = LANE) -> mark_pb2.Mark:
        stored = await (await self.ledger(lane.vertex)).mark(lane)
        assert stored is not None
        return stored.mark

    async def account(self, lane: LaneId = LANE) -> Account:
        return Account.from_message((await self.mark(lane)).account)

    async def stored(self, buffer: BufferId, vertex: str = "map") -> list[Frame]:
        """Every frame in a buffer."""
        frames = await (await self.ledger(vertex)).peek(buffer, 0, 100_000)
        return [part for frame in frames for part in frames_in(frame.data)]

    async def values(self, buffer: BufferId, vertex: str = "map") -> list[bytes]:
        return [value for frame in await self.stored(buffer, vertex) for value in frame.values()]


@asynccontextmanager
async def open_rig(*, hard_frames_max: int = limits.BUFFER_FRAMES_MAX) -> AsyncIterator[Rig]:
    faults = Faults()
    async with (
        open_memory_broker("p", faults) as broker,
        open_memory_ot_stores(OtMemory(), "p", publish_interval_s=0.001) as stores,
    ):
        yield Rig(broker, faults, stores, hard_frames_max)


def source_lane(
    core: LaneCore,
    source: SourceLane,
    router: Router,
    output: Output,
    *,
    steps: Sequence[Step] = (),
    transformer: MapStage | None = None,
    watermark: SourceWatermark | None = None,
    seen: SeenIds | None = None,
    bound: FutureBound | None = None,
    call_records_max: int | None = None,
) -> VertexLane:
    """The lane of a source. `steps`: of the vertices that follow in its chain."""
    where = f"/{core.lane}"
    stage: Stage = transformer or EventTimes(bound, where)
    timed_as = "transformer" if transformer is not None else ""
    own = Step(core.lane, stage, router, core.telemetry, core.counters, is_source=True, timed_as=timed_as)
    stages = Stages([own, *steps], output, core.clock)
    unreadable = Unreadable(core.lane, OnFailure.STOP, router, core.clock)
    lane_input = SourceInput(core, source, watermark or SourceWatermark(), seen, unreadable, stages, bound=bound)
    return VertexLane(
        core,
        lane_input,
        stages,
        paced=bool(steps),
        may_grow=transformer is not None or bool(steps),
        leaves=source.replayable,
        records_max=min(lane_input.read_max.records, call_records_max or lane_input.read_max.records),
    )
