"""Rows of every type of Arrow that are written as JSON are the same rows when they are read with their schema."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import millstream_udf as udf
from millstream_udf.arrow_json import fitting
from millstream_udf.json_rows import MANY_ROWS, rows_as_json
from millstream_udf.testing import run
from tests.support.arrow_tables import CELLS
from tests.support.generated_rows import INSTANT, LONG

NANOS = st.integers(-(2**63) + 10**9, 2**63 - 1)
"""Of timestamps. Arrow does not read texts of the first second."""
NAIVE = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    numbers = st.integers(-most, most) | st.sampled_from([most, -most])
    return numbers.map(lambda number: Decimal(number).scaleb(-places, Context(prec=digits)))


INNER: Any = pa.struct(
    [pa.field("d", pa.decimal128(20, 2)), pa.field("t", pa.timestamp("ns", "UTC")), pa.field("b", pa.binary())]
)
# Nanoseconds are numbers here: Python has none.
TYPES: Mapping[Any, st.SearchStrategy[Any]] = {
    **CELLS,
    pa.decimal128(38, 18): decimals(38, 18),
    pa.decimal128(38, 0): decimals(38, 0),
    pa.decimal256(70, 30): decimals(70, 30),
    pa.timestamp("s", "UTC"): INSTANT.map(lambda moment: moment.replace(microsecond=0)),
    pa.timestamp("ms", "UTC"): INSTANT.map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
    pa.timestamp("us", "UTC"): INSTANT,
    pa.timestamp("us", "Europe/Berlin"): INSTANT,
    pa.timestamp("us"): NAIVE,
    pa.timestamp("ns", "UTC"): NANOS,
    pa.timestamp("ns"): NANOS,
    pa.date32(): st.dates(),
    pa.time32("s"): st.times().map(lambda time: time.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.time64("ns"): st.integers(0, 86_400 * 10**9 - 1),
    pa.binary(): st.binary(max_size=5),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.list_(pa.int64()): st.lists(st.none() | LONG, max_size=3),
    pa.list_(pa.decimal128(20, 2)): st.lists(st.none() | decimals(20, 2), max_size=3),
    pa.list_(pa.time64("ns")): st.lists(st.none() | st.integers(0, 86_400 * 10**9 - 1), max_size=3),
    INNER: st.fixed_dictionaries(
        {"d": st.none() | decimals(20, 2), "t": st.none() | NANOS, "b": st.binary(max_size=3)}
    ),
    pa.list_(INNER): st.lists(st.fixed_dictionaries({"d": decimals(20, 2), "t": NANOS, "b": st.none()}), max_size=2),
}
SCHEMA = pa.schema([pa.field(f"{number} {kind}", kind) for number, kind in enumerate(TYPES)])
ROW = st.tuples(*(st.none() | cells for cells in TYPES.values()))


@pytest.mark.slow
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(ROW, min_size=1, max_size=4))
def test_rows_of_every_type_are_what_their_json_is_read_as(rows: list[tuple[Any, ...]]) -> None:
    columns: list[Any] = [pa.array(cells, kind) for cells, kind in zip(zip(*rows, strict=True), TYPES, strict=True)]
    few = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    texts = rows_as_json(few)
    many = few.take(pa.array([number % len(rows) for number in range(MANY_ROWS)]))
    assert rows_as_json(many) == [texts[number % len(rows)] for number in range(MANY_ROWS)]
    found, misfits = fitting(pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=["value"]), SCHEMA)
    assert not misfits
    for name in SCHEMA.names:
        assert found[name].equals(few[name]), name


def test_a_function_that_hands_its_columns_on_changes_no_value() -> None:
    fields: dict[str, pa.DataType] = {
        "d": pa.decimal128(38, 18),
        "i": pa.int64(),
        "t": pa.timestamp("ns", "UTC"),
        "day": pa.date32(),
        "raw": pa.binary(),
    }

    @udf.map(arrow=True, schema=pa.schema(fields))
    def same(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(fields))

    value = (
        b'{"d":12345678901234567890.123456789012345678,"i":-9223372036854775808,'
        b'"t":"2024-01-02T03:04:05.123456789Z","day":"0001-01-02","raw":"/wA="}'
    )
    assert run(same, [value]).values == [value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.date32(), '"2024-02-30"'),
        (pa.date32(), "7"),
        (pa.time64("us"), '"01:02:03.1234567"'),
        (pa.time32("s"), '"01:02:03.5"'),
        (pa.time64("us"), '"25:00:00"'),
        (pa.time64("us"), '"01:02:03Z"'),
        (pa.timestamp("ms", "UTC"), '"2024-01-01T00:00:00.000001Z"'),
        (pa.binary(), '"no base64!"'),
        (pa.binary(), '"\u00e9"'),
        (pa.binary(3), '"/wA="'),
        (pa.list_(pa.date32()), '["2024-01-01", "x"]'),
    ],
)  # fmt: skip
def test_texts_that_are_no_value_of_their_type_do_not_fit(kind: pa.DataType, text: str) -> None:
    values: Any = pa.array([b'{"a": null}', b'{"a": %b}' % text.encode()], pa.binary())
    found, misfits = fitting(pa.RecordBatch.from_arrays([values], names=["value"]), pa.schema([pa.field("a", kind)]))
    assert (found.num_rows, list(misfits)) == (1, [1])
    assert str(kind) in str(misfits[1])


def test_times_of_early_years_have_four_digits_of_the_year() -> None:
    column: Any = pa.array([datetime(1, 2, 3, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert rows_as_json(pa.record_batch({"a": column})) == [b'{"a":"0001-02-03T00:00:00.000000Z"}']
