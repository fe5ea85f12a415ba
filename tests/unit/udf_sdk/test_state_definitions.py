"""Which functions have states, what these are called and how they are stored; and what is refused, with advice."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from google.protobuf.struct_pb2 import Struct

import millstream_udf as udf
from millstream_udf import state_codecs, typed_values
from millstream_udf.defining import define
from millstream_udf.definition import MAP
from millstream_udf.state_codecs import codec_of, item_codec_of, never_changes
from millstream_udf.testing import run
from millstream_udf.wire.udf.v1 import udf_pb2

State = udf_pb2.State
WRONG: Any = udf
"""For uses that type checkers refuse."""


@dataclass
class Order:
    item: str
    pieces: int = 1


class Model(pydantic.BaseModel):
    at: datetime
    price: Decimal


class Record(msgspec.Struct):
    a: int


class Typed(TypedDict):
    a: int


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Colour(enum.Enum):
    RED = "red"


def test_what_a_class_declares() -> None:
    class Base:
        first = udf.value(bytes, clock="processing")
        gone = udf.counter()
        last = udf.list_state(dict, version=3, migrate={2: id})

    @udf.map
    class Function(Base):
        gone = None  # type: ignore[assignment]  # meant
        items = udf.map_state(bytes, Struct)
        clicks = udf.counter(ttl=timedelta(days=1))
        packed = udf.value(Order, codec="msgpack")

        def process(self, value: bytes) -> None: ...

    definition = define(Function, "Function")
    assert definition.kinds == (MAP,)
    assert [spec.message() for spec in definition.states] == [
        State(
            name="first",
            kind=State.KIND_VALUE,
            codec="bytes",
            version=1,
            oldest_version=1,
            clock=State.CLOCK_PROCESSING_TIME,
        ),
        State(
            name="last", kind=State.KIND_LIST, codec="json", version=3, oldest_version=2, clock=State.CLOCK_EVENT_TIME
        ),
        State(
            name="items",
            kind=State.KIND_MAP,
            codec="protobuf",
            item_codec="bytes",
            version=1,
            oldest_version=1,
            clock=State.CLOCK_EVENT_TIME,
        ),
        State(name="clicks", kind=State.KIND_COUNTER, version=1, oldest_version=1, clock=State.CLOCK_EVENT_TIME),
        State(
            name="packed",
            kind=State.KIND_VALUE,
            codec="msgpack",
            version=1,
            oldest_version=1,
            clock=State.CLOCK_EVENT_TIME,
        ),
    ]
    assert definition.states[1].report() == {
        "name": "last",
        "kind": "list",
        "codec": "json",
        "item_codec": "",
        "version": 3,
        "clock": "event",
    }


def test_a_function_without_states_has_none() -> None:
    assert define(bytes.upper, "f").states == ()


class Total:
    total = udf.value(int, default=0)

    def process(self, record: udf.Record) -> None: ...


class Summing(Total):
    def add(self, record: udf.Record) -> None: ...
    def result(self) -> None: ...


class Keeping:
    total = udf.value(int, default=0)

    def open(self, lane: Any) -> None: ...
    def write(self, record: Any) -> None: ...
    def flush(self, position: Any) -> None: ...


class Source:
    total = udf.value(int, default=0)

    async def read(self, context: Any, records_max: int, timeout: float) -> Any: ...


def with_state(record: udf.Record, state: udf.State) -> None: ...
def with_states(value: bytes, states: Sequence[udf.State]) -> None: ...
def with_two(value: bytes, state: udf.State, states: Any) -> None: ...
def of_windows(keys: Any, records: Any, state: Any) -> None: ...


class Batch(Total):
    def process(self, records: list[udf.Record]) -> list[None]:  # type: ignore[override]  # meant
        return [None] * len(records)


class Declaring(Total):
    def process(self, record: udf.Record, state: Any) -> None: ...  # type: ignore[override]  # meant


class Twice:
    one = other = udf.counter()

    def process(self, record: udf.Record) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (udf.map(arrow=True)(type("F", (Total,), {})), r"f has states \(total\), which only maps can have; an Arrow"),
        (udf.source_transform(type("F", (Total,), {})), "a source transform runs before .*: put a @udf.map after it"),
        (udf.sink(type("F", (Total,), {})), "a sink remembers in its target .*: put a @udf.map before it"),
        (udf.sink(Keeping), "a sink remembers in its target"),
        (udf.source(Source), "a source remembers by its position: return it with each Batch"),
        (udf.reduce(type("F", (Total,), {})), "a reduce function remembers by its window: use a class with add"),
        (Summing, "a reduce function remembers by its window"),
        (udf.sink(lambda record, state: None), "f takes a state, which only maps can have; a sink remembers in its"),
        (udf.source_transform(lambda record, state: None), "a source transform runs before the records have keys"),
        (of_windows, "f takes a state, which only maps can have; a reduce function"),
        (udf.map(batch=True)(Batch), r"give it a second parameter `states`, .* states\[i\].total"),
        (Declaring, "it needs no parameter `state`: use self.total"),
        (udf.map(batch=True)(with_state), "takes batches, so its parameter state has to be called `states`"),
        (with_states, "takes single records, so its parameter states has to be called `state`"),
        (with_two, "has to be called `state`"),
        (Twice, "one and other are one state: declare each by itself"),
        (type("F", (Total,), {"ü": udf.counter()}), "the name of state ü must have at most 63 letters"),
        (type("F", (Total,), {"x" * 64: udf.counter()}), "must have at most 63 letters"),
        (
            type("F", (Total,), {f"s{number}": udf.counter() for number in range(255)}),
            "f has 256 states; 255 are the most: use a map state for some of them",
        ),
    ],
)
def test_what_is_refused(function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        define(function, "f")


def test_every_flavour_of_a_plain_function() -> None:
    async def coroutine(value: bytes, state: udf.State) -> str:
        return str(state.incr_counter("n"))

    def generator(value: bytes, state: udf.State) -> Iterator[str]:
        yield str(state.incr_counter("n"))

    async def async_generator(value: bytes, memory: udf.State, context: udf.Context) -> AsyncIterator[str]:
        yield str(memory.incr_counter("n"))

    @udf.map(threads=2)
    def in_threads(value: bytes, state: udf.State) -> str:
        return str(state.incr_counter("n"))

    def third(value: bytes, context: udf.Context, state: Any = None) -> str:
        return str(state.incr_counter("n"))

    for function in (coroutine, generator, async_generator, in_threads, third):
        assert run(function, [b"a", b"b"]).values == [b"1", b"2"]

    def called_state(value: bytes, state: udf.Context) -> str:
        return str(state.attempt)

    assert run(called_state, [b"a"]).values == [b"0"]


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: WRONG.value(object, codec="pickle"), "codec='pickle' is not one of json, bytes, msgpack, protobuf"),
        (lambda: WRONG.value(Iterator), "Iterator cannot be stored as json"),
        (lambda: WRONG.value(int, codec="bytes"), "codec='bytes' is for bytes, not int"),
        (lambda: WRONG.value(int, codec="protobuf"), "codec='protobuf' is for classes of protobuf messages, not int"),
        (lambda: WRONG.value(int, default="a"), "the default 'a' cannot be a value: a str is not what"),
        (lambda: WRONG.value(int, version=0), "version must be a whole number of at least 1, not 0"),
        (
            lambda: WRONG.value(int, version=2, migrate={2: id}),
            "migrate has steps from version 2; version 2 needs them",
        ),
        (lambda: WRONG.value(int, version=4, migrate={1: id, 3: id}), "migrate has steps from version 1, 3; version 4"),
        (lambda: WRONG.value(int, version=2, migrate={1: 7}), "the step from version 1 in migrate must be a function"),
        (lambda: WRONG.value(int, ttl=5), "ttl must be a timedelta, such as timedelta"),
        (lambda: WRONG.value(int, ttl=timedelta(0)), "ttl must be longer than nothing"),
        (lambda: WRONG.value(int, clock="wall"), "clock='wall' must be 'event' or 'processing'"),
        (lambda: WRONG.value(int, ttl_s=5), "a state has no option ttl_s"),
        (lambda: WRONG.list_state(int, max_items=0), "max_items must be a whole number of at least 1, not 0"),
        (lambda: WRONG.map_state(Iterator, int), "Iterator cannot be stored as json"),
    ],
)
def test_declarations_that_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        declare()


VALUES = [
    (int, -7),
    (str, 'é"\n\0'),
    (float, 0.5),
    (bool, True),
    (bytes, b"\xff"),
    (dict, {"a": [1, None]}),
    (list[Order], [Order("nut", 2)]),
    (Order, Order("nut")),
    (Order | None, None),
    (int | str, "a"),
    (Any, {"a": 1.5}),
    (Typed, {"a": 1}),
    (Point, Point(1)),
    (Colour, Colour.RED),
    (set[int], {1, 2}),
    (datetime, datetime(2024, 6, 1, tzinfo=UTC)),
    (timedelta, timedelta(days=1, seconds=2)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=5)),
    (dict[int, Order], {1: Order("nut")}),
    (Record, Record(1)),
    (Model, Model(at=datetime(2024, 6, 1, tzinfo=UTC), price=Decimal("1.10"))),
    (list[Model], [Model(at=datetime(2024, 6, 1, tzinfo=UTC), price=Decimal("1.10"))]),
]


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_values_are_read_as_they_were_written(kind: Any, value: Any, name: str) -> None:
    codec = codec_of(kind, name)
    data = codec.checked(value)
    assert codec.read(data) == value
    assert codec.fast_read is not None
    assert codec.fast_read(codec.fast_write(value)) == value
    assert type(codec.read(data)) is type(value)


@pytest.mark.parametrize(("kind", "value"), [one for one in VALUES if one[0] is not Record])
def test_json_without_msgspec(kind: Any, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = codec_of(kind, "json").checked(value)
    monkeypatch.setattr(typed_values, "_msgspec", lambda kind: None)
    monkeypatch.setattr(typed_values, "_writer", lambda kind: typed_values._plain_json)
    monkeypatch.setattr(state_codecs, "json_writer", lambda: typed_values._plain_json)
    codec = codec_of(kind, "json")
    assert codec.read(fast) == codec.read(codec.checked(value)) == value


def test_numbers_that_a_codec_does_not_have() -> None:
    json, msgpack = codec_of(int, "json"), codec_of(int, "msgpack")
    assert json.read(json.checked(2**70)) == 2**70
    with pytest.raises(TypeError, match="a int cannot be stored as msgpack of int"):
        msgpack.checked(2**70)


def test_protobuf() -> None:
    codec = codec_of(Struct)
    value = Struct()
    value["a"] = 1
    assert (codec.name, codec.read(codec.checked(value))) == ("protobuf", value)


@pytest.mark.parametrize(
    ("kind", "item", "data"),
    [
        (str, 'é"\n', '"é\\"\\n"'.encode()),
        (bytes, b"\xff", b"\xff"),
        (int, 7, b"7"),
        (tuple[str, int], ("a", 1), b'["a",1]'),
        (date, date(2024, 6, 1), b'"2024-06-01"'),
        (UUID, UUID(int=5), b'"00000000-0000-0000-0000-000000000005"'),
        (Colour, Colour.RED, b'"red"'),
    ],
)
def test_items_have_one_form(kind: Any, item: Any, data: bytes) -> None:
    codec = item_codec_of(kind)
    assert codec.checked(item) == codec.fast_write(item) == data
    assert codec.read(data) == item


def test_what_never_changes() -> None:
    @dataclass(frozen=True)
    class Frozen:
        inner: Any

    for value in (1, "a", b"a", None, 0.5, True, (1, ("a",)), frozenset({1}), Colour.RED, Point(1), Frozen((1,))):
        assert never_changes(value)
    changing: Any
    for changing in ([1], {}, {1}, (1, [2]), Order("nut"), Frozen([1]), Record(1), bytearray(1)):
        assert not never_changes(changing)
