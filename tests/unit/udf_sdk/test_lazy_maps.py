"""Maps that a function reads item by item: what it sees, what it asks for, and what becomes of its changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.inputs import FrameInputs
from millstream_udf.state_found import Found
from millstream_udf.state_reads import Ask, parts_of
from millstream_udf.testing import KeptStates, run, run_timers
from millstream_udf.wire.udf.v1 import udf_pb2

ORDERS = {f"order-{number:03}": number for number in range(250)}
"""Three pages."""


class _Orders:
    orders = udf.map_state(str, int, lazy=True)

    def do(self, orders: udf.LazyMap[str, int], what: str) -> Any:
        match what:
            case "get":
                return [orders.get("order-007"), orders.get("none"), orders.get("none", -1), orders["order-249"]]
            case "many":
                return orders.get_many([f"order-{number:04}" for number in range(150)] + list(ORDERS))
            case "has":
                return ["order-000" in orders, "none" in orders, bool(orders)]
            case "all":
                return [len(list(orders)), sum(orders.values()), dict(orders.items()) == ORDERS]
            case "range":
                return list(orders.items(start="order-099", stop="order-102"))
            case "prefix":
                return [*orders.keys(prefix="order-24"), *orders.keys(prefix="z"), *orders.keys(prefix="order-003")]
            case "nothing":
                return [*orders.keys(start="b", stop="a"), *orders.keys(start="z")]
            case "write":
                orders["new"] = 1
                orders.update({"order-001": 1000})
                orders.discard("order-000")
                orders.discard("none")
                del orders["order-002"]
                return [orders.pop("order-003"), orders.setdefault("other", 5), list(orders.items(stop="order-005"))]
            case "clear":
                orders.clear()
                return [bool(orders), list(orders)]
        raise AssertionError(what)


@udf.map
class Orders(_Orders):
    def process(self, record: udf.Record[str]) -> Any:
        return json.dumps(self.do(self.orders, record.value))


@udf.map(threads=2)
class Threads(_Orders):
    def process(self, record: udf.Record[str]) -> Any:
        return json.dumps(self.do(self.orders, record.value))


@udf.map(batch=True)
class Batches(_Orders):
    def process(self, records: list[udf.Record[str]], states: list[Any]) -> list[Any]:
        return [json.dumps(self.do(state.orders, record.value)) for record, state in zip(records, states, strict=True)]


@udf.map
class Generator(_Orders):
    def process(self, record: udf.Record[str]) -> Iterator[Any]:
        yield json.dumps(self.do(self.orders, record.value))


@udf.map
class Async(_Orders):
    async def process(self, record: udf.Record[str]) -> str:
        return json.dumps(await self.ado(self.orders, record.value))

    async def ado(self, orders: udf.LazyMap[str, int], what: str) -> Any:
        match what:
            case "get":
                return [
                    await orders.aget("order-007"),
                    await orders.aget("none"),
                    await orders.aget("none", -1),
                    await orders.apop("order-249"),
                ]
            case "many":
                return await orders.aget_many([f"order-{number:04}" for number in range(150)] + list(ORDERS))
            case "has":
                return [await orders.ahas("order-000"), await orders.ahas("none"), True]
            case "range":
                return [one async for one in orders.aitems(start="order-099", stop="order-102")]
            case "all":
                items = [item async for item in orders.akeys()]
                total = sum([value async for value in orders.avalues()])
                return [len(items), total, {item: value async for item, value in orders.aitems()} == ORDERS]
            case "clear":
                await orders.aclear()
                return [False, [item async for item in orders.akeys()]]
        raise AssertionError(what)


@udf.map(batch=True)
class AsyncBatches(_Orders):
    async def process(self, records: list[udf.Record[str]], states: list[Any]) -> list[Any]:
        return [
            json.dumps([len([item async for item in state.orders.akeys()]), await state.orders.aget("order-001")])
            for state in states
        ]


EXPECTED: dict[str, Any] = {
    "get": [7, None, -1, 249],
    "many": ORDERS,
    "has": [True, False, True],
    "all": [250, sum(ORDERS.values()), True],
    "range": [["order-099", 99], ["order-100", 100], ["order-101", 101]],
    "prefix": [f"order-24{number}" for number in range(10)] + ["order-003"],
    "nothing": [],
    "write": [3, 5, [["new", 1], ["order-001", 1000], ["order-004", 4]]],
    "clear": [False, []],
}
CASES = [
    *((function, what) for function in (Orders, Threads, Batches, Generator) for what in EXPECTED),
    *((Async, what) for what in ("get", "many", "has", "range", "all", "clear")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "what"), CASES)
def test_what_a_function_reads_in_every_form(function: Any, what: str) -> None:
    results = run(function, [udf.Record(what, keys=("ada",))], states={"ada": {"orders": ORDERS}})
    assert results.outcomes == []
    assert results.objects() == [EXPECTED[what]]


def test_an_async_batch() -> None:
    records = [udf.Record("x", keys=(key,)) for key in ("ada", "bob")]
    results = run(AsyncBatches, records, states={"ada": {"orders": ORDERS}})
    assert results.objects() == [[250, 1], [0, None]]


def test_what_is_written_is_kept_and_what_fails_is_not() -> None:
    kept = KeptStates(Orders, {"ada": {"orders": ORDERS}})
    run(Orders, [udf.Record("write", keys=("ada",)), udf.Record("no such", keys=("ada",))], states=kept)
    gone = {"order-000", "order-002", "order-003"}
    left = {item: number for item, number in ORDERS.items() if item not in gone}
    assert kept["ada"]["orders"] == {**left, "new": 1, "order-001": 1000, "other": 5}
    before = dict(kept["ada"]["orders"])
    run(Orders, [udf.Record("no such", keys=("ada",))], states=kept)
    assert kept["ada"]["orders"] == before


class Counted(KeptStates):
    """Counts what is asked for."""

    asked = 0
    """How many items."""
    pages = 0

    def ask(self, inputs: FrameInputs) -> Ask:
        ask = super().ask(inputs)

        def counted(read: udf_pb2.StateRead) -> Future[Found]:
            self.asked += len(read.items)
            self.pages += not read.items
            return ask(read)

        return counted


@udf.map
class Frugal:
    seen = udf.map_state(str, int, lazy=True)
    total = udf.value(int, default=0)

    def process(self, record: udf.Record[str]) -> Any:
        if record.value == "write":
            self.seen["a"] = 1
            self.seen.discard("b")
        elif record.value == "none":
            self.total += 1
        if record.value != "read":
            return None
        return json.dumps([self.seen.get("a"), self.seen.get("b"), self.seen.get("a")])


def test_a_call_asks_only_for_what_is_read_and_once() -> None:
    kept = Counted(Frugal, {"ada": {"seen": {"a": 7, "b": 8, "c": 9}}})
    run(Frugal, [udf.Record("none", keys=("ada",)), udf.Record("write", keys=("ada",))], states=kept)
    assert (kept.asked, kept.pages) == (0, 0)
    assert kept["ada"]["seen"] == {"a": 1, "c": 9}
    results = run(Frugal, [udf.Record("read", keys=("ada",))] * 5, states=kept)
    assert results.objects() == [[1, None, 1]] * 5
    assert (kept.asked, kept.pages) == (2, 0)
    # What a record has deleted is gone for the next one of the call, although it is still stored.
    kept["ada"] = {"seen": {"a": 7, "b": 8}}
    results = run(Frugal, [udf.Record("write", keys=("ada",)), udf.Record("read", keys=("ada",))], states=kept)
    assert results.objects() == [[1, None, 1]]
    assert (kept.asked, kept.pages) == (2, 0)


@udf.map
class Impatient:
    orders = udf.map_state(str, int, lazy=True)

    async def process(self, record: udf.Record[str]) -> Any:
        orders: Any = self.orders
        orders["x"] = 1
        match record.value:
            case "get":
                return orders.get("x")
            case "index":
                return orders["x"]
            case "in":
                return "x" in orders
            case "iterate":
                return list(orders)
            case "items":
                return list(orders.items())
            case "truth":
                return bool(orders)
            case "delete":
                del orders["x"]
            case "clear":
                orders.clear()
            case "attribute":
                del self.orders
        return None


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        ("get", "aget(item)"),
        ("index", "aget(item)"),
        ("in", "ahas(item)"),
        ("iterate", "aitems()"),
        ("items", "aitems()"),
        ("truth", "aitems()"),
        ("delete", "discard(item)"),
        ("clear", "aclear()"),
        ("attribute", "aclear()"),
    ],
)
def test_a_plain_read_in_an_async_function_says_what_to_write(what: str, instead: str) -> None:
    results = run(Impatient, [udf.Record(what, keys=("ada",))])
    (outcome,) = results.outcomes
    assert "state orders is lazy" in outcome.reason
    assert instead in outcome.reason


@udf.map
class Bytes:
    parts = udf.map_state(bytes, bytes, lazy=True)
    numbers = udf.map_state(int, int, lazy=True)

    def process(self, value: bytes) -> Any:
        if value == b"numbers":
            return list(self.numbers.keys(start=1))
        if value == b"both":
            return list(self.parts.keys(prefix=b"a", stop=b"b"))
        return b"|".join([*self.parts.keys(prefix=value), b"", *self.parts.values(prefix=value)])


def test_ranges_of_bytes() -> None:
    parts = {b"": b"1", b"a": b"2", b"a\xff": b"3", b"a\xff\xff": b"4", b"b": b"5", b"\xff": b"6", b"\xff\xff": b"7"}
    kept = {"ada": {"parts": parts, "numbers": {1: 1}}}
    values = [b"a", b"a\xff", b"\xff", b"", b"c", b"numbers", b"both"]
    results = run(Bytes, [udf.Record(value, keys=("ada",)) for value in values[:1]], states=kept)
    assert results.values == [b"a|a\xff|a\xff\xff||2|3|4"]
    found = {value: run(Bytes, [udf.Record(value, keys=("ada",))], states=kept) for value in values}
    assert found[b"a\xff"].values == [b"a\xff|a\xff\xff||3|4"]
    assert found[b"\xff"].values == [b"\xff|\xff\xff||6|7"]
    assert found[b""].values == [b"|".join([*sorted(parts), b"", *(parts[one] for one in sorted(parts))])]
    assert found[b"c"].values == [b""]
    assert "a range is of items that are str or bytes" in found[b"numbers"].outcomes[0].reason
    assert "a prefix, or start and stop" in found[b"both"].outcomes[0].reason


@udf.map
class Expiring:
    seen = udf.map_state(str, int, lazy=True, ttl=timedelta(microseconds=10), version=2, migrate={1: lambda old: -old})

    def process(self, record: udf.Record[str]) -> Any:
        match record.value:
            case "renew":
                self.seen["a"] = 1
            case "forget":
                self.seen["a"] = 5
                self.seen.discard("a")
        return json.dumps(sorted(self.seen.items()))


def test_expiry_and_versions() -> None:
    old = KeptStates(_expiring_of_version_1(), {"ada": {"seen": {"a": 1, "b": 2}}})
    kept = old.carried(Expiring)
    results = run(Expiring, [udf.Record("show", 5, keys=("ada",))], states=kept)
    assert results.objects() == [[["a", -1], ["b", -2]]]
    run(Expiring, [udf.Record("renew", 5, keys=("ada",)), udf.Record("renew", 3, keys=("ada",))], states=kept)
    assert kept["ada"].expires_us("seen", "a") == 15
    # The same bytes again count as changed, because they expire later.
    run(Expiring, [udf.Record("renew", 9, keys=("ada",))], states=kept)
    assert kept["ada"].expires_us("seen", "a") == 19
    results = run(Expiring, [udf.Record("show", 9, keys=("ada",))], states=kept, watermark_us=19)
    assert results.objects() == [[["b", -2]]]
    kept["ada"] = {"seen": {"a": 1}}
    results = run(Expiring, [udf.Record("forget", 9, keys=("ada",))], states=kept)
    assert results.objects() == [[]]
    assert not kept["ada"]["seen"]


def _expiring_of_version_1() -> Any:
    @udf.map
    class Old:
        seen = udf.map_state(str, int, ttl=timedelta(microseconds=10))

        def process(self, record: udf.Record[str]) -> None:
            pass

    return Old


@udf.map
class Eager:
    orders = udf.map_state(str, int)

    def process(self, record: udf.Record[str]) -> Any:
        self.orders[record.value] = len(self.orders)
        return dict(self.orders)


def test_lazy_can_be_switched_on_and_off_over_what_is_stored() -> None:
    first = run(Eager, [udf.Record("x", keys=("ada",))], states={"ada": {"orders": ORDERS}})
    assert first.states is not None
    lazy = first.states.carried(Orders)
    run(Orders, [udf.Record("write", keys=("ada",))], states=lazy)
    last = run(Eager, [udf.Record("y", keys=("ada",))], states=lazy.carried(Eager))
    assert last.objects()[0]["new"] == 1
    assert last.objects()[0]["x"] == 250


@udf.map
class Waking:
    orders = udf.map_state(str, int, lazy=True)

    def process(self, record: udf.Record[str]) -> None:
        self.orders[record.value] = 1
        udf.timer("wake", at=record.event_time_us + 5)

    def on_timer(self, timer: udf.Timer) -> Any:
        found = sorted(self.orders)
        self.orders.clear()
        return json.dumps(found)


def test_timers_read_too() -> None:
    first = run(Waking, [udf.Record(name, 7, keys=("ada",)) for name in "ba"])
    fired = run_timers(Waking, first.states, watermark_us=20)
    assert fired.objects() == [["a", "b"]]
    assert fired.states is not None
    assert not fired.states["ada"]["orders"]


def test_what_cannot_be_lazy() -> None:
    options: Any = {"lazy": True}
    with pytest.raises(TypeError, match="lazy is for map_state"):
        udf.value(dict, **options)
    with pytest.raises(TypeError, match="lazy is for map_state"):
        udf.list_state(int, **options)


def test_the_declaration_says_so_and_the_stored_form_does_not() -> None:
    (spec,), (eager,) = define(Orders, "Orders").states, define(Eager, "Eager").states
    assert spec.message().lazy
    assert spec.report() == {**eager.report(), "lazy": True}
    message = spec.message()
    message.lazy = False
    assert message == eager.message()


_LEFT: list[Any] = []


@udf.map
class Leaving:
    orders = udf.map_state(str, int, lazy=True)

    def process(self, record: udf.Record[str]) -> None:
        _LEFT[:] = [self.orders, iter(self.orders)]
        next(_LEFT[1])


def test_a_map_of_a_record_that_is_done() -> None:
    run(Leaving, [udf.Record("x", keys=("ada",))], states={"ada": {"orders": ORDERS}})
    left, iterator = _LEFT
    for use in (lambda: left.get("a"), lambda: left.discard("a"), lambda: list(left), lambda: next(iterator)):
        with pytest.raises(udf.StateError, match="can only be used while a record is processed"):
            use()


def test_items_are_asked_for_in_parts() -> None:
    assert parts_of([]) == []
    assert [len(part) for part in parts_of([b"x"] * 2500)] == [1000, 1000, 500]
    large = [b"x" * 200_000, b"y" * 100_000, b"z" * 300_000, b"a"]
    assert [len(part) for part in parts_of(large)] == [1, 1, 1, 1]
