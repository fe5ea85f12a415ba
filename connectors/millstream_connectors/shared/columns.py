"""Columns of the files that sources read and sinks write."""

from collections.abc import Iterator
from typing import Literal

from millstream import codes
from millstream.dead_letter import MEMBERS
from millstream.spec.values import ShapeProblem, SpecModel, Text

ColumnType = Literal["string", "int", "float", "bool", "timestamp"]


class Column(SpecModel):
    """A column of a CSV or Parquet file."""

    noun = "a column"

    name: Text
    """Name of the column and of the member in the record's JSON value."""
    type: ColumnType = "string"
    """`string`, `int`, `float`, `bool` or `timestamp` (RFC 3339 in JSON)."""


def repeated_columns(columns: tuple[Column, ...]) -> Iterator[ShapeProblem]:
    """A problem for each repeated column name."""
    seen: set[str] = set()
    for index, column in enumerate(columns):
        if column.name in seen:
            what = f"column `{column.name}` appears twice"
            yield ShapeProblem(codes.NAME_TWICE, ("columns", index, "name"), what, "each column only once")
        seen.add(column.name)


def envelope_problems(columns: tuple[Column, ...]) -> Iterator[ShapeProblem]:
    """A problem for each column that is not a member of the envelope of a record."""
    for index, column in enumerate(columns):
        if column.name not in MEMBERS:
            what = f"the envelope of a record has no `{column.name}`"
            expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "name"), what, expected)
