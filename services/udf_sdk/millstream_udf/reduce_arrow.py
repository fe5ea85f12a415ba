"""Groups of records as Arrow and pandas tables, and back.

Above it: `groups` and `reducing`. Below it: pyarrow, an extra of this distribution (`millstream-udf[arrow]`), so it
is imported only if a caller or a function uses Arrow; pandas only inside pyarrow.

In:  value: binary, event_time: timestamp[us, UTC], keys: list<string> (null: the group's), headers:
     map<string, binary> (null: none). With a schema its fields replace value.
Out: value: binary or string; and optional key or keys, and tags: string or list<string>; headers: map<string, binary or
     string>. Without a column value each row is a JSON object of the columns beside tags and headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from millstream_udf import arrow
from millstream_udf.arrow_json import decoded
from millstream_udf.groups import Chunk
from millstream_udf.inputs import FrameInputs
from millstream_udf.json_rows import items, rows_as_json
from millstream_udf.misfits import BadOutput, Misfit
from millstream_udf.values import Message

_MESSAGE_COLUMNS = ("key", "keys", "tags", "headers")


class ArrowRows:
    """Rows of a record batch: value and event_time, and keys and headers if there are any; other columns are
    ignored."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._names = set(batch.schema.names)
        self._decoded: dict[int, pa.RecordBatch] = {}

    @cached_property
    def values(self) -> Sequence[bytes]:
        column = self._batch["value"]
        if column.null_count:
            raise ValueError("the column value has nulls")
        return items(column if column.type == pa.binary() else column.cast(pa.binary()))

    @cached_property
    def event_times_us(self) -> Sequence[int]:
        column: Any = self._batch["event_time"]
        if column.null_count:
            raise ValueError("the column event_time has nulls")
        numbers = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        times = array("q")
        data = numbers.buffers()[1]
        if len(numbers):
            times.frombytes(memoryview(data)[8 * numbers.offset : 8 * (numbers.offset + len(numbers))])
        return times

    @cached_property
    def own_keys(self) -> Sequence[tuple[str, ...]] | None:
        column: Any = self._some("keys")
        return None if column is None else [tuple(parts or ()) for parts in column.to_pylist()]

    @cached_property
    def own_headers(self) -> Sequence[dict[str, bytes]] | None:
        column: Any = self._some("headers")
        return None if column is None else [dict(items or ()) for items in column.to_pylist()]

    @cached_property
    def batch(self) -> pa.RecordBatch:
        given, count = self._batch, self._batch.num_rows
        return pa.RecordBatch.from_arrays(
            [
                given["value"].cast(pa.binary()),
                given["event_time"].cast(pa.timestamp("us", tz="UTC")),
                given["keys"] if "keys" in self._names else pa.nulls(count, pa.list_(pa.string())),
                given["headers"] if "headers" in self._names else pa.nulls(count, pa.map_(pa.string(), pa.binary())),
            ],
            names=["value", "event_time", "keys", "headers"],
        )

    def _some(self, name: str) -> pa.Array[Any] | None:
        """The column, unless all its lists are null or empty."""
        column = self._batch[name] if name in self._names else None
        return column if column is not None and len(column) and arrow.has_items(column) else None


class Tables:
    """Slices the tables of groups from batches, with the value decoded if the function has a schema."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self._schema = schema
        self._last: tuple[Any, pa.RecordBatch] | None = None

    def batch(self, chunk: Chunk) -> pa.RecordBatch:
        """The table of one chunk. Raises `Misfit` for a value that is not an object of the schema."""
        rows = chunk.rows
        # Many groups share the same rows, which are decoded once.
        if self._last is None or self._last[0] is not rows:
            whole = rows.batch
            if self._schema is not None:
                try:
                    whole = decoded(whole, self._schema)
                except Misfit:
                    # A value is not an object of the schema. This is the failure of its own group only.
                    return decoded(whole.slice(chunk.start, chunk.stop - chunk.start), self._schema)
            self._last = rows, whole
        return self._last[1].slice(chunk.start, chunk.stop - chunk.start)

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """The table of a whole group; empty if it has no records."""
        if batches:
            return pa.Table.from_batches(batches)
        empty = arrow.batch_of_frame(FrameInputs(b""))
        return pa.Table.from_batches([empty if self._schema is None else decoded(empty, self._schema)])


def outputs_of(result: Any) -> Iterator[bytes | Message]:
    """Results in a table. Raises `BadOutput`."""
    if not isinstance(result, (pa.Table, pa.RecordBatch)):
        result = pa.Table.from_pandas(result, preserve_index=False)
    names: list[str] = result.schema.names
    if len(set(names)) != len(names):
        raise BadOutput(f"a table of results has several columns with the same name: {', '.join(names)}")
    if "value" not in names:
        values = rows_as_json(result.select([name for name in names if name not in ("tags", "headers")]))
    elif set(names) - {"value", *_MESSAGE_COLUMNS}:
        raise BadOutput(
            "a table of results has a column value, and optionally keys, tags and headers, or only your own "
            f"columns, which become JSON; this one has {', '.join(names)}"
        )
    else:
        values = _values(result["value"])
    if not any(name in names for name in _MESSAGE_COLUMNS):
        return iter(values)
    count = result.num_rows
    of_keys = next((name for name in ("keys", "key") if name in names), None)
    keys = [None] * count if of_keys is None else _keys(result[of_keys], of_keys)
    tags = arrow.texts(result["tags"], "tags") if "tags" in names else [()] * count
    headers = _headers(result["headers"]) if "headers" in names else [None] * count
    return (
        Message(value, own, _decoded(tagged), some)
        for value, own, tagged, some in zip(values, keys, tags, headers, strict=True)
    )


def _keys(column: Any, name: str) -> list[list[str] | None]:
    rows = zip(arrow.texts(column, name), column.is_null().to_pylist(), strict=True)
    return [None if missing else _decoded(parts) for parts, missing in rows]


def _decoded(texts: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in texts]


def _headers(column: Any) -> list[dict[str, bytes] | None]:
    rows: list[Any] = column.cast(pa.map_(pa.string(), pa.binary())).to_pylist()
    return [dict(row) if row else None for row in rows]


def _values(column: Any) -> list[bytes]:
    if not arrow.is_bytes(column.type):
        raise BadOutput(f"the column value must be binary or string, not {column.type}")
    if column.null_count:
        raise BadOutput("the column value has nulls")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in items(chunk.cast(pa.binary()))]
