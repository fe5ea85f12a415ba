"""A map as one step: calls its function with a frame, and passes the output on, to buffers or to the next vertex in its
chain.

    frame ─► function ─► account ─┬─► outputs ──► outlet: ToBuffers (routing), or ToNext: the next step, in memory
                                  └─► dead letters ─► routing

Above it: the map lane, which has one step or a chain of them, and the source lane, whose outlet may be one. Below it:
the mapper and the router. A step has no effect of its own: only the commit of the last step's output counts, so steps
may run any number of times for the same records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from millstream.account import Account
from millstream.clock import Clock
from millstream.frame import Frame
from millstream.naming import Origin
from millstream.record import BufferId, LaneId
from millstream.telemetry.telemetry import Telemetry
from millstream_reader.buffer import late_records
from millstream_udf import columns
from millstream_vertex.lane import LaneCounters
from millstream_vertex.mapping import Mapper
from millstream_writer.committer import Delivered, Passed
from millstream_writer.routing import Router, Tags, cut


@dataclass(frozen=True, slots=True)
class Lineage:
    """The names of the records in a frame. Each is named after the record of the chain's input that it was made from,
    so it has the same name at every attempt, however the input is cut."""

    prefix: str = ""
    """Prefix of the numbers: "<sequence>/" of the stored frame; empty after a source, which numbers records."""
    first: int = 0
    """Number of the first record, if the records are consecutive."""
    names: Sequence[str] | None = None
    """The name of each record, if they are not consecutive."""
    source_position: str = ""
    """See `Origin`."""
    run: str = ""

    def origin(self, lane: LaneId) -> Origin:
        """The origin of the records, for the function that gets them in that lane."""
        here = f"{lane.vertex}/{lane.input}/{lane.partition}/{self.prefix}"
        return Origin(here, self.first, self.source_position, self.run, self.names or ())

    def part(self, start: int, records: int) -> Lineage:
        """The lineage of `records` records from index `start`."""
        if self.names is not None:
            return replace(self, names=self.names[start : start + records])
        return replace(self, first=self.first + start)

    def taken(self, indexes: Sequence[int]) -> Lineage:
        """The lineage of the records at these indexes."""
        return replace(self, names=[self._name(index) for index in indexes])

    def children(self, parents: Sequence[int] | None, step: int) -> Lineage:
        """The lineage of the outputs that step number `step` has made from these records.

        `parents`: index of the parent of each output; None if each record has one output, in order. The first output of
        a record has the name of the record. The names of the others end with the step and their number.
        """
        if parents is None:
            return self
        if self.names is None and list(parents) == list(range(parents[0], parents[0] + len(parents))):
            return self.part(parents[0], len(parents))
        names: list[str] = []
        counts: Counter[int] = Counter()
        for parent in parents:
            name, count = self._name(parent), counts[parent]
            counts[parent] += 1
            names.append(f"{name}+{step}.{count}" if count else name)
        return replace(self, names=names)

    def _name(self, index: int) -> str:
        return self.names[index] if self.names is not None else str(self.first + index)


@dataclass(slots=True)
class Left:
    """What happened to a frame that has left a vertex."""

    frames: list[tuple[BufferId, Frame]] = field(default_factory=list)
    unrouted: int = 0
    """Records that matched no edge's condition."""
    passed: Sequence[Passed] = ()
    """What passed through the vertices that follow in the chain."""
    delivered: list[Delivered] | None = None
    """Frames for the sink at the end of the chain; None if the chain has no sink."""
    seconds: float = 0.0
    """Time that the functions of these vertices took."""


class Outlet(Protocol):
    """The destination of a vertex's outputs."""

    async def take(
        self, frame: Frame, tags: Tags | None, lineage: Lineage, parents: Sequence[int] | None, watermark_us: int
    ) -> Left:
        """`lineage`: the lineage of the vertex's inputs; `parents`: see `Lineage.children`. Names cost time, so only an
        outlet that needs them makes them from these two."""
        ...

    def nothing(self) -> Left:
        """The result for no records."""
        ...

    @property
    def concurrencies(self) -> Sequence[int]:
        """The concurrency of each function that follows; 0 if it is unknown."""
        ...

    @property
    def takes_arrow(self) -> bool:
        """Whether frames may have Arrow columns in place of values."""
        ...


class ToBuffers:
    """Routes outputs to buffers, at the end of a chain or of a vertex without a chain."""

    def __init__(self, router: Router, *, takes_arrow: bool = False) -> None:
        """`takes_arrow`: whether the buffers may hold frames with Arrow columns, and their readers take them."""
        self._router = router
        self._takes_arrow = takes_arrow

    async def take(
        self, frame: Frame, tags: Tags | None, lineage: Lineage, parents: Sequence[int] | None, watermark_us: int
    ) -> Left:
        """Raises `UdfError` for Arrow columns that cannot be read: what is stored can be."""
        frame.check_arrow()
        routed = self._router.route(frame, tags)
        return Left(routed.frames, routed.unrouted)

    def nothing(self) -> Left:
        return Left()

    @property
    def concurrencies(self) -> Sequence[int]:
        return ()

    @property
    def takes_arrow(self) -> bool:
        return self._takes_arrow


class ToSink:
    """Collects outputs for the sink at the end of a chain, which gets the records before the commit."""

    def __init__(self, lane: LaneId, number: int) -> None:
        """`number`: the sink's place in the chain."""
        self._lane = lane
        self._number = number

    async def take(
        self, frame: Frame, tags: Tags | None, lineage: Lineage, parents: Sequence[int] | None, watermark_us: int
    ) -> Left:
        lineage = lineage.children(parents, self._number - 1)
        prefix = lineage.origin(self._lane).id_prefix
        account = Account(input_bytes=frame.size, late=late_records(frame, watermark_us))
        left = Left(passed=[Passed(frame.records, frame.size, account)], delivered=[])
        assert left.delivered is not None
        start = 0
        for piece in cut(frame):
            part = lineage.part(start, piece.records)
            start += piece.records
            if part.names is not None and not piece.ids_column:
                ids = columns.pack_bytes([f"{prefix}{name}".encode() for name in part.names])
                left.delivered.append(Delivered(replace(piece, ids_column=ids), prefix, part.first))
            else:
                left.delivered.append(Delivered(piece, prefix, part.first))
        return left

    def nothing(self) -> Left:
        return Left(passed=[Passed()], delivered=[])

    @property
    def concurrencies(self) -> Sequence[int]:
        return ()

    @property
    def takes_arrow(self) -> bool:
        return False


class ToNext:
    """Passes outputs to the vertex that follows in the chain."""

    def __init__(self, step: MapStep) -> None:
        self._step = step

    async def take(
        self, frame: Frame, tags: Tags | None, lineage: Lineage, parents: Sequence[int] | None, watermark_us: int
    ) -> Left:
        """`tags` has no effect: it is for edges with conditions, and this edge has none."""
        lineage = lineage.children(parents, self._step.number - 1)
        left, passed = self._step.behind(), Passed(frame.records, frame.size)
        behind = list(left.passed)
        start = 0
        # A function gets no larger frames than it would read from a buffer.
        for piece in cut(frame):
            stepped = await self._step.take(piece, lineage.part(start, piece.records), watermark_us=watermark_us)
            stepped.account.input_bytes = piece.size
            start += piece.records
            passed.account.add(stepped.account)
            for total, more in zip(behind, stepped.passed, strict=True):
                total.add(more)
            left.frames += stepped.frames
            if left.delivered is not None:
                left.delivered += stepped.delivered or ()
            left.seconds += stepped.seconds
        left.passed = [passed, *behind]
        return left

    def nothing(self) -> Left:
        behind = self._step.behind()
        behind.passed = [Passed(), *behind.passed]
        return behind

    @property
    def concurrencies(self) -> Sequence[int]:
        return self._step.concurrencies

    @property
    def takes_arrow(self) -> bool:
        return self._step.takes_arrow


@dataclass(slots=True)
class Stepped:
    """What happened to a frame in a step, and in the vertices that follow it in the chain."""

    account: Account
    """The account of the step itself; the caller sets `input_bytes`."""
    frames: list[tuple[BufferId, Frame]]
    passed: Sequence[Passed]
    delivered: list[Delivered] | None
    seconds: float
    """Time that the functions of the step and of the following vertices took."""


class MapStep:
    """The map of one vertex, for one lane."""

    def __init__(
        self,
        lane: LaneId,
        mapper: Mapper,
        router: Router,
        outlet: Outlet,
        *,
        telemetry: Telemetry,
        counters: LaneCounters,
        clock: Clock,
        number: int = 0,
    ) -> None:
        """`router`: the vertex's router, for its dead letters; `outlet`: the destination of its outputs. `number`: its
        place in the chain."""
        self.lane = lane
        self._mapper = mapper
        self._router = router
        self._outlet = outlet
        self._telemetry = telemetry
        self._counters = counters
        self._clock = clock
        self.number = number

    @property
    def concurrencies(self) -> Sequence[int]:
        """The concurrency of the step's function, and of each that follows; 0 if it is unknown."""
        return (self._mapper.concurrency, *self._outlet.concurrencies)

    @property
    def takes_arrow(self) -> bool:
        """Whether the step's function takes frames with Arrow columns in place of values."""
        return self._mapper.takes_arrow

    def behind(self) -> Left:
        """The result for no records in the vertices that follow."""
        return self._outlet.nothing()

    async def take(self, frame: Frame, lineage: Lineage, *, watermark_us: int, sequence: int = 0) -> Stepped:
        """Process the records of a frame. Raises the same errors as `Mapper.map`."""
        started = self._clock.monotonic_s()
        with self._telemetry.span(
            "millstream.map",
            parent=frame.traceparent,
            lane=self.lane.key,
            records=frame.records,
            sequence=sequence,
        ) as span:
            mapped = await self._mapper.map(
                frame,
                watermark_us=watermark_us,
                traceparent=span.traceparent,
                origin=lineage.origin(self.lane),
            )
        seconds = self._clock.monotonic_s() - started
        self._telemetry.observe_processing("udf", seconds)
        self._counters.retries += mapped.retries
        self._counters.udf_errors += mapped.errors
        self._counters.busy_s += seconds
        account = mapped.account
        account.late = late_records(frame, watermark_us)
        left = self._outlet.nothing()
        if mapped.frame is not None:
            output = mapped.frame.traced(span.traceparent) if span.traceparent else mapped.frame
            left = await self._outlet.take(output, mapped.tags, lineage, mapped.parents, watermark_us)
        account.unrouted = left.unrouted
        frames = left.frames
        if mapped.dead_letters is not None:
            frames = frames + self._router.route_dead_letter(mapped.dead_letters).frames
        return Stepped(account, frames, left.passed, left.delivered, seconds + left.seconds)
