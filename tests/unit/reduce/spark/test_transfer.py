"""Rows and errors come out as they went in, whatever their size."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import errors
from millstream.errors import DamageError, InfrastructureError, MillstreamError, RetryLaterError, UdfError, UserError
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.wire import (
    ERROR_CLASS,
    MESSAGE_BYTES_MAX,
    PART_BYTES_MAX,
    decoded_rows,
    encoded_rows,
    error_of,
    error_parts,
)


def rows_of(values: list[bytes]) -> pa.Table:
    count = len(values)
    columns = {
        "window": pa.array(range(count), pa.int32()),
        "keys": [["a", "b"] if index % 2 else None for index in range(count)],
        "value": values,
        "tags": [["x"] if index % 3 else None for index in range(count)],
        "headers": [[("h", b"1")] if index % 5 else None for index in range(count)],
    }
    return pa.table(columns, schema=RESULT_SCHEMA)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5).map(lambda power: 10**power), max_size=200), st.integers(1, 50))
def test_rows_come_out_as_they_went_in_and_no_part_is_too_large(sizes: list[int], chunk: int) -> None:
    table = rows_of([b"v" * size for size in sizes])
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=chunk), RESULT_SCHEMA)
    parts = list(encoded_rows(chunked))
    assert decoded_rows(parts, RESULT_SCHEMA).equals(table)
    assert all(len(part) <= PART_BYTES_MAX + 100_000 for part in parts)


def test_a_row_larger_than_a_part_goes_alone() -> None:
    table = rows_of([b"a", b"v" * (PART_BYTES_MAX + 1), b"b"])
    parts = list(encoded_rows(table))
    assert len(parts) == 3
    assert decoded_rows(parts, RESULT_SCHEMA).equals(table)


def test_no_rows_are_no_parts() -> None:
    empty = RESULT_SCHEMA.empty_table()
    assert list(encoded_rows(empty)) == []
    assert decoded_rows([], RESULT_SCHEMA).equals(empty)


@pytest.mark.parametrize(
    "kind", [DamageError, InfrastructureError, MillstreamError, RetryLaterError, UdfError, UserError]
)
def test_an_error_stays_what_it_is(kind: type[MillstreamError]) -> None:
    text, metadata = error_parts(kind("what happened, where"))
    found = error_of(text, metadata)
    assert type(found) is kind
    assert str(found) == "what happened, where"


def test_an_error_of_a_kind_that_only_the_driver_knows_becomes_the_kind_it_is_made_from() -> None:
    class LostFault(InfrastructureError):
        pass

    assert type(error_of(*error_parts(LostFault("gone")))) is InfrastructureError


def test_a_long_text_is_cut_between_characters() -> None:
    text, _ = error_parts(UserError("ü" * MESSAGE_BYTES_MAX))
    assert text == "ü" * (MESSAGE_BYTES_MAX // 2)


@pytest.mark.parametrize("name", ["KeyError", "annotations", "ClassVar", "", b"UserError"])
def test_what_is_no_error_of_ours_is_none(name: str | bytes) -> None:
    assert error_of("text", ((ERROR_CLASS, name),)) is None
    assert error_of("text", ()) is None
    assert hasattr(errors, "annotations")
