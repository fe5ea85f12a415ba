"""Reduce functions that count, for `reduce_udf.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import millstream_udf as udf

if TYPE_CHECKING:
    import pyarrow as pa


@udf.reduce
def values(values: Iterable[bytes]) -> str:
    return str(sum(1 for _ in values))


@udf.reduce
def records(records: Iterable[udf.Record]) -> str:
    return str(sum(1 for _ in records))


@udf.reduce(arrow=True)
def arrow(table: pa.Table) -> str:
    return str(table.num_rows)


@udf.reduce
class adding:
    def __init__(self) -> None:
        self.count = 0

    def add(self, record: udf.Record) -> None:
        self.count += 1

    def result(self) -> str:
        return str(self.count)
