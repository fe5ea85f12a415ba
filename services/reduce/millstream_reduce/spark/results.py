"""Result rows as the vertex takes them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millstream_reduce.engine import RESULT_SCHEMA
from millstream_reduce.spark.manifest import JobWindow

_KEY_SEPARATOR = b"\x1f"


def completed(table: pa.Table, windows: Sequence[JobWindow]) -> pa.Table:
    """With the types of the boundary; results without keys get those of the one key that their window belongs to."""
    columns: dict[str, Any] = {name: table.column(name) for name in table.schema.names}
    if columns["keys"].null_count == len(table) and any(item.window.HasField("key") for item in windows):
        of_windows: list[list[str] | None] = [
            item.window.key.decode().split(_KEY_SEPARATOR.decode()) if item.window.HasField("key") else None
            for item in windows
        ]
        lists: Any = pa.array(of_windows, pa.list_(pa.string()))
        columns["keys"] = lists.take(pa.array(np.asarray(columns["window"])))
    arrays = [columns[field.name].cast(field.type) for field in RESULT_SCHEMA]
    return pa.table(arrays, schema=RESULT_SCHEMA)
