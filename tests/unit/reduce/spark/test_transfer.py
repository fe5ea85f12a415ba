"""Rows and errors come out as they went in, whatever their size."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import codes, errors
from millstream.codes.code import Code
from millstream.errors import DamageError, InfrastructureError, MillstreamError, RetryLaterError, UdfError, UserError
from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.wire import (
    ERROR_KIND,
    MESSAGE_BYTES_MAX,
    PART_BYTES_MAX,
    decoded_rows,
    encoded_rows,
    error_from,
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
    ("kind", "code"),
    [
        (DamageError, codes.SEGMENT_DAMAGED),
        (InfrastructureError, codes.SPARK_NOT_STARTED),
        (MillstreamError, codes.DEFECT),
        (RetryLaterError, codes.SPARK_JOB),
        (UdfError, codes.FUNCTION_IMPORT),
        (UserError, codes.QUERY),
    ],
)
def test_an_error_stays_what_it_is(kind: type[MillstreamError], code: Code) -> None:
    found = error_from(*error_parts(kind(code, "what happened, where")))
    assert type(found) is kind
    assert found.code is code
    assert str(found) == "what happened, where"


def test_an_error_of_a_kind_that_only_the_driver_knows_becomes_the_kind_it_is_made_from() -> None:
    class LostFault(InfrastructureError):
        pass

    found = error_from(*error_parts(LostFault(codes.SPARK_LOST, "gone")))
    assert type(found) is InfrastructureError
    assert found.code is codes.SPARK_LOST


def test_a_long_text_is_cut_between_characters() -> None:
    text, _ = error_parts(UserError(codes.QUERY, "ü" * MESSAGE_BYTES_MAX))
    assert text == "ü" * (MESSAGE_BYTES_MAX // 2)


@pytest.mark.parametrize(
    "kind",
    ["KeyError MS-2603", "annotations MS-2603", "ClassVar MS-2603", "UserError", "UserError MS-2999", "", b"UserError"],
)
def test_what_is_no_error_of_ours_is_none(kind: str | bytes) -> None:
    assert error_from("text", ((ERROR_KIND, kind),)) is None
    assert error_from("text", ()) is None
    assert hasattr(errors, "annotations")
