"""The order in which the results of a hand-over leave."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream_reduce.lane.jobs import in_order_of_windows


@pytest.mark.guarantee("I4")
@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 400), st.integers(1, 7))
def test_results_leave_window_by_window_however_much_fits_into_one_array(
    windows: list[int], bytes_max: int, chunk: int
) -> None:
    rows = list(enumerate(windows))
    parts = [rows[at : at + chunk] for at in range(0, len(rows), chunk)]
    types: dict[str, pa.DataType] = {"window": pa.int32(), "value": pa.binary()}
    schema = pa.schema(types)
    columns: list[dict[str, list[Any]]] = [
        {"window": [w for _, w in part], "value": [b"%d" % place for place, _ in part]} for part in parts
    ]
    table = pa.Table.from_batches([pa.RecordBatch.from_pydict(one, schema) for one in columns], schema)
    ordered = in_order_of_windows(table, bytes_max)
    expected = sorted(rows, key=lambda row: row[1])
    assert ordered.column("window").to_pylist() == [window for _, window in expected]
    assert ordered.column("value").to_pylist() == [b"%d" % place for place, _ in expected]
