"""The world outside a simulated pipeline: what its sources give, what its functions do, what its sinks have received.

Every record says where it comes from. A value is the way it came: `a.0#12` is record 12 of split 0 of source a;
`a.0#12/fan:1!7` is output 1 that the map fan made of it, in its call number 7. A function answers differently at each
call, so that two answers to one record can be told apart.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from millstream import codes
from millstream.errors import RetryLaterError
from millstream.frame import Frame, build_frame
from millstream.spec.protocols import FunctionKind
from millstream.statistics import SidecarStatistics
from millstream.udf.answers import MapAnswer, Outcome, ReadBatch, Result, SinkAnswer
from millstream.udf.protocol import Connection, Description, StreamName, UdfClient
from millstream.udf.streams import MapStream, PositionSinkStream, SinkStream, SourceStream
from millstream_udf import columns
from millstream_worker.programs import Programs
from tests.simulation.history import Violation
from tests.simulation.kept import SimPositionSink, Table, Way

BASE_US = 1_700_000_000_000_000
"""Event times and the wall clock begin here."""
KEYS = ("ada", "bob", "eve")
CALLS_MAX = 3
KEEP = ("keeps", "refuses")
"""Behaviours of sinks that keep positions; the second refuses records."""


@dataclass(frozen=True, slots=True)
class Given:
    """A record of a source."""

    value: bytes
    key: str
    time_us: int
    record_id: str
    """Empty where the source gives none."""
    arrives_s: float


@dataclass(slots=True)
class Split:
    """One split of a source: what it will give, and what it has heard."""

    records: list[Given]
    gives_ids: bool
    ends_s: float = 0.0
    """When it ends, if it has given everything by then."""
    acknowledged: int = 0


@dataclass(slots=True)
class Target:
    """What a sink lane has received."""

    values: dict[str, bytes] = field(default_factory=dict)
    """By record id."""
    deliveries: int = 0
    delivered_again: bool = False
    """What a ledger was set back behind may have been delivered and not be in any mark: then others have its ids."""


@dataclass(frozen=True, slots=True)
class Temper:
    """How functions behave."""

    pause_s: float = 0.001
    failing: float = 0.0
    """Share of calls in which one record fails."""


class Outside:
    """All of it."""

    def __init__(self, rng: random.Random, temper: Temper, now_s: Callable[[], float]) -> None:
        self.rng = rng
        self.temper = temper
        self.now_s = now_s
        self.splits: dict[tuple[str, int], Split] = {}
        self.targets: dict[str, Target] = defaultdict(Target)
        """By sink vertex."""
        self.tables: dict[str, Table] = defaultdict(Table)
        """The targets that keep positions, by sink vertex."""
        self.way: Way | None = None
        """To these; None where there are none."""
        self.away_since_s: float | None = None
        """Since when sources cannot be read; None: they can."""
        self.calls = 0

    def pause_s(self) -> float:
        return self.temper.pause_s * 2 * self.rng.random() * (20 if self.rng.random() < 0.05 else 1)


def answers_of(behaviour: str, value: bytes) -> Sequence[tuple[int, tuple[bytes, ...]]] | str:
    """What a function makes of a record: outputs with their tags, or "dead" or "drop"."""
    chance = zlib.crc32(value)
    if behaviour == "fan":
        if chance % 23 == 0:
            return "dead"
        if chance % 29 == 0:
            return "drop"
        return [(k, (b"even" if (chance + k) % 2 == 0 else b"odd",)) for k in range(chance % 4)]
    return [(k, ()) for k in range(1 + chance % 4 if behaviour == "several" else 1)]


class SimPrograms(Programs):
    """The programs of one vertex process: functions and endpoints inside the simulation."""

    def __init__(self, outside: Outside, vertex: str, behaviour: str) -> None:
        super().__init__({}, {})
        self._outside = outside
        self._vertex = vertex
        self._behaviour = behaviour

    def client(self, role: str) -> UdfClient | None:
        if role not in ("source", "sink"):
            return None
        connection = SimConnection(self._outside, self._vertex, self._behaviour)
        client = UdfClient(connection, "")
        client.description = connection.description
        return client

    def reduce_address(self, name: StreamName) -> str | None:
        return None

    @asynccontextmanager
    async def _map(self) -> AsyncIterator[MapStream]:
        yield SimMap(self._outside, self._vertex, self._behaviour)

    def open_map(
        self, role: str, kind: FunctionKind, name: StreamName, *, may_return_arrow: bool = False
    ) -> AbstractAsyncContextManager[MapStream]:
        return self._map()

    def statistics(self) -> Mapping[str, SidecarStatistics]:
        return {}


class SimMap:
    """`MapStream`: several calls at once, answered in any order."""

    takes_arrow = False
    calls_max = CALLS_MAX

    def __init__(self, outside: Outside, vertex: str, behaviour: str) -> None:
        self._outside = outside
        self._vertex = vertex.encode()
        self._behaviour = behaviour
        self._calls = asyncio.Semaphore(CALLS_MAX)

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
        async with self._calls:
            await asyncio.sleep(self._outside.pause_s())
        outside = self._outside
        outside.calls += 1
        nonce = b"!%d" % outside.calls
        values = frame.values()
        fails = outside.rng.randrange(len(values)) if outside.rng.random() < outside.temper.failing else None
        made: list[bytes] = []
        parents: list[int] = []
        tags: list[tuple[bytes, ...]] = []
        outcomes: list[Outcome] = []
        for index, value in enumerate(values):
            answer = answers_of(self._behaviour, value)
            if index == fails:
                outcomes.append(_outcome(index, Result.ERROR, "fails now and then"))
            elif answer == "dead":
                outcomes.append(_outcome(index, Result.DEAD_LETTER, "as it should"))
            elif answer == "drop":
                outcomes.append(_outcome(index, Result.DROP, "as it should"))
            else:
                assert not isinstance(answer, str)
                for k, own in answer:
                    made.append(value + b"/" + self._vertex + b":%d" % k + nonce)
                    parents.append(index)
                    tags.append(own)
        return MapAnswer(
            records=len(made),
            values=columns.pack_bytes(made),
            parents=columns.pack_offsets(parents),
            tags=columns.pack_lists(tags) if any(tags) else b"",
            outcomes=outcomes,
        )


def _outcome(index: int, result: Result, reason: str) -> Outcome:
    return Outcome(index, result, reason)


class SimConnection(Connection):
    """The connection to the function of a source or a sink."""

    def __init__(self, outside: Outside, vertex: str, behaviour: str) -> None:
        self._outside = outside
        self._vertex = vertex
        self._behaviour = behaviour
        self.description = Description(
            kinds=frozenset({FunctionKind.SOURCE, FunctionKind.SINK}), keeps_positions=behaviour in KEEP
        )

    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        return self.description

    @asynccontextmanager
    async def open_sink(self, name: StreamName) -> AsyncIterator[SinkStream]:
        yield SimSink(self._outside, self._outside.targets[self._vertex])

    @asynccontextmanager
    async def open_position_sink(self, name: StreamName) -> AsyncIterator[PositionSinkStream]:
        way = self._outside.way
        assert way is not None, "the shape says that its sinks keep positions"
        yield SimPositionSink(way, self._outside.tables[self._vertex], checks=self._behaviour == "refuses")

    @asynccontextmanager
    async def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AsyncIterator[SourceStream]:
        yield SimSource(self._outside, self._outside.splits[self._vertex, partition], position)


class SimSource:
    """`SourceStream` of one split. One that gives ids begins a little before where it should, and repeats itself."""

    def __init__(self, outside: Outside, split: Split, position: bytes) -> None:
        self._outside = outside
        self._split = split
        self._next = int(position or b"0")
        if split.gives_ids:
            self._next = max(0, self._next - outside.rng.randrange(6))

    @property
    def is_away(self) -> bool:
        """Never: a source that cannot be reached raises, and no read waits for its process."""
        return False

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> ReadBatch:
        outside, records = self._outside, self._split.records
        if outside.away_since_s is not None:
            raise RetryLaterError(codes.TARGET_AWAY, "the source cannot be reached")
        is_over = self._next == len(records)
        wait_s = (self._split.ends_s if is_over else records[self._next].arrives_s) - outside.now_s()
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, timeout_s))
            if wait_s > timeout_s:
                return ReadBatch(position=b"%d" % self._next)
        begin = self._next
        while self._next < len(records) and records[self._next].arrives_s <= outside.now_s():
            self._next += 1
            if self._next - begin >= min(records_max, 8):
                break
        taken = records[begin : self._next]
        if self._split.gives_ids and taken and outside.rng.random() < 0.2:
            taken = [*taken, outside.rng.choice(records[: self._next])]
        ended = self._next == len(records) and outside.now_s() >= self._split.ends_s
        return ReadBatch(_frame_of(taken) if taken else None, b"%d" % self._next, ended=ended)

    async def committed(self, position: bytes) -> None:
        self._split.acknowledged = max(self._split.acknowledged, int(position or b"0"))


def _frame_of(records: Sequence[Given]) -> Frame:
    return build_frame(
        [record.value for record in records],
        array("q", [record.time_us for record in records]),
        ingest_time_us=BASE_US,
        keys=[(record.key.encode(),) for record in records],
        ids=[record.record_id.encode() for record in records] if records[0].record_id else None,
    )


class SimSink:
    """`SinkStream`: takes everything, fails now and then after it has taken some."""

    calls_max = CALLS_MAX

    def __init__(self, outside: Outside, target: Target) -> None:
        self._outside = outside
        self._target = target

    async def call(
        self,
        frame: Frame,
        *,
        id_prefix: str,
        first_index: int,
        attempt: int = 0,
        traceparent: str = "",
        alone: bool = False,
    ) -> SinkAnswer:
        await asyncio.sleep(self._outside.pause_s())
        records = frame
        ids = records.ids() or [f"{id_prefix}{first_index + index}" for index in range(records.records)]
        fails = self._outside.rng.random() < self._outside.temper.failing
        for record_id, value in zip(ids, records.values(), strict=True):
            known = self._target.values.get(record_id, value)
            self._target.values[record_id] = value
            if known != value and not self._target.delivered_again:
                raise Violation(f"I1: record {record_id} of a sink was {known!r} and is {value!r}")
            self._target.deliveries += 1
        return SinkAnswer(error="fails now and then" if fails else "")
