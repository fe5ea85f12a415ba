"""Values of states stay what they were: what would be read as something else is refused when it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

import millstream_udf as udf
from millstream_udf.defining import define
from millstream_udf.state_codecs import codec_of, item_codec_of
from millstream_udf.testing import run

WRONG: Any = udf
"""For uses that type checkers refuse."""


@dataclass
class Mean:
    value: float | None = None


class Struct(msgspec.Struct):
    value: float | None = None


class Model(pydantic.BaseModel):
    value: float | None = None


def outcomes(function: Any, *values: bytes) -> list[Any]:
    """The values of the outputs, or why there is none."""
    results = run(function, [udf.Record(value, keys=("k",)) for value in values])
    failed = {one.index: one.reason for one in results.outcomes}
    return [failed[index] if index in failed else results.of(index)[0].value for index in range(len(values))]


def test_bytes_of_an_older_version_are_migrated_however_they_are_read() -> None:
    class Old:
        token = udf.value(bytes)
        tokens = udf.map_state(str, bytes)

        def process(self, value: bytes) -> None:
            self.token, self.tokens["a"] = b"old", b"old"

    class New:
        token = udf.value(bytes, version=2, migrate={1: lambda old: b"new:" + old})
        tokens = udf.map_state(str, bytes, version=2, migrate={1: lambda old: b"new:" + old})

        def process(self, value: bytes) -> list[bytes]:
            return [self.token or b"", self.tokens["a"]]

    states = run(Old, [b""]).states
    assert states is not None
    assert run(New, [b"", b""], states=states.carried(New)).values == [b"new:old"] * 4


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (Any, lambda number: {"a": [1, number]}),
        (dict, lambda number: {"a": {"b": number, "c": None}}),
        (list, lambda number: [None, (number,)]),
        (float | None, lambda number: number),
        (list[float | None], lambda number: [number]),
        (Mean, Mean),
        (Struct, Struct),
        (Model, lambda number: Model(value=number)),
        (list[Mean], lambda number: [Mean(number)]),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_wherever_it_is(kind: Any, make: Any, number: float) -> None:
    codec = codec_of(kind, "json")
    for write in (codec.checked, codec.fast_write):
        with pytest.raises(TypeError, match=f"JSON has no number {number}"):
            write(make(number))
    nothing = make(None)
    assert codec.read(codec.checked(nothing)) is not None or nothing is None


def test_such_a_number_fails_its_record() -> None:
    def keep(value: bytes, state: udf.State) -> str:
        state["mean"] = {"value": math.inf} if value == b"inf" else None
        return "kept"

    assert outcomes(keep, b"inf", b"1") == ["state state: JSON has no number inf", ""]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [(str, b"x"), (str, datetime(2026, 5, 4, tzinfo=UTC)), (float, 2**60 + 1), (str, 7), (float, "1"), (Decimal, b"1")],
)
def test_a_scalar_of_another_type_is_refused(kind: Any, value: Any, codec: str) -> None:
    with pytest.raises(TypeError, match=f"a {type(value).__name__} is not what the state stores"):
        codec_of(kind, codec).checked(value)


def test_a_scalar_of_another_type_fails_its_record() -> None:
    class Tokens:
        token = udf.value(str)

        def process(self, value: bytes) -> str:
            self.token = value.decode() if value == b"text" else value  # type: ignore[assignment]  # that is the mistake
            return "kept"

    found = outcomes(Tokens, b"text", b"bytes")
    assert found == [
        b"kept",
        "state token: a bytes is not what the state stores (str): it would be read again as 'Ynl0ZXM='",
    ]


@pytest.mark.parametrize(
    ("kind", "default", "read"),
    [(list[int], (), "[]"), (Mean, {"value": 1.0}, "Mean(value=1.0)"), (set[int], [1], "{1}")],
)
def test_a_default_is_of_the_type_of_the_state(kind: Any, default: Any, read: str) -> None:
    with pytest.raises(TypeError) as refused:
        WRONG.value(kind, default=default)
    assert str(refused.value).endswith(f"is not of the type of the state: it would be read as {read}")


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        (float, [1, 1.0]),
        (float, [0.0, -0.0, 0]),
        (Decimal, [Decimal("1.5"), Decimal("1.50"), 1.5]),
        (Decimal, [Decimal("0"), Decimal("-0.0")]),
        (Decimal, [Decimal(f"{10**40 + 1}"), Decimal(f"{10**40 + 1}.0")]),
        (
            datetime,
            [datetime(2026, 5, 4, 12, tzinfo=UTC), datetime(2026, 5, 4, 14, tzinfo=timezone(timedelta(hours=2)))],
        ),
    ],
)
def test_items_that_are_equal_are_one_item(kind: Any, same: Sequence[Any]) -> None:
    codec = item_codec_of(kind)
    assert len(set(map(codec.checked, same))) == 1
    assert codec.read(codec.checked(same[0])) == same[0]


def test_an_item_that_would_be_another_one_is_refused() -> None:
    for kind, item in ((float, 2**60 + 1), (float, True), (float | None, math.nan), (str, 5)):
        with pytest.raises(TypeError):
            item_codec_of(kind).checked(item)


def test_counters_of_plain_functions_have_64_bits() -> None:
    def count(value: bytes, state: udf.State) -> str:
        return str(state.incr_counter("n", int(value)))

    assert outcomes(count, b"9223372036854775807", b"1")[1].startswith("OverflowError: counter n would be 92233")
    assert outcomes(count, b"-9223372036854775808", b"1") == [b"-9223372036854775808", b"-9223372036854775807"]


def test_names_that_mean_something_else_are_refused() -> None:
    def refusal(**members: Any) -> str:
        with pytest.raises(TypeError) as refused:
            define(type("Named", (), {"process": lambda self, record: None, **members}), "Named")
        return str(refused.value)

    for name in ("setup", "close", "on_timer", "process"):
        assert (
            refusal(**{name: udf.value(int)}) == f"Named: no state can be called {name}, which is the name of a method"
        )
        assert (
            refusal(**{name: udf.table(int)}) == f"Named: no table can be called {name}, which is the name of a method"
        )
    assert "begin with no digit" in refusal(**{"1st": udf.value(int)})
    for name in ("timer", "cancel_timer", "_turn"):
        batch = udf.map(batch=True)(
            type("Batch", (), {"process": lambda self, records, states: [], name: udf.value(int)})
        )
        with pytest.raises(TypeError, match=f"takes batches, so none of its states can be called {name}"):
            define(batch, "Batch")
