"""What a Parquet file has is what its source gives, for values of every type."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.exact_json import parse
from millstream_connectors.file.source.table_file import parquet_rows

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
INSTANT = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
NANOS = st.integers(-(2**63) + 10**9, 2**63 - 1) | st.sampled_from([-1, 0, 1, 1000])
"""Nanoseconds of a timestamp, which Python has not. Arrow does not read texts of the first second."""


def integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(least, most) | st.sampled_from([least, most])


TYPES: Mapping[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), integers(8)),
    "int16": (pa.int16(), integers(16)),
    "int32": (pa.int32(), integers(32)),
    "int64": (pa.int64(), integers(64)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "string": (pa.string(), TEXT),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "binary": (pa.binary(), st.binary(max_size=8)),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "decimal": (pa.decimal128(38, 18), st.decimals(-(10**19), 10**19, places=18, allow_nan=False)),
    "wide": (pa.decimal256(60, 20), st.decimals(-(10**30), 10**30, places=20, allow_nan=False)),
    "date": (pa.date32(), st.dates()),
    "micros": (pa.timestamp("us", "UTC"), INSTANT),
    "nanos": (pa.timestamp("ns", "UTC"), NANOS),
    "naive": (pa.timestamp("ns"), NANOS),
    "time": (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1) | st.sampled_from([1, 1000, 10**9])),
    "list": (pa.list_(pa.int64()), st.lists(integers(64), max_size=3)),
    "inner": (pa.struct([pa.field("d", pa.decimal128(20, 2)), pa.field("t", pa.string())]), st.fixed_dictionaries(
        {"d": st.decimals(-(10**17), 10**17, places=2, allow_nan=False) | st.none(), "t": TEXT | st.none()})),
}  # fmt: skip


def number(value: Any) -> Any:
    """A value of JSON: numbers as decimals, so that digits count and forms do not."""
    return Decimal(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def written(value: Any) -> Any:
    """The same as the source writes it."""
    if isinstance(value, dict):
        return {name: written(one) for name, one in value.items()}
    if isinstance(value, list):
        return [written(one) for one in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else number(value)


def read(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "micros":
        return datetime.fromisoformat(value)
    if name in ("nanos", "naive", "time"):
        text: Any = pa.array([f"1970-01-01T{value}Z" if name == "time" else value])
        return Decimal(text.cast(pa.timestamp("ns", "UTC"))[0].value)
    if name == "float":
        return Decimal(float(pa.scalar(float(value), pa.float32()).as_py()))
    if name in ("decimal", "wide"):
        return f"{Decimal(value):f}"
    if isinstance(value, dict):
        return {inner: one if one is None or inner == "t" else f"{Decimal(one):f}" for inner, one in value.items()}
    if isinstance(value, list):
        return [number(one) for one in value]
    return Decimal(float(value)) if name == "double" else number(value)


ROWS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), min_size=1, max_size=3
)


@settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(ROWS)
def test_parquet_source(rows: list[dict[str, Any]]) -> None:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in TYPES.items()}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    found = [parse(value) for block in parquet_rows(file, 0) for value in block]
    for name in TYPES:
        assert [read(name, row[name]) for row in found] == [written(row[name]) for row in rows], name
