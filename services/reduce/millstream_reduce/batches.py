"""Frames as Arrow record batches, and the columns that windows look at. Pure.

Above it: the queue. Below it: Arrow and numpy. A frame's columns have the layout of Arrow's arrays, so one frame's
values become an array without being copied; to join several frames, each column is copied once.

    value: binary, event_time: timestamp[us, UTC], keys: list<string>, headers: map<string, binary>

The last two are there when at least one record has any. If all frames have the same Arrow columns in place of values,
`value` is a struct of these columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import DamageError
from millstream.frame import KEY_SEPARATOR, Frame
from millstream.values import Values
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.group_keys import ESCAPE, ESCAPED_ESCAPE, ESCAPED_SEPARATOR, ONE_EMPTY_PART
from millstream_reduce.values import Rows
from millstream_reduce.windowing import Keys, Times
from millstream_udf import arrow_values
from millstream_udf.json_rows import json_column
from millstream_udf.wire.frame.v1 import frame_pb2

_TIME = pa.timestamp("us", tz="UTC")
KEYS = pa.list_(pa.string())
HEADERS = pa.map_(pa.string(), pa.binary())

_Offsets = npt.NDArray[np.int32]


@lru_cache
def schema(has_keys: bool, has_headers: bool, value_fields: bytes = b"") -> pa.Schema:
    """The schema of an `Append` entry's body. `value_fields`: see `Append`. Raises `pa.ArrowInvalid`."""
    kind = pa.struct(ipc.read_schema(pa.py_buffer(value_fields))) if value_fields else pa.binary()
    fields: list[pa.Field[Any]] = [pa.field("value", kind), pa.field("event_time", _TIME)]
    if has_keys:
        fields.append(pa.field("keys", KEYS))
    if has_headers:
        fields.append(pa.field("headers", HEADERS))
    return pa.schema(fields)


def batch_of_frames(frames: Sequence[Frame]) -> pa.RecordBatch:
    """The records of all frames, in order; at least one frame. Raises `DamageError` for invalid columns."""
    has_keys = any(frame.keys_column for frame in frames)
    has_headers = any(frame.headers_column for frame in frames)
    try:
        arrays: list[pa.Array[Any]] = [_values_of(frames), _joined([_times(frame) for frame in frames])]
        if has_keys:
            arrays.append(_joined([_keys(frame) for frame in frames]))
        if has_headers:
            arrays.append(_joined([_headers(frame) for frame in frames]))
        kinds: list[pa.Field[Any]] = [pa.field("value", arrays[0].type), *list(schema(has_keys, has_headers))[1:]]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))
    except (ValueError, DecodeError, pa.ArrowInvalid) as error:
        raise DamageError(
            codes.SEGMENT_DAMAGED, f"a frame of {frames[0].records} records or one after it cannot be read: {error}"
        ) from error


def value_fields_of(batch: pa.RecordBatch) -> bytes:
    """The fields of the values as an encapsulated Arrow schema; empty if the values are bytes."""
    kind: Any = batch.column(0).type
    return pa.schema(list(kind)).serialize().to_pybytes() if pa.types.is_struct(kind) else b""


def as_bytes(values: Any) -> Any:
    """A column of values as bytes: of columns, the JSON objects that they stand for."""
    return json_column(pa.RecordBatch.from_struct_array(values)) if pa.types.is_struct(values.type) else values


def whole(column: Any) -> Any:
    """A column of a table as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def taken(batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """These rows, in this order."""
    indices: Any = pa.array(rows)
    return batch.take(indices)


def encoded(batch: pa.RecordBatch) -> memoryview:
    """An encapsulated Arrow IPC message, which is the body of an entry."""
    return memoryview(batch.serialize())


def decoded(body: memoryview, append: wal_pb2.Append) -> pa.RecordBatch:
    """Inverse of `encoded`, for an entry with this meta; the columns are views of `body`. Raises `DamageError`."""
    try:
        return ipc.read_record_batch(
            pa.py_buffer(body), schema(append.has_keys, append.has_headers, append.value_fields)
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise DamageError(codes.SEGMENT_DAMAGED, f"{len(body)} bytes are not a record batch: {error}") from error


def event_times(batch: pa.RecordBatch) -> Times:
    """Microseconds; a view of the batch."""
    return batch.column(1).cast(pa.int64()).to_numpy()


def key_codes(batch: pa.RecordBatch, *, plainly: bool = False) -> Keys:
    """The key of each row, joined as `group_keys` says. `plainly`: as in logs before format 4, where several keys may
    have the same name."""
    if batch.num_columns < 3 or batch.schema.names[2] != "keys":
        return Keys(np.zeros(batch.num_rows, np.int32), [b""])
    lists: Any = batch.column(2)
    joined: Any = joined_keys(lists) if not plainly else pc.binary_join(lists, KEY_SEPARATOR.decode()).cast(pa.binary())
    dictionary = joined.dictionary_encode()
    return Keys(dictionary.indices.to_numpy(), dictionary.dictionary.to_pylist())


def joined_keys(lists: Any) -> Any:
    """Lists of texts, none of them null, as the bytes of `group_keys.join_key`."""
    offsets = lists.offsets.to_numpy()
    items = lists.values[offsets[0] : offsets[-1]].cast(pa.binary())
    _, data = _compact(items)
    if KEY_SEPARATOR in data or ESCAPE in data:
        items = pc.replace_substring(items, ESCAPE, ESCAPED_ESCAPE)
        items = pc.replace_substring(items, KEY_SEPARATOR, ESCAPED_SEPARATOR)
    lengths = np.diff(offsets)
    if (lengths == 1).all():
        joined = items
    else:
        joined = pc.binary_join(pa.ListArray.from_arrays(_int32_array(offsets - offsets[0]), items), KEY_SEPARATOR)
    empty = (lengths == 1) & (pc.binary_length(joined).to_numpy() == 0)
    return pc.if_else(pa.array(empty), ONE_EMPTY_PART, joined) if empty.any() else joined


def frame_of_columns(
    values: pa.Array[Any],
    event_times_us: Times,
    *,
    keys: pa.Array[Any] | None,
    headers: pa.Array[Any] | None,
    ingest_time_us: int,
) -> Frame:
    """Columns of equal length, at least one row, as a frame; a list or map that is null is empty."""
    return Frame(
        records=len(values),
        event_time_min_us=int(event_times_us.min()),
        event_time_max_us=int(event_times_us.max()),
        ingest_time_us=ingest_time_us,
        contents=Values(_bytes_column(values).SerializeToString()),
        event_times_column=event_times_us.astype("<i8", copy=False).tobytes(),
        keys_column=_list_column(keys) if keys is not None else b"",
        headers_column=_headers_column(headers) if headers is not None else b"",
    )


def _joined(arrays: Sequence[pa.Array[Any]]) -> pa.Array[Any]:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _values_of(frames: Sequence[Frame]) -> pa.Array[Any]:
    if all(frame.contents.arrow for frame in frames):
        rows = [arrow_values.unpacked(frame.contents.arrow, frame.records) for frame in frames]
        if all(batch.schema.equals(rows[0].schema) for batch in rows):
            return _joined([_struct(batch) for batch in rows])
    return _joined([_values(frame.with_values()) for frame in frames])


def _struct(rows: pa.RecordBatch) -> pa.Array[Any]:
    return pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))


def _values(frame: Frame) -> pa.Array[Any]:
    return _binary(frame_pb2.SealedBytesColumn.FromString(frame.contents.column), frame.records)


def _binary(message: frame_pb2.SealedBytesColumn, count: int | None = None) -> pa.Array[Any]:
    data = message.data
    offsets = _offsets(message.offsets, len(data))
    if count is not None and len(offsets) != count + 1:
        raise ValueError(f"a column has {len(offsets) - 1} items for {count} records")
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, _view(offsets), pa.py_buffer(data)])


def _offsets(encoded_offsets: bytes, end: int) -> _Offsets:
    """Offsets as Arrow needs them. Arrow does not check them, so they are checked here."""
    if len(encoded_offsets) % 4 or not encoded_offsets:
        raise ValueError(f"a column of offsets has {len(encoded_offsets)} bytes")
    offsets = np.frombuffer(encoded_offsets, np.dtype("<i4")).astype(np.int32, copy=False)
    if offsets[0] != 0 or offsets[-1] != end or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets do not rise from 0 to {end}")
    return offsets


def _times(frame: Frame) -> pa.Array[Any]:
    times = np.frombuffer(frame.event_times_column, np.dtype("<i8")).astype(np.int64, copy=False)
    if len(times) != frame.records:
        raise ValueError(f"{len(times)} event times for {frame.records} records")
    return pa.Array.from_buffers(_TIME, len(times), [None, _view(times)])


def _keys(frame: Frame) -> pa.Array[Any]:
    items: Any = pa.array([], pa.string())
    starts = np.zeros(frame.records + 1, np.int32)
    if frame.keys_column:
        message = frame_pb2.SealedListColumn.FromString(frame.keys_column)
        if message.items.offsets:
            # The cast checks that the parts are UTF-8, which Arrow and engines rely on.
            items = _binary(message.items).cast(pa.string())
        # Without, each record has one.
        starts = _offsets(message.starts, len(items)) if message.starts else np.arange(len(items) + 1, dtype=np.int32)
        if len(starts) != frame.records + 1:
            raise ValueError(f"a list column has {len(starts) - 1} entries for {frame.records} records")
    return pa.ListArray.from_arrays(_int32_array(starts), items)


def _headers(frame: Frame) -> pa.Array[Any]:
    names: list[str] = []
    values: list[bytes] = []
    starts = np.zeros(frame.records + 1, np.int32)
    if frame.headers_column:
        message = frame_pb2.SealedHeadersColumn.FromString(frame.headers_column)
        names, values = list(message.names), list(message.values)
        starts = _offsets(message.starts, len(names))
        if len(starts) != frame.records + 1 or len(values) != len(names):
            raise ValueError(f"a headers column has {len(starts) - 1} entries for {frame.records} records")
    return pa.MapArray.from_arrays(_int32_array(starts), pa.array(names, pa.string()), pa.array(values, pa.binary()))


def _int32_array(values: _Offsets) -> Any:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, _view(values)])


def _view(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _bytes_column(values: Any) -> frame_pb2.SealedBytesColumn:
    offsets, data = _compact(values)
    return frame_pb2.SealedBytesColumn(offsets=offsets.astype("<u4").tobytes(), data=data)


def _compact(values: Any) -> tuple[_Offsets, bytes]:
    """Offsets from 0 and the data between them, of a binary or string array that may be a slice."""
    _, offset_buffer, data = values.buffers()
    begin = values.offset
    offsets = np.frombuffer(offset_buffer, np.int32)[begin : begin + len(values) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], bytes(memoryview(data)[first:last]) if data is not None else b""


def _list_column(lists: Any) -> bytes:
    lists, offsets = _without_nulls(lists)
    items = lists.values[offsets[0] : offsets[-1]]
    if not len(items):
        return b""
    column = frame_pb2.SealedListColumn(items=_bytes_column(items))
    if (offsets[1:] - offsets[:-1] != 1).any():
        column.starts = _starts(offsets)
    return column.SerializeToString()


def _headers_column(maps: Any) -> bytes:
    maps, offsets = _without_nulls(maps)
    part = slice(offsets[0], offsets[-1])
    names, values = maps.keys[part].to_pylist(), maps.items[part].to_pylist()
    if not names:
        return b""
    return frame_pb2.SealedHeadersColumn(starts=_starts(offsets), names=names, values=values).SerializeToString()


def _without_nulls(lists: Any) -> tuple[Any, _Offsets]:
    """Lists or maps with empty ones instead of null, and the offsets of their items."""
    if lists.null_count:
        filled = [[]] * len(lists) if lists.null_count == len(lists) else [parts or [] for parts in lists.to_pylist()]
        lists = pa.array(filled, lists.type)
    return lists, lists.offsets.to_numpy()


def _starts(offsets: _Offsets) -> bytes:
    starts: bytes = (offsets - offsets[0]).astype("<u4").tobytes()
    return starts
