"""Generated rows of every type of column, and values of Python as JSON.

Above it: tests.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from millstream_connectors.shared.columns import Column

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
LONG = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1])
DOUBLE = st.floats(allow_nan=False, allow_infinity=False)
INSTANT = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def as_json(value: Any, *, numbers: bool) -> str:
    """`numbers`: write decimals as numbers instead of texts."""
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(name)}:{as_json(one, numbers=numbers)}" for name, one in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(as_json(one, numbers=numbers) for one in value) + "]"
    if isinstance(value, Decimal):
        return f"{value:f}" if numbers else f'"{value:f}"'
    if isinstance(value, bytes):
        return json.dumps(b64encode(value).decode())
    if isinstance(value, date | time):
        return json.dumps(value.isoformat())
    return json.dumps(value if isinstance(value, bool | int | float | str | None) else str(value))


COLUMNS = [
    Column.model_validate({"name": name, "type": kind})
    for name, kind in (("s", "string"), ("i", "int"), ("f", "float"), ("b", "bool"), ("t", "timestamp"))
]
_CELLS = {"s": TEXT, "i": LONG, "f": DOUBLE, "b": st.booleans(), "t": INSTANT}
ROW = st.fixed_dictionaries({name: optional(cells) for name, cells in _CELLS.items()})
ROWS = st.lists(ROW, min_size=1, max_size=4)
"""Of `COLUMNS`."""
