"""Values as Arrow columns: they say what their JSON says, or they travel as JSON."""

from __future__ import annotations

import math
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream_udf as udf
from millstream_udf import arrow_values
from millstream_udf.answering import answer_map, context_of
from millstream_udf.arrow import to_fields
from millstream_udf.arrow_messages import JSON_TIMES
from millstream_udf.columns import pack_bytes, pack_times
from millstream_udf.defining import define
from millstream_udf.definition import MAP
from millstream_udf.execution import open_function
from millstream_udf.inputs import FrameInputs
from millstream_udf.json_rows import rows_as_json
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.support.arrow_tables import tables


def frame_of(count: int, **values: bytes) -> bytes:
    info = frame_pb2.FrameInfo(records=count)
    return frame_pb2.SealedFrame(info=info, event_times_us=pack_times(range(count)), **values).SerializeToString()


def seen(rows: pa.RecordBatch, schema: pa.Schema) -> tuple[Any, Any]:
    """What a function of that schema gets of the rows: as columns, and as JSON."""
    as_columns = FrameInputs(frame_of(rows.num_rows, arrow=arrow_values.packed(rows)))
    as_json = FrameInputs(frame_of(rows.num_rows, values=pack_bytes(rows_as_json(rows))))
    assert as_columns.arrow_column
    return to_fields(as_columns, schema), to_fields(as_json, schema)


@given(tables())
def test_a_function_gets_of_columns_what_it_gets_of_json(rows: pa.RecordBatch) -> None:
    columns, json = seen(rows, rows.schema)
    assert columns == json
    assert not columns[1]


@given(tables())
def test_the_json_of_columns_is_what_their_function_would_have_written(rows: pa.RecordBatch) -> None:
    inputs = FrameInputs(frame_of(rows.num_rows, arrow=arrow_values.packed(rows)))
    assert inputs.values == rows_as_json(rows)


def schema_of(**fields: pa.DataType) -> pa.Schema:
    return pa.schema(fields)


ROWS = pa.RecordBatch.from_pydict({"a": pa.array([1, None, 3]), "b": pa.array(["x", "y", "z"])})


@pytest.mark.parametrize(
    ("schema", "misfits"),
    [
        (schema_of(b=pa.string()), []),
        (schema_of(a=pa.int64(), c=pa.string()), []),
        (schema_of(a=pa.float64(), b=pa.large_string()), []),
        (schema_of(a=pa.string()), [0, 2]),
        (pa.schema([pa.field("a", pa.int64(), nullable=False)]), [1]),
        (pa.schema([pa.field("c", pa.int64(), nullable=False)]), [0, 1, 2]),
    ],
    ids=["fewer", "missing", "other types", "wrong type", "null", "missing and required"],
)
def test_a_schema_that_the_columns_do_not_have_is_applied_to_their_json(schema: pa.Schema, misfits: list[int]) -> None:
    columns, json = seen(ROWS, schema)
    assert columns[0] == json[0]
    assert list(columns[1]) == list(json[1]) == misfits
    assert [str(misfit) for misfit in columns[1].values()] == [str(misfit) for misfit in json[1].values()]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, math.inf]),
        pa.array([math.nan, None]),
        pa.array([b"x", b"y"]),
        pa.array([0, 1], pa.timestamp("us")),
        pa.array([["x"], []]),
        pa.array(["x", "x"]).dictionary_encode(),
        pa.Array.from_buffers(
            pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
        ),
        pa.array(["x" * (1 << 20), ""]),
    ],
    ids=["infinity", "nan", "bytes", "times", "lists", "dictionary", "not UTF-8", "too large"],
)
def test_what_json_would_change_travels_as_json(column: Any) -> None:
    assert arrow_values.packed(pa.RecordBatch.from_arrays([column], names=["a"])) == b""


@given(tables(), st.data())
def test_parts_of_columns_are_the_columns_of_their_rows(rows: pa.RecordBatch, data: st.DataObject) -> None:
    whole, count = arrow_values.packed(rows), rows.num_rows
    groups = data.draw(st.lists(st.lists(st.integers(0, count - 1), min_size=1, max_size=count), max_size=3))
    values = rows_as_json(rows)
    for indexes, part in zip(groups, arrow_values.parts(whole, count, groups), strict=True):
        assert arrow_values.as_json(part, len(indexes)) == [values[index] for index in indexes]
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    cut = arrow_values.part(whole, count, start, stop)
    assert arrow_values.as_json(cut, stop - start) == values[start:stop]
    parts = [arrow_values.part(whole, count, at, at + 1) for at in range(count)]
    assert arrow_values.unpacked(arrow_values.joined(parts, [1] * count), count).equals(rows)


def test_columns_of_other_names_or_types_are_not_joined() -> None:
    others = [ROWS.rename_columns(["a", "c"]), ROWS.select(["a"]), ROWS.set_column(0, "a", ROWS["b"])]
    for other in others:
        assert arrow_values.joined([arrow_values.packed(ROWS), arrow_values.packed(other)], [3, 3]) == b""


NO_COLUMNS = ROWS.slice(1).select([])


def stream_of(*batches: pa.RecordBatch, compression: Any = None) -> bytes:
    """What a function outside the SDK might send."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("data", "count", "words"),
    [
        (stream_of(pa.RecordBatch.from_pydict({"a": [b"x"]})), 1, "a column of type binary"),
        (stream_of(pa.RecordBatch.from_pydict({"a": pa.array([0], pa.timestamp("us"))})), 1, "type timestamp[us]"),
        (stream_of(pa.RecordBatch.from_arrays([pa.array([1])] * 2, names=["a", "a"])), 1, "two columns of one name"),
        (stream_of(pa.RecordBatch.from_arrays([pa.array([True])], names=["a"])), 1, "JSON that would be much larger"),
        (stream_of(pa.RecordBatch.from_pydict({f"{n}": [1] for n in range(257)})), 1, "257 columns"),
        (stream_of(NO_COLUMNS), 2, "0 columns"),
        (stream_of(ROWS, ROWS), 3, "several batches"),
        (stream_of(pa.RecordBatch.from_pydict({"a": [7] * 9999}), compression="zstd"), 9999, "compressed"),
    ],
    ids=["bytes", "times", "one name", "narrow", "many", "none", "batches", "compressed"],
)  # fmt: skip
def test_columns_that_no_function_may_return_are_refused(data: bytes, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        arrow_values.unpacked(data, count)


def test_cells_that_json_changes_are_found() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1.0, math.nan]})
    data = stream_of(rows)
    assert arrow_values.unpacked(data, 2).num_rows == 2
    with pytest.raises(ValueError, match="JSON changes cells of a"):
        arrow_values.check(data, 2)
    arrow_values.check(arrow_values.packed(ROWS), 3)


@given(tables(), st.data())
def test_their_json_is_never_much_larger(rows: pa.RecordBatch, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, rows.num_rows - 1), min_size=1))
    (part,) = arrow_values.parts(arrow_values.packed(rows), rows.num_rows, [chosen])
    assert sum(map(len, arrow_values.as_json(part, len(chosen)))) <= JSON_TIMES * len(part)


@pytest.mark.parametrize(
    "rows",
    [
        pa.RecordBatch.from_arrays([pa.array([True, None])], names=["a column with a long name"]),
        pa.RecordBatch.from_arrays([pa.array([1, 2])] * 257, names=[f"{n}" for n in range(257)]),
    ],
    ids=["narrow", "many"],
)
def test_what_would_be_much_larger_as_json_or_has_a_large_schema_travels_as_json(rows: pa.RecordBatch) -> None:
    assert arrow_values.packed(rows) == b""


def test_what_a_schema_says_besides_names_and_types_does_not_travel() -> None:
    """It would be in each part, however small."""
    fields: list[Any] = [pa.field("a", pa.int64(), metadata={"x": "y" * 9999}), pa.field("b", pa.string())]
    schema = pa.schema(fields, metadata={"pandas": "y" * 9999})
    plain = arrow_values.packed(ROWS)
    assert arrow_values.packed(pa.RecordBatch.from_arrays(ROWS.columns, schema=schema)) == plain


def test_two_columns_of_one_name_travel_as_json() -> None:
    assert arrow_values.packed(pa.RecordBatch.from_arrays([ROWS["a"], ROWS["b"]], names=["a", "a"])) == b""


@given(st.binary(max_size=200))
def test_what_is_not_columns_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="Arrow"):
        arrow_values.unpacked(data, 3)


@given(st.integers(0, len(arrow_values.packed(ROWS)) - 1), st.integers(0, 255))
def test_damaged_columns_are_refused_or_read(at: int, byte: int) -> None:
    data = bytearray(arrow_values.packed(ROWS))
    data[at] = byte
    try:
        values = arrow_values.as_json(bytes(data), 3)
    except ValueError:
        return
    assert len(values) == 3


def test_another_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame with 2 records has 3 rows"):
        arrow_values.unpacked(arrow_values.packed(ROWS), 2)


async def test_only_columns_that_are_asked_for_are_returned() -> None:
    @udf.map(arrow=True, schema=ROWS.schema)
    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 2)

    call = udf_pb2.SealedMapCall(frame=frame_of(3, arrow=arrow_values.packed(ROWS)))
    definition = define(keep, "keep")
    assert definition.takes_arrow
    found: dict[bool, udf_pb2.SealedMapAnswer] = {}
    for asked in (False, True):
        hello = udf_pb2.Hello(kind=MAP, may_return_arrow=asked)
        async with open_function(definition, context_of(hello)) as function:
            found[asked] = await answer_map(function.lane(), hello, call)
    assert found[False].values == pack_bytes(rows_as_json(ROWS.slice(0, 2)))
    assert arrow_values.unpacked(found[True].arrow, 2).equals(ROWS.slice(0, 2))
    assert (found[False].arrow, found[True].values) == (b"", b"")


async def test_a_function_of_values_reads_columns_too() -> None:
    """A function that is replaced while its vertex runs."""

    @udf.map
    def same(value: bytes) -> bytes:
        return value

    hello = udf_pb2.Hello(kind=MAP)
    definition = define(same, "same")
    assert not definition.takes_arrow
    async with open_function(definition, context_of(hello)) as function:
        call = udf_pb2.SealedMapCall(frame=frame_of(3, arrow=arrow_values.packed(ROWS)))
        answer = await answer_map(function.lane(), hello, call)
    assert answer.values == pack_bytes(rows_as_json(ROWS))
