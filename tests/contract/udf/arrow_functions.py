"""Functions of Arrow columns, for the tests of their streams."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

import millstream_udf as udf


@udf.map(arrow=True, schema=pa.schema({"number": pa.int64()}))
def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Also with the columns that `twice` returns."""
    columns = [pc.multiply(batch["number"], 2), batch["parent"]]
    return pa.RecordBatch.from_arrays(columns, names=["number", "parent"])


@udf.map(arrow=True)
def values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The values as they came."""
    return batch
