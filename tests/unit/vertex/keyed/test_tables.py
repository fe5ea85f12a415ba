"""Tables of a lane and their function: which version a record sees, what is sent of it, and what is committed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import millstream_udf as udf
from millstream import codes
from millstream.account import Account
from millstream.frame import frame_of_records
from millstream.record import Record
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.spec.programs import State, Table
from millstream.spec.tables import TableInput
from millstream.udf.answers import MapAnswer
from millstream.udf.endings import Ending, ProcessEndedError
from millstream.udf.native.messages import entries_message, map_answer_of, update_message
from millstream.udf.states import DeclaredState, StateEntries, StateKind, TableUpdate
from millstream_udf.answering import answer_map, context_of, encode_map
from millstream_udf.defining import define
from millstream_udf.execution import Function, open_function
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.keyed import tables as tables_module
from millstream_vertex.keyed.changelog import Changelog
from millstream_vertex.keyed.image import size_of
from millstream_vertex.keyed.inbox import Inbox
from millstream_vertex.keyed.keys import is_of_table, key_of, parts_of, table_key_of
from millstream_vertex.keyed.stage import KeyedStage
from millstream_vertex.keyed.state import KeyedState
from millstream_vertex.keyed.steps import decode_step
from millstream_vertex.keyed.table_calls import LOST_MAX
from millstream_vertex.keyed.tables import Tables
from millstream_vertex.stage import StageInput, StageResult
from millstream_worker.keyed import fitting
from tests.support.errors import raises
from tests.support.ledgers import SettableClock
from tests.unit.vertex.lane_rig import LANE

RATES, PAYMENTS = "rates-map", "payments-map"
HELLO = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="map", lane="_all.0")


@udf.map
class Enrich:
    """Puts out the rate of its key, how many there are, and how many records of its key it has seen."""

    rates = udf.table(bytes)
    seen = udf.value(int, default=0)

    def process(self, record: udf.Record) -> str:
        self.seen += 1
        return f"{self.rates.get(record.keys[0], b'-').decode()} of {len(self.rates)}, {self.seen}"


class TableStream:
    """The real SDK as the stream of a lane: calls and answers are encoded as on the wire."""

    calls_max = 8
    takes_arrow = False
    takes_tables = True
    tables = ("rates",)

    def __init__(self, opened: Function) -> None:
        self._opened = opened
        self._lane = opened.lane()
        self.updates: list[TableUpdate] = []
        self.ends_at = 0
        """The process ends instead of the answer to this update, counted from here."""
        self.forgets = False
        """The process is another one after each update."""
        self.states: tuple[DeclaredState, ...] = (DeclaredState("seen", StateKind.VALUE, "json"),)

    def restart(self) -> None:
        """As if the process had ended and another one had been started: it has no tables."""
        self._lane = self._opened.lane()

    async def call(self, frame: Any, **options: Any) -> MapAnswer:
        raise AssertionError("its calls have states")

    async def keyed_call(self, frame: Any, states: StateEntries, **options: Any) -> MapAnswer:
        options.pop("meanwhile")()
        call = udf_pb2.SealedMapCall(call_id=1, frame=frame.encode(), states=entries_message(states), **options)
        return await self._answered(call, frame.records)

    async def update_tables(self, update: TableUpdate) -> MapAnswer:
        self.updates.append(update)
        self.ends_at -= 1
        if self.ends_at == 0:
            self.restart()
            raise ProcessEndedError(Ending("was killed", own=True), alone=True)
        answer = await self._answered(udf_pb2.SealedMapCall(call_id=1, table=update_message(update)), 0)
        if self.forgets:
            self.restart()
        return answer

    async def _answered(self, call: udf_pb2.SealedMapCall, records: int) -> MapAnswer:
        data = b"".join(encode_map(await answer_map(self._lane, HELLO, call)))
        return map_answer_of(udf_pb2.SealedMapResponse.FromString(data).answer, records)


class TableLane:
    """The stage of a lane with a table, and what it has committed."""

    def __init__(self, stream: TableStream, size_max: int, edge: str) -> None:
        self.stream = stream
        self.inputs = [TableInput("map", "rates", Table.read({"maxBytes": size_max}), edge, 1)]
        self._steps: list[bytes] = []
        self._states = b""
        self._open()

    def _open(self) -> None:
        """As the next owner: with what is committed."""
        self.state = KeyedState(str(LANE), size_max=1 << 20, key_size_max=1 << 10)
        self.state.stored_states(self._states)
        for data in self._steps:
            self.state.load(decode_step(data))
        self.state.loaded()
        self.tables = Tables("p/map/_all.0", self.state, self.inputs)
        self.state.declare([*self.stream.states, *self.tables.declared()])
        self.tables.open()
        nothing: Any = None
        self.stage = KeyedStage(
            self.stream,
            RetryPolicy(Backoff(0.0, steps=2), OnFailure.STOP),
            state=self.state,
            changelog=Changelog(LANE, nothing, nothing),
            inbox=Inbox(nothing, LANE, nothing),
            clock=SettableClock(),
            by_key=True,
            needs_keys=False,
            tables=self.tables,
            where="p/map/_all.0",
            has_dead_letter=False,
            needs_tags=False,
            rng=random.Random(1),
        )

    def next_owner(self) -> None:
        self.stream.restart()
        self._open()

    async def take(self, edge: str, rows: Iterable[tuple[str, str]]) -> StageResult:
        """Process records, each with its key and value, and commit the result."""
        records = [Record(value.encode(), 0, (key,)) for key, value in rows]
        frame = frame_of_records(records, ingest_time_us=0)
        self.stage.begin()
        result = await self.stage.on_frame(StageInput(frame, 0, edge=edge))
        for _, kept in result.kept:
            self._steps += kept.values()
        self._states = self.stage.state
        return result

    async def rate(self, **rates: str) -> StageResult:
        return await self.take(RATES, rates.items())

    async def pay(self, *keys: str) -> list[str]:
        result = await self.take(PAYMENTS, [(key, "1") for key in keys])
        return [] if result.frame is None else [value.decode() for value in result.frame.values()]


Opening = Callable[..., Any]


@pytest.fixture
async def opened() -> AsyncIterator[Opening]:
    async with AsyncExitStack() as stack:
        definition = define(Enrich, "Enrich")

        async def open_lane(size_max: int = 1 << 20, edge: str = RATES) -> TableLane:
            function = await stack.enter_async_context(open_function(definition, context_of(HELLO)))
            return TableLane(TableStream(function), size_max, edge)

        yield open_lane


def sent(updates: Sequence[TableUpdate]) -> list[Mapping[tuple[bytes, ...], bytes]]:
    return [dict(zip(update.keys, update.values, strict=True)) for update in updates]


@pytest.mark.guarantee("I4", "I12")
async def test_a_record_sees_the_table_as_it_is_in_the_order_of_the_lane(opened: Opening) -> None:
    lane = await opened()
    assert await lane.pay("eur") == ["- of 0, 1"]
    result = await lane.rate(eur="1", gbp="2")
    assert (result.frame, result.account) == (None, Account(inputs=2, processed=2))
    assert await lane.pay("eur", "gbp", "usd") == ["1 of 2, 2", "2 of 2, 1", "- of 2, 1"]
    await lane.take(RATES, [("eur", "3"), ("eur", "4"), ("gbp", "")])
    assert await lane.pay("eur", "gbp") == ["4 of 1, 3", "- of 1, 2"]


@pytest.mark.guarantee("I7", "I12")
async def test_the_next_owner_has_the_table_of_the_last_commit(opened: Opening) -> None:
    rng, lane = random.Random(5), await opened()
    wanted: dict[str, str] = {}
    for number in range(60):
        some = {f"k{rng.randrange(12)}": rng.choice(["", str(number)]) for _ in range(rng.randrange(1, 5))}
        await lane.rate(**some)
        wanted |= some
        wanted = {key: value for key, value in wanted.items() if value}
        if rng.random() < 0.3:
            lane.next_owner()
        key = f"k{rng.randrange(12)}"
        (found,) = await lane.pay(key)
        assert found.startswith(f"{wanted.get(key, '-')} of {len(wanted)}, ")


async def test_a_function_gets_the_whole_table_once_and_then_what_changes(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "TABLE_PIECE_BYTES_MAX", 30)
    lane = await opened()
    await lane.rate(**{f"k{number}": "x" * 9 for number in range(5)})
    await lane.pay("k1")
    # A key takes two bytes more than its parts.
    assert [len(update.keys) for update in lane.stream.updates] == [2, 2, 1]
    assert [update.base for update in lane.stream.updates] == [0, 1, 2]
    lane.stream.updates.clear()
    await lane.pay("k1")
    await lane.rate(k1="x" * 9)
    await lane.pay("k1")
    assert not lane.stream.updates
    await lane.rate(k1="a")
    await lane.rate(k1="b", k2="")
    assert await lane.pay("k1") == ["b of 4, 4"]
    assert sent(lane.stream.updates) == [{(b"k1",): b"b", (b"k2",): b""}]


@pytest.mark.parametrize("ends_at", [0, 1, 2, 3])
async def test_a_function_that_was_restarted_gets_all_of_it_again(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, ends_at: int
) -> None:
    monkeypatch.setattr(tables_module, "TABLE_PIECE_BYTES_MAX", 30)
    lane = await opened()
    await lane.rate(**{f"k{number}": "x" * 9 for number in range(5)})
    await lane.pay("k1")
    lane.stream.restart()
    assert await lane.pay("k4") == ["xxxxxxxxx of 5, 1"]
    lane.stream.restart()
    await lane.rate(k1="changed")
    lane.stream.ends_at = ends_at
    assert await lane.pay("k1", "k4") == ["changed of 5, 2", "xxxxxxxxx of 5, 2"]


async def test_a_function_that_always_loses_its_tables_ends_the_lane(opened: Opening) -> None:
    lane = await opened()
    await lane.rate(eur="1")
    lane.stream.forgets = True
    with raises(codes.FUNCTION_NOT_STARTED, match=f"lost its tables {LOST_MAX} times"):
        await lane.pay("eur")
    assert len(lane.stream.updates) == LOST_MAX


async def test_a_table_that_is_too_large_ends_the_lane_and_nothing_of_it_stays(opened: Opening) -> None:
    lane = await opened(size_max=200)
    await lane.rate(a="x" * 50, b="x" * 50)
    with raises(codes.TABLE_TOO_LARGE, match=r"table `rates` would have \d+ bytes; at most 200 are allowed"):
        await lane.rate(c="x" * 50)
    lane.next_owner()
    assert await lane.pay("a", "c") == [f"{'x' * 50} of 2, 1", "- of 2, 1"]
    await lane.rate(a="", c="x" * 50)
    assert await lane.pay("c") == [f"{'x' * 50} of 2, 2"]


async def test_what_does_not_fit_into_a_commit_is_taken_back_with_its_size(opened: Opening) -> None:
    lane = await opened(size_max=200)
    await lane.rate(a="x" * 50)
    for _ in range(5):
        await lane.rate(a="x" * 50, b="x" * 50)
        lane.stage.undo()
    assert await lane.pay("b") == ["- of 1, 1"]
    assert lane.state.tables_size == size_of(table_key_of((b"a",)), b"", b"x" * 50)


async def test_entries_of_a_table_are_not_in_the_bounds_of_what_the_function_remembers(opened: Opening) -> None:
    lane = await opened()
    # More than the function may remember for a key.
    await lane.rate(eur="x" * 2000)
    (found,) = await lane.pay("eur")
    assert found.endswith("x of 1, 1")


@pytest.mark.guarantee("I8")
async def test_a_table_without_an_edge_leaves_nothing(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "FORGOTTEN_MAX", 3)
    lane = await opened()
    await lane.rate(**{f"k{number}": "x" for number in range(7)})
    lane.inputs = [one._replace(edge="other-map") for one in lane.inputs]
    lane.next_owner()
    for left in (4, 1, 0):
        (found,) = await lane.pay("k1")
        assert found.startswith("- of 0, ")
        assert sum(is_of_table(key) for key, _, _, _ in lane.state.all()) == left
    lane.next_owner()
    assert sum(is_of_table(key) for key, _, _, _ in lane.state.all()) == 0


@pytest.mark.guarantee("I7")
async def test_a_table_comes_and_goes_and_what_is_remembered_stays(opened: Opening) -> None:
    lane, more = await opened(), "more-map"
    await lane.rate(eur="1")
    assert await lane.pay("eur") == ["1 of 1, 1"]
    lane.inputs.append(lane.inputs[0]._replace(name="more", edge=more))
    lane.next_owner()
    await lane.take(more, [("eur", "9"), ("k", "9")])
    await lane.rate(gbp="2")
    assert await lane.pay("eur") == ["1 of 2, 2"]
    assert (lane.stage.taken_of(RATES), lane.stage.taken_of(more)) == (2, 2)
    # The other one has its state under another number than its own.
    lane.inputs.reverse()
    lane.next_owner()
    assert await lane.pay("eur") == ["1 of 2, 3"]
    assert (lane.stage.taken_of(RATES), lane.stage.taken_of(more)) == (2, 2)
    lane.inputs.pop(0)
    lane.next_owner()
    assert await lane.pay("eur") == ["1 of 2, 4"]
    assert sorted(key for key, *_ in lane.state.all()) == [table_key_of([b"eur"]), table_key_of([b"gbp"]), b"eur"]


@pytest.mark.guarantee("I7")
async def test_the_records_of_a_table_are_counted_with_their_commit(opened: Opening) -> None:
    lane = await opened()
    await lane.rate(eur="1", gbp="2")
    # What changes nothing counts, too: others wait for so many records.
    await lane.rate(eur="1")
    lane.stage.begin()
    frame = frame_of_records([Record(b"3", 0, ("usd",))], ingest_time_us=0)
    await lane.stage.on_frame(StageInput(frame, 0, edge=RATES))
    assert lane.stage.taken_of(RATES) == 4
    lane.stage.undo()
    assert (lane.stage.taken_of(RATES), lane.stage.taken_of(PAYMENTS)) == (3, 0)
    lane.next_owner()
    assert lane.stage.taken_of(RATES) == 3


@pytest.mark.parametrize(
    ("tables", "takes", "state", "says"),
    [
        (("rates",), True, State(), None),
        (("rates", "more"), True, State(), None),
        ((), True, State(), "the function reads `rates`, and its vertex has no such table"),
        (("other",), True, State(), "the function reads `rates`, and its vertex has no such table"),
        (("rates",), False, State(), "which the SDK of its function does not know"),
        (("rates",), True, None, "the function remembers `seen`, and its vertex has no state"),
    ],
)
async def test_a_vertex_and_its_function_agree(
    opened: Opening, tables: Sequence[str], takes: bool, state: State | None, says: str | None
) -> None:
    stream = (await opened()).stream
    stream.takes_tables = takes
    if says is None:
        assert fitting("p/map", stream, state, tables) is stream
        return
    with raises(codes.STATE_MISFIT, match=says):
        fitting("p/map", stream, state, tables)


def test_keys_of_tables_are_those_of_no_record() -> None:
    for parts in ((), (b"",), (b"a",), (b"\x1e",), (b"\x1e\x1e",), (b"a", b"b"), (b"\x1e\x1ea", b"\x1f")):
        key = table_key_of(parts)
        assert is_of_table(key)
        assert not is_of_table(key_of(parts))
        assert parts_of(key) == parts == parts_of(key_of(parts))
