"""Records as a pyarrow.RecordBatch, without copying their values, and back.

Above it: `answering`. Below it: pyarrow, an extra of this distribution (`millstream-udf[arrow]`), so it is imported
only if a function uses Arrow.

In:  value: binary, event_time: timestamp[us, UTC], keys: list<string>, headers: map<string, binary>, parent: uint32.
     With a schema, its fields replace value.
Out: value: binary or string; or columns with any other names, whose rows become JSON objects; and optional
     parent: ascending integers, the index of the input record (if omitted, row i came from record i); keys and tags:
     string or list<string>; headers: map<string, binary or string>; event_time (source transforms). An omitted column
     is inherited, except tags, which are then empty.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millstream_udf import arrow_values, columns
from millstream_udf.arrow_json import fitting
from millstream_udf.context import Context
from millstream_udf.definition import SOURCE_TRANSFORM
from millstream_udf.execution import FunctionLane
from millstream_udf.failures import Outcomes
from millstream_udf.fields import content, field, without_large
from millstream_udf.inputs import FrameInputs
from millstream_udf.json_rows import json_column, whole
from millstream_udf.misfits import BadOutput, Misfit
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2

_Column = frame_pb2.SealedBytesColumn
_BESIDE = {"parent", "keys", "tags", "headers", "event_time"}
_BESIDE_VALUES = ("event_time", "keys", "headers", "parent")
_TIME_BYTES = 8
_NUMBER_BYTES = 4


def to_batch(inputs: FrameInputs) -> pa.RecordBatch:
    """The frame as a batch. The value column shares the frame's memory."""
    return pa.RecordBatch.from_arrays([value_column(inputs), *_beside(inputs)], names=["value", *_BESIDE_VALUES])


def _beside(inputs: FrameInputs) -> list[Any]:
    """The columns `_BESIDE_VALUES`."""
    return [
        time_column(inputs),
        _lists(inputs.keys if inputs.keys_column else None, inputs.count, pa.list_(pa.string())),
        _lists(
            [list(headers.items()) for headers in inputs.headers] if inputs.headers_column else None,
            inputs.count,
            pa.map_(pa.string(), pa.binary()),
        ),
        pa.Array.from_buffers(pa.uint32(), inputs.count, [None, pa.py_buffer(_numbers(inputs.count))]),
    ]


def _lists(lists: Sequence[Any] | None, count: int, kind: Any) -> Any:
    """Lists or maps as a column; None: all are empty."""
    if lists is not None:
        return pa.array(lists, kind)
    empty: Any = pa.array([[]], kind)
    return empty.take(pa.nulls(count, pa.int64()).fill_null(0))


def _numbers(count: int) -> bytes:
    """The numbers from 0 to `count`, exclusive, as Arrow stores them."""
    return array("I", range(count)).tobytes()


def value_column(inputs: FrameInputs) -> pa.Array[Any]:
    """The values, in the frame's memory. Raises `ValueError`."""
    if inputs.arrow_column:
        return pa.array(inputs.values, pa.binary())
    columns.check_bytes(inputs.values_column, inputs.count)
    if not inputs.count:
        return pa.array([], pa.binary())
    rest, large = without_large(inputs.values_column, (_Column.OFFSETS_FIELD_NUMBER, _Column.DATA_FIELD_NUMBER))
    sealed = _Column.FromString(rest)
    # In memory of their own: Arrow wants numbers at multiples of their size.
    offsets = content(_Column.OFFSETS_FIELD_NUMBER, large, sealed.offsets)
    data = large.get(_Column.DATA_FIELD_NUMBER, sealed.data)
    # Arrow's offsets are signed, ours are not. Below 2 GiB, the bits are the same, and messages are much smaller.
    value = pa.Array.from_buffers(pa.binary(), inputs.count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    value.validate(full=True)
    return value


def time_column(inputs: FrameInputs) -> pa.Array[Any]:
    """The event times, in the frame's memory. Raises `ValueError`."""
    if len(inputs.event_times_column) != 8 * inputs.count:
        raise ValueError(f"a frame with {inputs.count} records has another number of event times")
    time = pa.Array.from_buffers(
        pa.timestamp("us", tz="UTC"), inputs.count, [None, pa.py_buffer(inputs.event_times_column)]
    )
    time.validate()
    return time


def to_fields(inputs: FrameInputs, schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, Misfit]]:
    """The same as `to_batch`, with the fields of the values that fit, and the misfits of the others by index."""
    if inputs.arrow_column:
        fields = arrow_values.fields_of(arrow_values.unpacked(inputs.arrow_column, inputs.count), schema)
        if fields is not None:
            arrays = [*fields, *_beside(inputs)]
            return pa.RecordBatch.from_arrays(arrays, names=[*schema.names, *_BESIDE_VALUES]), {}
    return fitting(to_batch(inputs), schema)


async def answer_arrow(
    lane: FunctionLane, hello: udf_pb2.Hello, call_id: int, inputs: FrameInputs, context: Context
) -> udf_pb2.SealedMapAnswer:
    """The answer of an Arrow function. If it takes columns of a schema, it does not get the records that do not fit."""
    schema = lane.definition.options.schema
    batch, misfits = (to_batch(inputs), {}) if schema is None else to_fields(inputs, schema)
    rows = [index for index in range(inputs.count) if index not in misfits] if misfits else None
    answer = udf_pb2.SealedMapAnswer(call_id=call_id)
    if rows is None or rows:
        answer = to_answer(
            call_id,
            inputs,
            await lane.whole(batch, context),
            times_allowed=hello.kind == SOURCE_TRANSFORM,
            may_return_arrow=hello.may_return_arrow,
            rows=rows,
        )
    outcomes = Outcomes()
    for index, misfit in misfits.items():
        outcomes.add(index, misfit)
    answer.outcomes.extend(outcomes.items)
    return answer


def to_answer(
    call_id: int,
    inputs: FrameInputs,
    batch: Any,
    *,
    times_allowed: bool,
    may_return_arrow: bool = False,
    rows: Sequence[int] | None = None,
) -> udf_pb2.SealedMapAnswer:
    """The answer for the result of an Arrow function. `rows`: the inputs that it got; None for all."""
    if isinstance(batch, pa.Table):
        batch = pa.RecordBatch.from_arrays([whole(column) for column in batch.columns], schema=batch.schema)
    if not isinstance(batch, pa.RecordBatch):
        raise BadOutput(f"a function with arrow=True returns a pyarrow.RecordBatch, not {type(batch).__name__}")
    names = batch.schema.names
    own = [name for name in names if name not in _BESIDE]
    if not own or ("value" in own and own != ["value"]):
        raise BadOutput(
            "a batch that is returned has a column value, or your own columns, which become JSON; and optionally "
            f"{', '.join(sorted(_BESIDE))}. This one has {', '.join(names)}"
        )
    count = batch.num_rows
    parents = _parents(batch, inputs.count, rows)
    answer = udf_pb2.SealedMapAnswer(call_id=call_id, records=count)
    if "value" in own:
        answer.values = _values(batch["value"])
    elif count and may_return_arrow and (packed := arrow_values.packed(batch.select(own))):
        answer.arrow = packed
    else:
        answer.values = _values(json_column(batch.select(own)))
    if count == 0:
        return answer
    if parents is not None:
        answer.parents = columns.pack_offsets(parents)
    if "keys" in names:
        own_keys = columns.pack_lists(texts(batch["keys"], "keys")) if has_items(batch["keys"]) else b""
        answer.keys = own_keys or columns.pack_no_lists(count)
    if "tags" in names:
        answer.tags = columns.pack_lists(texts(batch["tags"], "tags"))
    if "headers" in names:
        cast: Any = batch["headers"].cast(pa.map_(pa.string(), pa.binary()))
        headers: list[dict[str, bytes]] = [dict(some or ()) for some in (cast.to_pylist() if has_items(cast) else ())]
        answer.headers = columns.pack_headers(headers) or columns.pack_no_headers(count)
    if "event_time" in names:
        column = batch["event_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        if column.null_count:
            raise BadOutput("event_time has nulls")
        if parents is None and _content(column, _TIME_BYTES) == inputs.event_times_column:
            return answer
        given: Any = column.to_pylist()
        times = array("q", given)
        inherited = array("q", map(inputs.event_times_us.__getitem__, range(count) if parents is None else parents))
        if times != inherited:
            if not times_allowed:
                raise BadOutput(
                    "only a source transform can set event times, because the watermark is computed after it"
                )
            answer.event_times_us = columns.pack_times(times)
    return answer


def _parents(batch: pa.RecordBatch, inputs: int, rows: Sequence[int] | None) -> list[int] | None:
    """Index of the input record of each row; None if row i came from record i."""
    if "parent" not in batch.schema.names:
        given = inputs if rows is None else len(rows)
        if batch.num_rows not in (0, given):
            raise BadOutput(
                f"{given} records came in and {batch.num_rows} went out: keep the column parent, which says which "
                "record each row came from"
            )
        return list(rows)[: batch.num_rows] if rows is not None else None
    column: Any = batch["parent"]
    if column.type == pa.uint32() and not column.null_count and _content(column, _NUMBER_BYTES) == _numbers(inputs):
        return None
    parents: list[int] = column.to_pylist()
    previous = 0
    for parent in parents:
        if type(parent) is not int or not previous <= parent < inputs:
            raise BadOutput(
                f"the column parent has indexes of input records (0 to {inputs - 1}), in ascending order: {parent}"
            )
        previous = parent
    return None if parents == list(range(inputs)) else parents


def _content(column: Any, width: int) -> bytes:
    """The numbers of a column without nulls, as Arrow stores them."""
    data = column.buffers()[1]
    return (
        b"" if data is None else bytes(memoryview(data)[width * column.offset : width * (column.offset + len(column))])
    )


def has_items(column: Any) -> bool:
    """Whether a column may have items: false only for lists or maps that are all empty or null."""
    if not len(column) or not (pa.types.is_list(column.type) or pa.types.is_map(column.type)):
        return True
    offsets = column.offsets
    return bool(offsets[0] != offsets[-1])


def _values(column: Any) -> bytes:
    """An Arrow array as an encoded `BytesColumn`, from its buffers."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_bytes(column.type):
        raise BadOutput(f"the column value must be binary or string, not {column.type}")
    if column.null_count:
        raise BadOutput("the column value has nulls: leave these rows out and keep the column parent")
    column = column.cast(pa.binary())
    if not len(column):
        return columns.pack_bytes([])
    _, offsets_buffer, data = column.buffers()
    offsets = array("i")
    offsets.frombytes(memoryview(offsets_buffer)[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    first, last = offsets[0], offsets[-1]
    if first:
        offsets = array("i", [offset - first for offset in offsets])
    payload = b"" if data is None else bytes(memoryview(data)[first:last])
    return b"".join([*field(1, columns.pack_offsets(offsets)), *field(2, payload)])


def texts(column: Any, name: str) -> list[list[bytes]]:
    """A column of strings or lists of strings, encoded. Raises `BadOutput`."""
    kind = column.type
    rows = column.to_pylist()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [[] if item is None else [item.encode()] for item in rows]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [[part.encode() for part in items or ()] for items in rows]
    raise BadOutput(f"the column {name} must be string or list<string>, not {kind}")


def is_bytes(kind: Any) -> bool:
    """Whether an Arrow type is a type of byte strings or texts."""
    return any(
        test(kind)
        for test in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    )


def batch_of_frame(inputs: FrameInputs) -> pa.RecordBatch:
    """See `Rows.batch`. The values share the frame's memory."""
    count = inputs.count
    texts, pairs = pa.list_(pa.string()), pa.map_(pa.string(), pa.binary())
    keys: Any = pa.array(inputs.keys, texts) if inputs.keys_column else pa.nulls(count, texts)
    headers: Any = (
        pa.array([list(some.items()) for some in inputs.headers], pairs)
        if inputs.headers_column
        else pa.nulls(count, pairs)
    )
    columns: list[Any] = [value_column(inputs), time_column(inputs), keys, headers]
    return pa.RecordBatch.from_arrays(columns, names=["value", "event_time", "keys", "headers"])
