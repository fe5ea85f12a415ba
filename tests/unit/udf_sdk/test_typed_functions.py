"""Functions with types of their own, of every kind and shape: what they are given, what is made of what they give, and
what is refused before the first record."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.testing import Outcome, Results, read_source, run, run_reduce, run_windows

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypes


@dataclass
class Order:
    id: int
    price: float = 1.0


@dataclass
class Priced:
    id: int
    total: float


class Reading(TypedDict):
    celsius: float


class Pair(NamedTuple):
    a: int
    b: int


class OrderRecord(NamedTuple):
    """Its name has that of another class of ours in it."""

    id: int


def priced(order: Order) -> Priced:
    return Priced(order.id, order.price * 2)


def priced_or_not(order: Order) -> Priced | None:
    return Priced(order.id, 0.0) if order.id else None


def each_line(order: Order) -> list[Priced | bytes]:
    return [Priced(order.id, 1.0), b"plain"]


def yields(order: Order) -> Iterator[Priced]:
    yield Priced(order.id, 1.0)
    yield Priced(order.id, 2.0)


async def waits(order: Order) -> Priced:
    await asyncio.sleep(0)
    return priced(order)


async def streams(order: Order) -> AsyncIterator[Priced]:
    for total in (1.0, 2.0):
        yield Priced(order.id, total)


def with_context(order: Order, context: udf.Context) -> dict[str, Any]:
    return {"vertex": context.vertex, "id": order.id}


def keyed(order: Order) -> udf.Message:
    return udf.Message(priced(order), keys=[str(order.id)], tags=["large"])


def of_record(record: udf.Record[Order]) -> dict[str, Any]:
    return {"id": record.value.id, "key": record.keys[0]}


def changed(record: udf.Record[Order]) -> udf.Record[Order]:
    record.value.id += 1
    return record


def json_object(order: dict[str, Any]) -> dict[str, Any]:
    return {"id": order["id"]}


def text(line: str) -> str:
    return line.upper()


def typed_dictionary(reading: Reading) -> Reading:
    return {"celsius": reading["celsius"] + 1}


@udf.map(threads=4)
def in_threads(order: Order) -> Priced:
    return priced(order)


@udf.map(decode=Order)
def named_in_the_decorator(order):  # type: ignore[no-untyped-def]  # as users write it
    return {"id": order.id}


@udf.map(decode=Order)
def named_for_records(record: udf.Record[Order]) -> dict[str, Any]:
    return {"id": record.value.id, "keys": list(record.keys)}


@udf.map(decode=pickle.loads, encode=pickle.dumps)
def another_format(value: Any) -> Any:
    return value["id"] if value["id"] else udf.Message({"id": 0}, tags=["zero"])


@udf.map
class Shop:
    def setup(self, context: udf.Context) -> None:
        self.factor = 3

    def process(self, order: Order) -> Priced:
        return Priced(order.id, order.price * self.factor)


@udf.map(batch=True)
def batched(orders: list[Order]) -> list[Priced]:
    return [priced(order) for order in orders]


@udf.map(batch=True)
async def batched_records(records: list[udf.Record[Order]]) -> list[Priced | Exception | None]:
    return [priced(record.value) if record.value.id else udf.Drop("zero") for record in records]


ORDER = b'{"id": 7, "price": 1.5}'


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (priced, [b'{"id":7,"total":3.0}']),
        (priced_or_not, [b'{"id":7,"total":0.0}']),
        (each_line, [b'{"id":7,"total":1.0}', b"plain"]),
        (yields, [b'{"id":7,"total":1.0}', b'{"id":7,"total":2.0}']),
        (waits, [b'{"id":7,"total":3.0}']),
        (streams, [b'{"id":7,"total":1.0}', b'{"id":7,"total":2.0}']),
        (with_context, [b'{"vertex":"with_context","id":7}']),
        (keyed, [b'{"id":7,"total":3.0}']),
        (of_record, [b'{"id":7,"key":"k"}']),
        (changed, [b'{"id":8,"price":1.5}']),
        (json_object, [b'{"id":7}']),
        (text, [b'{"ID": 7, "PRICE": 1.5}']),
        (in_threads, [b'{"id":7,"total":3.0}']),
        (named_in_the_decorator, [b'{"id":7}']),
        (named_for_records, [b'{"id":7,"keys":["k"]}']),
        (Shop, [b'{"id":7,"total":4.5}']),
        (batched, [b'{"id":7,"total":3.0}']),
        (batched_records, [b'{"id":7,"total":3.0}']),
    ],
)
def test_every_shape_of_a_map_takes_and_gives_objects(function: Any, written: list[bytes]) -> None:
    results = run(function, [udf.Record(ORDER, keys=("k",))])
    assert results.values == written
    assert not results.outcomes


@pytest.mark.parametrize("function", [priced, waits, in_threads, batched, batched_records, Shop])
def test_a_record_that_does_not_fit_fails_alone(function: Any) -> None:
    values = [b'{"id": 1}', b"no json", b'{"id": 2}', b'{"id": "3"}']
    results = run(function, values)
    assert list(results.parents) == [0, 2]
    assert [outcome.index for outcome in results.outcomes] == [1, 3]
    for outcome in results.outcomes:
        assert (outcome.result, outcome.code, outcome.detail) == ("dead letter", "MS-3005", "")
    assert results.outcomes[1].reason == (
        'the value does not fit Order: field `id` is "3", where a whole number (int) is expected'
    )


def test_a_function_of_batches_is_not_called_where_nothing_fits() -> None:
    @udf.map(batch=True)
    def never(orders: list[Order]) -> list[bytes]:
        raise AssertionError("it was called")

    assert [outcome.code for outcome in run(never, [b"", b"1"]).outcomes] == ["MS-3005", "MS-3005"]


def test_another_format_than_json() -> None:
    results = run(another_format, [pickle.dumps({"id": 1}), b"junk", pickle.dumps({"id": 0})])
    assert [pickle.loads(value) for value in results.values] == [1, {"id": 0}]
    assert [message.tags for message in results.messages] == [(), ("zero",)]
    (outcome,) = results.outcomes
    assert (outcome.index, outcome.code) == (1, "MS-3005")
    assert "it is refused: UnpicklingError" in outcome.reason


def test_an_encoding_that_gives_no_bytes_fails_its_record() -> None:
    @udf.map(encode=lambda value: "text")  # type: ignore[arg-type,return-value]  # what is tested
    def wrong(value: bytes) -> Any:
        return 1 if value == b"bad" else value

    results = run(wrong, [b"good", b"bad"])
    assert results.values == [b"good"]
    (outcome,) = results.outcomes
    assert outcome.reason == "the function of encode= must return bytes, not str"


def test_objects_and_other_results_in_one_call() -> None:
    def mixed(order: Order) -> Any:
        if order.id == 3:
            return Priced(3, object())  # type: ignore[arg-type]  # what is tested
        return [b"bytes", "text", None, None, {"a": 1}, udf.Message({"b": 2}), udf.Drop("no")][order.id]

    results = run(mixed, [{"id": number} for number in range(7)])
    assert results.values == [b"bytes", b"text", b'{"a":1}', b'{"b":2}']
    assert list(results.parents) == [0, 1, 4, 5]
    outcomes = {outcome.index: outcome for outcome in results.outcomes}
    assert outcomes[3].reason == "a Priced cannot be written as JSON: JSON has no object (field `total`)"
    assert (outcomes[3].result, outcomes[6].result) == ("error", "drop")


def test_objects_go_in_and_come_back() -> None:
    results = run(priced, [Order(1), {"id": 2}, udf.Record(Order(3), keys=("k",)), b'{"id": 4}', '{"id": 5}'])
    assert results.objects() == [Priced(number, 2.0) for number in range(1, 6)]
    assert results.objects(dict)[0] == {"id": 1, "total": 2.0}
    assert run(json_object, [{"id": 1}]).objects() == [{"id": 1}]
    with pytest.raises(ValueError, match="output 0: the value does not fit Order: field `price`"):
        Results([udf.Message(b'{"id": 1, "price": ""}')]).objects(Order)
    with pytest.raises(
        TypeError, match="inputs must be bytes, str, objects that can be written as JSON, or Records, not int"
    ):
        run(priced, [7])


def test_a_sink_takes_objects() -> None:
    seen: list[Order] = []

    @udf.sink
    def store(order: Order) -> None:
        seen.append(order)

    results = run(store, [b'{"id": 1}', b"{}"])
    assert seen == [Order(1)]
    assert results.outcomes == [
        Outcome(1, "dead letter", "the value does not fit Order: field `id` is missing", code="MS-3005")
    ]


def test_a_transform_takes_objects_and_sets_times() -> None:
    @dataclass
    class Timed:
        at: datetime

    @udf.source_transform(decode=Timed)
    def timed(value: Any) -> udf.Message:
        return udf.Message({"seen": True}, event_time=value.at)

    (message,) = run(timed, [b'{"at": "2024-06-01T12:00:00Z"}']).messages
    assert message.event_time_us == int(datetime(2024, 6, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000


def test_a_source_gives_objects() -> None:
    @udf.source
    class Orders:
        async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
            return udf.Batch([udf.Record(Order(1)), udf.Record({"id": 2})], position=b"", ended=True)

    @udf.source(encode=lambda order: b"%d" % order.id)
    class Others:
        async def read(self, context: udf.Context, records_max: int, timeout: float) -> udf.Batch:
            return udf.Batch([udf.Record(Order(1)), udf.Record(b"as it is")], position=b"", ended=True)

    assert [record.value for record in read_source(Orders)[0].records] == [b'{"id":1,"price":1.0}', b'{"id":2}']
    assert [record.value for record in read_source(Others)[0].records] == [b"1", b"as it is"]


def total(keys: tuple[str, ...], orders: Iterable[Order], window: udf.Window) -> Priced:
    return Priced(0, sum(order.price for order in orders))


async def total_async(keys: tuple[str, ...], orders: AsyncIterator[Order], window: udf.Window) -> Priced:
    return Priced(0, sum([order.price async for order in orders]))


@udf.reduce
def total_of_records(records: Iterable[udf.Record[Order]]) -> dict[str, float]:
    return {"id": 0, "total": sum(record.value.price for record in records)}


@udf.reduce
class Total:
    def __init__(self) -> None:
        self.total = 0.0

    def add(self, order: Order) -> None:
        self.total += order.price

    def result(self) -> Priced:
        return Priced(0, self.total)


@udf.reduce(decode=Order)
def total_by_decorator(records: Any) -> udf.Message:
    return udf.Message(Priced(0, sum(record.value.price for record in records)))


@pytest.mark.parametrize("function", [total, total_async, total_of_records, Total, total_by_decorator])
def test_every_shape_of_a_reduce_takes_and_gives_objects(function: Any) -> None:
    reduced = run_reduce(function, [Order(1, 2.0), {"id": 2, "price": 3}], frame_records=1)
    assert reduced.objects(Priced) == [Priced(0, 5.0)]
    with pytest.raises(RuntimeError, match='the value does not fit Order: field `price` is "x", where a number'):
        run_reduce(function, [b'{"id": 1}', b'{"id": 1, "price": "x"}'])


def test_windows_of_objects() -> None:
    records = [udf.Record(Order(1, 2.0), event_time=at, keys=("k",)) for at in (1, 2, 11)]
    assert [one.objects() for one in run_windows(total, records, 10)] == [[Priced(0, 4.0)], [Priced(0, 2.0)]]


FIELDS: dict[str, pa.DataType] = {"id": pa.int64(), "price": pa.float64()}
SCHEMA = pa.schema(FIELDS)
VALUES = [
    b'{"id": 1, "price": 2}',
    b'{"id": "x"}',
    b'{"id": 3}',
    b"no",
    '{"id": 4, "price": "grün"}'.encode(),
    b'{"id": 5}',
]


def with_parents(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.field("id") > 1)


def without_parents(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["id", "price"])


@pytest.mark.parametrize(
    ("function", "parents"), [(with_parents, [2, 5]), (without_parents, [0, 2, 5])], ids=["parents", "no parents"]
)
def test_columns_of_a_schema(function: Callable[..., Any], parents: list[int]) -> None:
    results = run(udf.map(arrow=True, schema=SCHEMA)(function), VALUES)
    assert list(results.parents) == parents
    assert results.objects()[-1] == {"id": 5, "price": None}
    assert [(outcome.index, outcome.code) for outcome in results.outcomes] == [
        (1, "MS-3005"),
        (3, "MS-3005"),
        (4, "MS-3005"),
    ]
    assert [outcome.reason.partition("schema: ")[2] for outcome in results.outcomes] == [
        'field `id` is "x", where int64 is expected',
        "it is not JSON: Expecting value at byte 0: 'no'",
        'field `price` is "gr\\u00fcn", where double is expected',
    ]


def test_columns_where_everything_fits_or_nothing() -> None:
    function = udf.map(arrow=True, schema=SCHEMA)(lambda batch: batch)
    assert run(function, [b'{"id": 1}', b'{"id": 2}']).objects() == [{"id": 1, "price": None}, {"id": 2, "price": None}]
    results = run(function, [b"1", b'{"id": "\xff"}'])
    assert results.values == []
    assert [outcome.reason for outcome in results.outcomes] == [
        "the value does not fit the schema: it is 1, where an object is expected",
        'the value does not fit the schema: it is not JSON: byte 8 is not UTF-8: b\'{"id": "\\xff"}\'',
    ]


def test_a_column_that_must_be_there() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    results = run(udf.map(arrow=True, schema=schema)(lambda batch: batch), [b'{"id": 1}', b"{}", b'{"id": null}'])
    assert results.objects() == [{"id": 1}]
    assert [outcome.reason.partition(": ")[2] for outcome in results.outcomes] == [
        "field `id` is missing",
        "field `id` is null, where int64 is expected",
    ]


def _unresolved(order: OnlyForTypes) -> bytes:
    return b""


def _odd(order: object) -> complex:
    return 1j


def _returns_number(value: bytes) -> float:
    return 1.0


def _returns_class(value: bytes) -> Shop:
    raise NotImplementedError


def _returns_pair(value: bytes) -> Pair:
    return Pair(1, 2)


@dataclass
class Holds:
    inner: complex


def _returns_holder(value: bytes) -> list[Holds]:
    return []


def _takes_holder(value: Holds) -> bytes:
    return b""


def _writes(order: Order) -> bytes:
    return b""


def _one(orders: list[Order]) -> Priced:
    return Priced(1, 1)


def _not_many(orders: Order) -> list[bytes]:
    return []


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_unresolved, "parameter order of f: the annotation `OnlyForTypes` cannot be resolved: define or import"),
        (_odd, "f is annotated to return complex, which is not an output: return bytes, str, None"),
        (_returns_number, "f is annotated to return float, which is not an output"),
        (_returns_class, "f is annotated to return Shop, which is not an output"),
        (_returns_pair, "f is annotated to return Pair, which is not an output"),
        (_returns_holder, "which cannot be written as JSON: complex cannot be read from JSON (field inner of Holds)"),
        (
            _takes_holder,
            "parameter value of f takes Holds, and values cannot be decoded to that: complex cannot be read from JSON",
        ),
        (
            udf.sink(_writes),
            "f is a sink, which returns nothing, but it is annotated to return bytes: annotate it -> None",
        ),
        (udf.map(batch=True)(_one), "f takes whole batches, so it must return a list with one result per record"),
        (udf.map(batch=True)(_not_many), "parameter orders of f: for many records, the annotation is list[...]"),
    ],
)
def test_annotations_that_cannot_be_true_are_refused_at_start(function: Any, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        define(function, "f")
    assert says in str(caught.value)


def test_decorators_that_contradict_the_annotation() -> None:
    @udf.map(decode=Order)
    def takes_bytes(value: bytes) -> bytes:
        return value

    with pytest.raises(TypeError, match="is annotated bytes, but its decorator has decode=Order: use one of the two"):
        define(takes_bytes, "f")
    with pytest.raises(TypeError, match="decode is for single values; with arrow=True or pandas=True use schema="):
        udf.map(arrow=True, decode=Order)(lambda batch: batch)
    with pytest.raises(TypeError, match="encode= must be a function from an object to bytes, not int"):
        define(udf.map(encode=7)(lambda value: value), "f")  # type: ignore[call-overload]  # what is tested


def test_with_an_encoding_of_its_own_a_function_may_return_anything() -> None:
    @udf.map(encode=lambda number: b"%d" % number)
    def length(value: bytes) -> int:
        return len(value)

    assert run(length, [b"abc"]).values == [b"3"]


def test_annotations_that_say_nothing_change_nothing() -> None:
    def anything(value: Any) -> Any:
        return value

    def union(value: bytes | None) -> bytes:
        assert value is not None
        return value

    def looks_like_a_record(order: OrderRecord) -> dict[str, int]:
        return {"id": order.id}

    assert run(anything, [b"a"]).values == [b"a"]
    assert run(union, [b"a"]).values == [b"a"]
    assert json.loads(run(looks_like_a_record, ["[4]"]).values[0]) == {"id": 4}
