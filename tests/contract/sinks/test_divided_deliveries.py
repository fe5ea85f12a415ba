"""Deliveries of a chain that end the process of their sink: whoever dies at whatever step, each record is in the target
once, and only those that are the cause go where the policy says.

The lane, the delivery and the commits are the real ones. The sink's function is one in memory, whose process ends at
any call, by its own doing or from outside, before or after the call had its effect.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from millstream import codes
from millstream.account import Account, account_of
from millstream.clock import SystemClock
from millstream.compression import Compression
from millstream.errors import UdfError
from millstream.frame import Frame, frame_of_records
from millstream.ledger.protocol import Commit, Ledger, Receipt
from millstream.limits import MIB, PREPARED_BYTES_MAX
from millstream.record import LaneId, Position, Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.telemetry.telemetry import Telemetry
from millstream.udf.answers import Outcome, Result, SinkAnswer
from millstream.udf.endings import Ending, LostCall
from millstream.udf.lives import Lives
from millstream.udf.protocol import StreamName, UdfClient
from millstream.udf.streams import SinkFencedError, StreamLostError
from millstream_connectors.user_defined.sink import position_lane
from millstream_connectors.user_defined.sink.position_lane import open_position_lane
from millstream_reader.tracker import Tracker
from millstream_vertex.core import LaneCore
from millstream_vertex.publishing import LaneCounters
from millstream_vertex.to_sink import ChainDeliverer, ChainSink, held_instead, recover
from millstream_writer.committer import Committer, Member, MemberCounts, SinkRecords, Unit
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.routing import Router
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WholeLane, WriteResult
from tests.contract.sinks.file_target import sink_owner
from tests.support.errors import raises
from tests.support.sizes import sized
from tests.unit.vertex.lane_rig import UPSTREAM, Rig, open_backpressure, open_rig

OUT = LaneId("out", "in-out", 0)
MEMBERS = [Member("out", "in-out", frozenset())]
DEADLY = ("write", "flush")
OWN = Ending("exited with code 4", own=True, tail="the last line")
OUTSIDE = Ending("was killed by SIGKILL", own=False)


class Killed(Exception):
    """The process of the lane is killed here."""


@dataclass
class Chance:
    """What may happen at each step."""

    rng: random.Random
    killed: float = 0.0
    """How likely the lane's process is killed at a commit or call."""
    function_killed: float = 0.0

    def may_kill(self) -> None:
        if self.rng.random() < self.killed:
            raise Killed


@dataclass
class Database:
    """What the function writes to."""

    values: list[bytes] = field(default_factory=list)
    position: bytes = b""
    epoch: int = 0


class Function:
    """A sink that keeps positions. A value with "kind" `write` or `flush` ends its process there. `check` refuses one
    with `refused`, and one with `fickle` sometimes."""

    def __init__(self, chance: Chance) -> None:
        self.lives = Lives()
        self.lives.begin()
        self.database = Database()
        self.obeys = True
        """Whether values can end its process."""
        self.deaths: Counter[int] = Counter()
        """How often the process ended by its own doing, by the number of records."""
        self._chance = chance

    @asynccontextmanager
    async def open_position_sink(self, name: StreamName) -> AsyncIterator[Stream]:
        yield Stream(self, self._chance)

    def die(self, ending: Ending) -> None:
        self.lives.end(ending)
        self.lives.begin()


class Stream:
    """See `PositionSinkStream`."""

    checks = True

    def __init__(self, function: Function, chance: Chance) -> None:
        self._function = function
        self._chance = chance
        self._life = function.lives.number
        self._is_alone = False
        self._epoch = 0
        self._rows: list[bytes] = []

    @asynccontextmanager
    async def alone(self, records: int) -> AsyncIterator[None]:
        async with self._function.lives.alone(records):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False

    def cause(self, lost: LostCall) -> Ending | None:
        return self._function.lives.cause(lost)

    async def open(self, lane: str, epoch: int) -> bytes:
        with self._call():
            database = self._function.database
            if database.epoch >= epoch:
                raise SinkFencedError("another owner", database.position)
            database.epoch = self._epoch = epoch
            self._rows = []
        return database.position

    async def check(self, frame: Frame, **more: object) -> SinkAnswer:
        with self._call():
            refused = [row for row, value in enumerate(frame.values()) if self._refuses(kind_of(value))]
        return SinkAnswer([Outcome(row, Result.DEAD_LETTER, "refused") for row in refused])

    async def write(self, frame: Frame, **more: object) -> None:
        with self._call():
            self._rows += frame.values()
            self._obey("write")

    async def flush(self, position: bytes) -> None:
        with self._call():
            self._obey("flush")
            database = self._function.database
            if database.epoch != self._epoch:
                raise SinkFencedError("another owner", database.position)
            database.values += self._rows
            database.position = position
            self._rows = []

    def _refuses(self, kind: str) -> bool:
        return kind == "refused" or (kind == "fickle" and self._chance.rng.random() < 0.5)

    def _obey(self, step: str) -> None:
        if self._function.obeys and any(kind_of(value) == step for value in self._rows):
            self._function.deaths[len(self._rows)] += 1
            self._die(OWN)

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._chance.may_kill()
        self._may_die()
        yield
        # The call has had its effect, and its answer is lost.
        self._may_die()
        self._chance.may_kill()

    def _may_die(self) -> None:
        if self._life != self._function.lives.number:
            raise StreamLostError("it has ended", LostCall(self._life, alone=False, broke=True))
        if self._chance.rng.random() < self._chance.function_killed:
            self._die(OUTSIDE)

    def _die(self, ending: Ending) -> None:
        alone = self._is_alone and self._function.lives.is_cause_alone(self._life)
        self._function.die(ending)
        raise StreamLostError("it has ended", LostCall(self._life, alone, broke=True))


class KilledLedger:
    """A ledger whose user may be killed before or after a commit."""

    def __init__(self, ledger: Ledger, chance: Chance) -> None:
        self._ledger = ledger
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, commit: Commit) -> Receipt:
        self._chance.may_kill()
        receipt = await self._ledger.commit(commit)
        self._chance.may_kill()
        return receipt


class Fallback(UnkeptLane):
    def __init__(self) -> None:
        self.values: list[bytes] = []

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        self.values += [value for item in frames for value in item.frame.values()]
        return WriteResult()


def kind_of(value: bytes) -> str:
    kind: str = json.loads(value[: value.index(b"}") + 1])["kind"]
    return kind


class Chain:
    """A source of numbers, a function that makes other outputs of them at each attempt, and the sink."""

    def __init__(self, rig: Rig, chance: Chance, *, kinds: Sequence[str], on_failure: OnFailure) -> None:
        """`kinds`: of the outputs of each input; an output whose number is too high is `ok`."""
        self.rig = rig
        self.chance = chance
        self.kinds = kinds
        self.function = Function(chance)
        self.fallback = Fallback()
        self.attempts = 0
        self.acknowledged = 0
        self.policy = RetryPolicy(Backoff(0.0, steps=1), on_failure)

    def outputs(self, number: int, attempt: int) -> list[bytes]:
        rng = random.Random(f"{number}/{attempt}")
        count = rng.choice([0, 1, 1, 2, 5])
        bad = rng.randrange(count) if count else 0
        made = []
        for copy in range(count):
            kind = self.kinds[number] if copy == bad else "ok"
            made.append({"number": number, "attempt": attempt, "copy": copy, "of": count, "kind": kind})
        return [json.dumps(one).encode() for one in made]

    def units(self, start: int) -> Iterator[Unit]:
        """Those of the inputs from this one on, as they come at this attempt."""
        while start < len(self.kinds):
            stop = min(len(self.kinds), start + self.chance.rng.randrange(1, 8))
            values = [value for number in range(start, stop) for value in self.outputs(number, self.attempts)]
            yield unit_of(start, stop, values, whole=self.chance.rng.random() < 0.5)
            start = stop

    async def run(self) -> None:
        """One owner, from the mark to the end or until it is killed."""
        committer = await self.taken_over()
        mark = committer.mark
        owner = sink_owner(mark.epoch, start=Position(mark.delivered), held_instead=held_instead(committer))
        owner = replace(owner, whole=True, client=cast("UdfClient", self.function))
        async with open_position_lane(cast("UdfClient", self.function), owner) as primary:
            assert isinstance(primary, WholeLane)
            await recover(committer, await primary.reach(), "p/out")
            await self.deliver(committer, primary)

    async def taken_over(self) -> Committer:
        self.attempts += 1
        ledger = await self.rig.ledger("in")
        taken_over = await ledger.take_over(UPSTREAM, "test")
        killed = cast("Ledger", KilledLedger(ledger, self.chance))
        room = open_backpressure([])
        return Committer(
            killed, UPSTREAM, taken_over, {}, Router([]), room, compression=Compression.NONE, members=MEMBERS
        )

    async def deliver(self, committer: Committer, primary: SinkLane) -> None:
        store = await self.rig.stores.store("in")
        tracker = Tracker(pieces_max=1000, bytes_max=64 * MIB)
        core = LaneCore(UPSTREAM, committer, store, Telemetry(), SystemClock(), tracker, watermarks=True)
        delivery = Delivery(
            primary,
            self.fallback if self.policy.on_failure is OnFailure.FALLBACK else None,
            self.policy,
            DeliveryLimits(),
            where="p/out/in-out.0",
            rng=self.chance.rng,
            stop_error=UdfError,
        )
        kept = primary if isinstance(primary, WholeLane) else None
        target = ChainSink(OUT, delivery, kept, core.telemetry, LaneCounters(), core.clock)
        output = ChainDeliverer(core, target)
        # As a source: a former owner may have been killed before it did that.
        self.acknowledged = int(committer.mark.position or 0)
        core.units.add_done([*self.units(self.acknowledged)])
        core.units.close()

        async def acknowledge(units: Sequence[Unit]) -> None:
            self.acknowledged = int(committer.mark.position)

        await output.run(lambda units: 0, acknowledge, prompt=False)
        assert output.is_empty
        assert delivery.statistics().unsettled_records == 0

    async def run_to_the_end(self) -> None:
        while True:
            try:
                await self.run()
                return
            except* Killed:
                self.function.die(OUTSIDE)

    async def account(self) -> Account:
        return account_of("out", UPSTREAM, await self.rig.mark(UPSTREAM))

    async def check(self) -> None:
        """Every record of one answer for each input is in the target once, in order, or was set aside."""
        mark = await self.rig.mark(UPSTREAM)
        assert (mark.account.inputs, self.acknowledged) == (len(self.kinds), len(self.kinds))
        assert (len(mark.undelivered), mark.undelivered_records) == (0, 0)
        account = await self.account()
        (written,) = mark.written
        assert account.difference == 0
        assert account.inputs == written.records
        values, aside = self.function.database.values, {*self.fallback.values}
        assert account.processed - account.fallback == len(values)
        rows = [json.loads(value) for value in values]
        found = iter(rows)
        for number, kind in enumerate(self.kinds):
            attempts = {row["attempt"] for row in rows if row["number"] == number}
            assert len(attempts) <= 1
            for attempt in attempts:
                outputs = [json.loads(value) for value in self.outputs(number, attempt)]
                taken = [row for row in rows if row["number"] == number]
                assert [next(found) for _ in taken] == taken
                assert all(row["kind"] in ("ok", "fickle") for row in taken)
                left = [row for row in outputs if row not in taken]
                assert [row for row in outputs if row in taken] == taken
                assert all(row["kind"] != "ok" for row in left)
                if self.policy.on_failure is OnFailure.FALLBACK:
                    assert {json.dumps(row).encode() for row in left} <= aside
            if not attempts:
                assert kind != "ok" or any(not self.outputs(number, attempt) for attempt in range(self.attempts + 1))
        assert next(found, None) is None
        assert all(kind_of(value) != "ok" for value in aside)
        if not self.chance.killed:
            assert account.fallback == len(self.fallback.values)


def unit_of(start: int, stop: int, values: Sequence[bytes], *, whole: bool) -> Unit:
    """`whole`: its outputs are in one frame."""
    passed, pieces = (
        MemberCounts(len(values), sum(map(len, values))),
        [values] if whole else [[value] for value in values],
    )
    delivered = [
        SinkRecords(frame_of_records([Record(value, 0) for value in piece], ingest_time_us=0), f"in/s/{start}/", row)
        for row, piece in enumerate(pieces)
        if piece
    ]
    account = Account(inputs=stop - start, processed=stop - start, outputs=len(values))
    return Unit(
        source_position=b"%d" % stop,
        account=account,
        passed=[passed],
        delivered=delivered,
        pieces=0,
        size=sum(one.frame.size for one in delivered),
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_lane, "SIDECAR_BACKOFF_FIRST_S", 0.0)
    monkeypatch.setattr(position_lane, "SIDECAR_BACKOFF_LAST_S", 0.0)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with open_rig() as opened:
        yield opened


POLICIES = (OnFailure.DROP, OnFailure.FALLBACK)


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("killed", [False, True], ids=["its function", "anything"])
async def test_whatever_dies_each_record_is_in_the_target_once(*, killed: bool) -> None:
    for seed in range(sized(8, 400)):
        rng = random.Random(f"{seed}/{killed}")
        kinds = rng.choices(["ok", "write", "flush", "refused", "fickle"], [20, 1, 1, 1, 1], k=rng.randrange(1, 60))
        chance = Chance(rng, killed=rng.choice([0.003, 0.01]) if killed else 0.0, function_killed=rng.choice([0, 0.02]))
        async with open_rig() as rig:
            chain = Chain(rig, chance, kinds=kinds, on_failure=rng.choice(POLICIES))
            await chain.run_to_the_end()
            await chain.check()


QUIET = 0
"""Seed of the cases without kills."""


def values_of(chain: Chain) -> list[int]:
    """The inputs that the target has records of, in order."""
    numbers = [json.loads(value)["number"] for value in chain.function.database.values]
    return list(dict.fromkeys(numbers))


@pytest.mark.guarantee("I1", "I2")
async def test_a_record_is_given_up_after_three_deaths_alone(rig: Rig) -> None:
    kinds = ["ok"] * 200 + ["flush"] + ["ok"] * 100
    chain = Chain(rig, Chance(random.Random(QUIET)), kinds=kinds, on_failure=OnFailure.DROP)
    # The input has one output at least.
    chain.attempts = next(attempt for attempt in range(100) if chain.outputs(200, attempt + 1))
    await chain.run()
    await chain.check()
    assert (await chain.account()).dropped == {"function failed": 1}
    deaths = chain.function.deaths
    assert deaths[1] == 3
    # The whole delivery ends it twice, because another call might be in flight the first time.
    assert deaths.total() - deaths[1] <= 1 + math.ceil(math.log2(max(deaths)))


@pytest.mark.guarantee("I1", "I2")
async def test_a_lane_that_stops_at_the_record_goes_on_with_it(rig: Rig) -> None:
    kinds = ["ok"] * 20 + ["flush"] + ["ok"] * 10
    chain = Chain(rig, Chance(random.Random(QUIET)), kinds=kinds, on_failure=OnFailure.STOP)
    chain.attempts = next(attempt for attempt in range(100) if chain.outputs(20, attempt + 1))
    for _ in range(2):
        with raises(codes.SINK_FUNCTION_FAILED, "3 attempts: function failed: its process exited with code 4"):
            await chain.run()
        assert max(values_of(chain)) <= 20
        mark = await rig.mark(UPSTREAM)
        # The mark keeps the record, with those after it.
        (written,) = mark.written
        assert mark.undelivered_records == written.records - len(chain.function.database.values) > 0
    # The function is fixed.
    chain.function.obeys = False
    await chain.run()
    assert values_of(chain) == sorted({*values_of(chain)})
    account, (written,) = await chain.account(), (await rig.mark(UPSTREAM)).written
    assert account.inputs == account.processed == written.records == len(chain.function.database.values)


@pytest.mark.guarantee("I1")
async def test_what_a_mark_keeps_goes_to_a_target_without_positions_too(rig: Rig) -> None:
    kinds = ["ok"] * 10 + ["flush"] + ["ok"] * 10
    chain = Chain(rig, Chance(random.Random(QUIET)), kinds=kinds, on_failure=OnFailure.STOP)
    chain.attempts = next(attempt for attempt in range(100) if chain.outputs(10, attempt + 1))
    with raises(codes.SINK_FUNCTION_FAILED, "3 attempts"):
        await chain.run()
    mark, before = await rig.mark(UPSTREAM), len(chain.function.database.values)
    left = mark.undelivered_records
    other = Fallback()
    await chain.deliver(await chain.taken_over(), other)
    mark, (written,) = await rig.mark(UPSTREAM), (await rig.mark(UPSTREAM)).written
    assert len(other.values) == written.records - before >= left > 0
    assert (len(mark.undelivered), mark.undelivered_records) == (0, 0)


@pytest.mark.guarantee("I1")
async def test_a_delivery_that_no_mark_can_keep_stops_the_lane(rig: Rig) -> None:
    """One input has become more than a mark holds."""
    chain = Chain(rig, Chance(random.Random(QUIET)), kinds=["ok"], on_failure=OnFailure.DROP)
    large = b" " * (PREPARED_BYTES_MAX // 2)
    values = [json.dumps({"kind": kind}).encode() + large for kind in ("ok", "flush", "ok")]
    chain.units = lambda start: iter([unit_of(0, 1, values, whole=False)])  # type: ignore[method-assign]
    with raises(codes.SINK_FUNCTION_FAILED, "code 4, in a transaction of 3 records, from in/s/0/0 to in/s/0/2"):
        await chain.run()
    assert chain.function.database.values == []
    assert not (await rig.mark(UPSTREAM)).position
