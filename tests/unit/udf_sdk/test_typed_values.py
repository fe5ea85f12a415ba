"""Values as types: what each takes, what it says of what does not fit, and how objects are written again.

Every case runs with msgspec and without it: what is installed decides how fast it is, and nothing else.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from millstream_udf import typed_values
from millstream_udf.json_types import UnsupportedType
from millstream_udf.misfits import VALUES_VARIABLE, BadOutput, Misfit
from millstream_udf.typed_values import JSON, decoder


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Line:
    item: str
    price: float = 0.0


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    colour: Colour | None = None
    total: Decimal = Decimal(0)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass
class Refund:
    refunded: int


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    a: int
    b: int = 2


@dataclass
class Picky:
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("a is at least 0")


class Reading(TypedDict):
    sensor: str
    celsius: NotRequired[float]


class Point(NamedTuple):
    x: int
    y: int = 0


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    items: list[T]
    first: T | None = None


OrderId = NewType("OrderId", int)


class Model(pydantic.BaseModel):
    id: int
    at: datetime | None = None
    long_name: str = pydantic.Field(default="", alias="longName")


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int


@pydantic.dataclasses.dataclass
class Checked:
    id: int


class Struct(msgspec.Struct):
    id: int
    name: str = ""


Strict = msgspec.defstruct("Strict", [("id", int)], forbid_unknown_fields=True)


@dataclass
class Mixed:
    model: Model
    struct: Struct


@pytest.fixture(params=["msgspec", "json"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways to decode and encode; each has its own writers."""
    typed_values._writer.cache_clear()
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "msgspec", None)
    yield request.param
    typed_values._writer.cache_clear()


UUID_TEXT = "12345678-1234-5678-1234-567812345678"
NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
NAIVE_NOON = NOON.replace(tzinfo=None)

FITTING: list[tuple[Any, bytes, Any]] = [
    (str, "grüße".encode(), "grüße"),
    (int, b"7", 7),
    (int, b"-" + b"9" * 30, -int("9" * 30)),
    (float, b"1", 1.0),
    (float, b"1.5e3", 1500.0),
    (bool, b"true", True),
    (Any, b' {"a": [1, null]} ', {"a": [1, None]}),
    (dict, b'{"a": 1, "a": 2}', {"a": 2}),
    (list, b"[1]", [1]),
    (dict[str, int], b'{"a": 1}', {"a": 1}),
    (dict[int, str], b'{"7": "a"}', {7: "a"}),
    (dict[Colour, int], b'{"red": 1}', {Colour.RED: 1}),
    (Mapping[str, float], b'{"a": 1}', {"a": 1.0}),
    (Sequence[int], b"[1, 2]", [1, 2]),
    (tuple[int, ...], b"[1, 2]", (1, 2)),
    (tuple[int, str], b'[1, "a"]', (1, "a")),
    (set[int], b"[1, 1]", {1}),
    (frozenset[str], b'["a"]', frozenset("a")),
    (datetime, b'"2024-06-01T12:00:00Z"', NOON),
    (datetime, b'"2024-06-01 14:00:00+02:00"', NOON),
    (datetime, b'"2024-06-01T12:00:00"', NAIVE_NOON),
    (date, b'"2024-06-01"', date(2024, 6, 1)),
    (time, b'"12:30:00"', time(12, 30)),
    (timedelta, b'"P1DT1.5S"', timedelta(days=1, seconds=1.5)),
    (Decimal, b'"1.10"', Decimal("1.10")),
    (Decimal, b"1.1", Decimal("1.1")),
    (Decimal, b"12345678901234567890.1234567890", Decimal("12345678901234567890.1234567890")),
    (dict[str, Any], b'{"a": [1.5]}', {"a": [1.5]}),
    (UUID, f'"{UUID_TEXT}"'.encode(), UUID(UUID_TEXT)),
    (Colour, b'"red"', Colour.RED),
    (Size, b"2", Size.LARGE),
    (Literal["a", 1], b"1", 1),
    (int | None, b"null", None),
    (int | str, b'"a"', "a"),
    (datetime | str, b'"later"', "later"),
    (Order | Refund, b'{"refunded": 1}', Refund(1)),
    (Annotated[int, "anything"], b"1", 1),
    (OrderId, b"1", 1),
    (Point, b"[1]", Point(1, 0)),
    (Reading, b'{"sensor": "a", "other": 1}', {"sensor": "a"}),
    (Line, b'{"item": "nut", "unknown": {"deep": 1}}', Line("nut")),
    (Order, b'{"id": 1, "lines": [{"item": "nut", "price": 2}]}', Order(1, [Line("nut", 2.0)])),
    (Order, b'{"id": 1, "colour": null, "total": "9.90"}', Order(1, total=Decimal("9.90"))),
    (Tree, b'{"name": "a", "children": [{"name": "b"}]}', Tree("a", [Tree("b")])),
    (Frozen, b'{"a": 1}', Frozen(a=1)),
    (Page[int], b'{"items": [1], "first": 1}', Page([1], 1)),
    (list[Line], b'[{"item": "nut"}]', [Line("nut")]),
    (Model, b'{"id": 1, "longName": "x"}', Model(id=1, longName="x")),
    (Checked, b'{"id": 1}', Checked(1)),
]

MISFITS: list[tuple[Any, bytes, str]] = [
    (str, b"a\xff", r"the value does not fit str: it is not UTF-8 from byte 1 on: b'a\xff'"),
    (Order, b"", "the value does not fit Order: it is not JSON: the value is empty"),
    (
        Order,
        b"{id: 1}",
        "fit Order: it is not JSON: Expecting property name enclosed in double quotes at byte 1: '{id: 1}'",
    ),
    (Order, b'{"id": 1} x', "it is not JSON: Extra data at byte 10"),
    (Order, b'{"id": "\xff"}', r"it is not JSON: byte 8 is not UTF-8: b'{"),
    (Order, b"[" * 100_000, "it is not JSON: the value is nested too deeply"),
    (Order, b'{"id": NaN}', "it is not JSON: NaN is not a JSON number"),
    (Line, b'{"item": "a", "price": 1e999}', "it is not JSON: 1e999 is too large for a float"),
    (int, b"9" * 5000, "it is not JSON"),
    (Order, b"[1]", "the value does not fit Order: it is [1], where an object (Order) is expected"),
    (Order, b'{"lines": []}', 'the value does not fit Order: field `id` is missing; the value has "lines"'),
    (Order, b'{"id": "7"}', 'field `id` is "7", where a whole number (int) is expected'),
    (Order, b'{"id": 7.0}', "field `id` is 7.0, where a whole number (int) is expected"),
    (Order, b'{"id": true}', "field `id` is true, where a whole number (int) is expected"),
    (Order, b'{"id": null}', "field `id` is null, where"),
    (Order, b'{"id": 1, "lines": [{"item": "a"}, {"item": 2}]}', "field `lines[1].item` is 2, where a string"),
    (Order, b'{"id": 1, "lines": [{"price": 1}]}', 'field `lines[0].item` is missing; the value has "price"'),
    (Order, b'{"id": 1, "notes": {"a": 1}}', "field `notes.a` is 1, where a string is expected"),
    (Order, b'{"id": 1, "colour": "green"}', 'field `colour` is "green", where Colour or None is expected'),
    (Order, b'{"id": 1, "total": "1,5"}', 'field `total` is "1,5", where a decimal number'),
    (Colour, b'"green"', 'it is "green", where one of "red", "blue" (Colour) is expected'),
    (Size, b"true", "it is true, where one of 1, 2 (Size) is expected"),
    (Literal["a"], b'"b"', 'it is "b", where one of "a" is expected'),
    (bool, b"1", "it is 1, where true or false is expected"),
    (float, b'"1.5"', 'it is "1.5", where a number (float) is expected'),
    (datetime, b'"yesterday"', 'it is "yesterday", where a time such as "2024-06-01T12:00:00Z" is expected'),
    (datetime, b"1717243200", "it is 1717243200, where a time such as"),
    (datetime, b'"2024-06-01"', 'it is "2024-06-01", where a time such as'),
    (date, b'"01.06.2024"', "where a date such as"),
    (UUID, b'"x"', "where a UUID is expected"),
    (int | str, b"1.5", "it is 1.5, where int or str is expected"),
    (dict[int, str], b'{"a": "b"}', 'field `a` is "a", where a whole number (int) is expected'),
    (list[int], b'[1, "a"]', 'field `[1]` is "a", where'),
    (tuple[int, str], b"[1]", "it is [1], where an array of 2 is expected"),
    (Picky, b'{"a": -1}', "it is refused by Picky: a is at least 0"),
    (Reading, b'{"celsius": 1}', "field `sensor` is missing"),
    (Model, b'{"id": "x"}', 'the value does not fit Model: field `id` is "x": Input should be a valid integer'),
    (Model, b"{}", "the value does not fit Model: field `id` is missing"),
    (Closed, b'{"id": 1, "b": 2}', "field `b` is 2: Extra inputs are not permitted"),
    (Line, b'{"item": "' + b"x" * 500 + b'", "price": "a"}', 'field `price` is "a", where a number'),
    (Line, b'{"item": ["' + b"x" * 500 + b'"]}', '"' + "x" * 78 + "..., where a string is expected"),
    (Line, '{"item": ["\u202e\\n"]}'.encode(), r'field `item` is ["\u202e\n"], where'),
]


@pytest.mark.parametrize(("kind", "value", "expected"), FITTING)
def test_a_value_that_fits(engine: str, kind: Any, value: bytes, expected: Any) -> None:
    made = decoder(kind).one(value)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(("kind", "value", "says"), MISFITS)
def test_a_value_that_does_not_fit(engine: str, kind: Any, value: bytes, says: str) -> None:
    with pytest.raises(Misfit) as caught:
        decoder(kind).one(value)
    text = str(caught.value)
    assert says in text
    assert len(text) < 400
    assert text.isprintable()


@pytest.mark.parametrize("value", [b'{"id": 1, "name": "a"}', b'{"id": 1}'])
def test_a_struct_of_msgspec(value: bytes) -> None:
    assert decoder(Struct).one(value) == msgspec.json.decode(value, type=Struct)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (Struct, b'{"id": "x"}', 'the value does not fit Struct: field `id` is "x": Expected `int`, got `str`'),
        (Struct, b"{}", "field `id` is missing"),
        (Strict, b'{"id": 1, "b": 2}', "Object contains unknown field `b`"),
        (list[Struct], b'[{"id": 1}, {"id": 2.5}]', "field `[1].id` is 2.5: Expected `int`, got `float`"),
        (Mixed, b'{"model": {"id": 1}, "struct": {"id": "y"}}', 'field `struct.id` is "y"'),
        (Mixed, b'{"model": {"id": "x"}, "struct": {"id": 1}}', 'field `model.id` is "x"'),
    ],
)
def test_what_a_struct_does_not_take(kind: Any, value: bytes, says: str) -> None:
    with pytest.raises(Misfit) as caught:
        decoder(kind).one(value)
    assert says in str(caught.value)


def test_models_of_both_kinds_in_one() -> None:
    made = decoder(Mixed).one(b'{"model": {"id": 1}, "struct": {"id": 2}}')
    assert made == Mixed(Model(id=1), Struct(2))
    assert decoder(Mixed).one(JSON.one(made)) == made


class Plain:
    pass


@dataclass
class HoldsPlain:
    inner: list[Plain]


@dataclass
class Keyed:
    id: int


@dataclass
class HoldsKeys:
    inner: dict[Keyed, int]


class Level(enum.Enum):
    LOW = 1


def test_names_of_an_object_may_stand_for_numbers(engine: str) -> None:
    assert decoder(dict[Level, int]).one(b'{"1": 2}') == {Level.LOW: 2}
    assert decoder(dict[int | None, int]).one(b'{"1": 2}') == {1: 2}
    assert decoder(dict[float, int]).one(b'{"1.5": 2}') == {1.5: 2}
    assert decoder(dict[str, int]).one(b'{"1": 2}') == {"1": 2}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Plain, "Plain cannot be read from JSON"),
        (HoldsPlain, "Plain cannot be read from JSON (field inner of HoldsPlain)"),
        (complex, "complex cannot be read from JSON"),
        (7, "7 is not a type"),
        (dict[bool, int], "bool cannot be the name of a field"),
        (dict[tuple[int, int], int], "tuple[int, int] cannot be the name of a field"),
        (HoldsKeys, "Keyed cannot be the name of a field (field inner of HoldsKeys)"),
        (set[list[int]], "a set cannot contain list[int], which has no hash"),
        (frozenset[Keyed], "a set cannot contain Keyed, which has no hash"),
    ],
)
def test_types_that_json_cannot_be(engine: str, kind: Any, says: str) -> None:
    with pytest.raises(UnsupportedType) as caught:
        decoder(kind)
    assert says in str(caught.value)


def test_a_struct_without_msgspec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(UnsupportedType, match=r"pip install 'millstream-udf\[typed\]'"):
        decoder(Struct)


def test_a_function_decodes() -> None:
    assert decoder(bytes.upper).one(b"a") == b"A"
    with pytest.raises(Misfit, match="it is refused: KeyError: 'a'"):
        decoder({"b": 1}.__getitem__).one("a")  # type: ignore[arg-type]  # any value will do


WRITTEN: list[tuple[Any, bytes]] = [
    ({"a": 1, "b": [True, None, "é"]}, '{"a":1,"b":[true,null,"é"]}'.encode()),
    (MappingProxyType({"a": 1}), b'{"a":1}'),
    ({"n": float("nan"), "i": [float("-inf")]}, b'{"n":null,"i":[null]}'),
    ({"big": 10**30}, b'{"big":' + str(10**30).encode() + b"}"),
    ({"at": NOON, "local": NAIVE_NOON}, b'{"at":"2024-06-01T12:00:00Z","local":"2024-06-01T12:00:00"}'),
    ({"at": NOON.astimezone(timezone(timedelta(hours=2)))}, b'{"at":"2024-06-01T14:00:00+02:00"}'),
    ({"d": date(2024, 6, 1), "t": time(12)}, b'{"d":"2024-06-01","t":"12:00:00"}'),
    ({"d": Decimal("1.10"), "u": UUID(UUID_TEXT)}, f'{{"d":"1.10","u":"{UUID_TEXT}"}}'.encode()),
    ({"b": b"hi", "c": Colour.RED, "s": Size.SMALL}, b'{"b":"aGk=","c":"red","s":1}'),
    ({7: 1, Colour.RED: 2, date(2024, 6, 1): 3}, b'{"7":1,"red":2,"2024-06-01":3}'),
    ({"p": Point(1, 2), "s": frozenset("a")}, b'{"p":[1,2],"s":["a"]}'),
    (Order(1, [Line("nut")]), b'{"id":1,"lines":[{"item":"nut","price":0.0}],"colour":null,"total":"0","notes":{}}'),
    (Frozen(a=1), b'{"a":1,"b":2}'),
    (Model(id=1, longName="x"), b'{"id":1,"at":null,"longName":"x"}'),
    ({"m": Model(id=1, at=NOON)}, b'{"m":{"id":1,"at":"2024-06-01T12:00:00Z","longName":""}}'),
    (Checked(1), b'{"id":1}'),
    *(
        ({"d": duration}, f'{{"d":"{text}"}}'.encode())
        for duration, text in [
            (timedelta(days=1, seconds=1.5), "P1DT1.5S"),
            (timedelta(0), "P0D"),
            (timedelta(days=2), "P2D"),
            (-timedelta(seconds=1), "-PT1S"),
        ]
    ),
]


@pytest.mark.parametrize(("value", "written"), WRITTEN)
def test_objects_become_json(engine: str, value: Any, written: bytes) -> None:
    assert JSON.one(value) == written


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, Plain()]}, "a dict cannot be written as JSON: JSON has no Plain (field `a[1]`)"),
        (HoldsPlain([Plain()]), "a HoldsPlain cannot be written as JSON: JSON has no Plain (field `inner[0]`)"),
        ({"a": {(1, 2): 1}}, "a name in JSON must be a text or a number, not (1, 2) (field `a`)"),
        ({True: 1}, "a name in JSON must be a text or a number, not True"),
        ({"a": "\ud800"}, "surrogates not allowed"),
        (7, "a dict, a dataclass or a model, but this is int"),
    ],
)
def test_what_cannot_be_written(engine: str, value: Any, says: str) -> None:
    with pytest.raises(BadOutput) as caught:
        JSON.one(value)
    assert says in str(caught.value)


def test_an_object_that_holds_itself_is_refused(engine: str) -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(BadOutput, match="cannot be written as JSON"):
        JSON.one(loop)


@pytest.mark.parametrize(("kind", "value"), [(Order, b'{"id": "secret"}'), (Order, b"{secret"), (str, b"secret\xff")])
def test_messages_show_no_values_where_the_pipeline_says_so(
    engine: str, monkeypatch: pytest.MonkeyPatch, kind: Any, value: bytes
) -> None:
    monkeypatch.setenv(VALUES_VARIABLE, "hidden")
    with pytest.raises(Misfit) as caught:
        decoder(kind).one(value)
    assert "secret" not in str(caught.value)
    assert "(not shown)" in str(caught.value)


@dataclass
class Amounts:
    exact: Decimal
    lines: list[Decimal]
    near: float
    anything: Any
    inner: Totals | None = None


class Totals(msgspec.Struct):
    total: Decimal


def test_decimals_keep_their_digits_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_values, "_msgspec", lambda kind: None)
    digits = "12345678901234567890.12345678901234567890"
    value = f'{{"exact": {digits}, "lines": [1.10, 5], "near": {digits}, "anything": {{"a": [1.5]}}, '
    value += f'"inner": {{"total": {digits}}}}}'
    found = typed_values.decoder(Amounts).one(value.encode())
    lines, exact = [Decimal("1.10"), Decimal(5)], Decimal(digits)
    assert found == Amounts(exact, lines, float(digits), {"a": [1.5]}, Totals(exact))
    assert (type(found.near), type(found.anything["a"][0])) == (float, float)
    assert str(found.lines[0]) == "1.10"
