"""Generated tables of every type that may travel as Arrow columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millstream_udf import arrow_values

INTEGERS = {
    getattr(pa, f"{sign}int{bits}")(): st.integers(*(bounds))
    for bits in (8, 16, 32, 64)
    for sign, bounds in (("", (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)), ("u", (0, 2**bits - 1)))
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
CELLS: dict[Any, st.SearchStrategy[Any]] = {
    **INTEGERS,
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.float32(): st.floats(allow_nan=False, allow_infinity=False, width=32),
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
}
NAMES = st.lists(TEXTS, min_size=1, max_size=4, unique=True)


@st.composite
def tables(draw: st.DrawFn, names: st.SearchStrategy[list[str]] = NAMES, *, rows_max: int = 6) -> pa.RecordBatch:
    """Rows with nulls, at least one, in columns that may travel: with narrow ones there are wide ones."""
    rows = draw(st.integers(1, rows_max))
    columns: list[Any] = []
    of_columns = draw(names)
    for _ in of_columns:
        kind = draw(st.sampled_from(list(CELLS)))
        cells = draw(st.lists(st.none() | CELLS[kind], min_size=rows, max_size=rows))
        columns.append(pa.array(cells, kind))
    table = pa.RecordBatch.from_arrays(columns, names=of_columns)
    while not arrow_values.packed(table):
        wide: Any = pa.array(range(rows), pa.int64())
        table = table.append_column(f"{table.num_columns} wide", wide)
    return table
