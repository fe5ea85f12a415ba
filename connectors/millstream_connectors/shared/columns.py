"""Columns that settings name: those of files, and names that appear twice in any list."""

from collections.abc import Iterator, Sequence
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


def repeated(
    names: Sequence[str], setting: str, *below: str, noun: str = "column ", expected: str = "each column once"
) -> Iterator[ShapeProblem]:
    """A problem for each name that is there again. `setting`: the list of names; `below`: where a name is in an item
    of it; `noun`: what comes before a name in the message."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield ShapeProblem(codes.NAME_TWICE, (setting, index, *below), f"{noun}`{name}` appears twice", expected)


def repeated_columns(columns: tuple[Column, ...]) -> Iterator[ShapeProblem]:
    """A problem for each repeated column name."""
    return repeated([column.name for column in columns], "columns", "name", expected="each column only once")


def envelope_problems(columns: tuple[Column, ...]) -> Iterator[ShapeProblem]:
    """A problem for each column that is not a member of the envelope of a record."""
    for index, column in enumerate(columns):
        if column.name not in MEMBERS:
            what = f"the envelope of a record has no `{column.name}`"
            expected = f"one of {', '.join(MEMBERS)}, or `envelope: false` for columns of the record's own value"
            yield ShapeProblem(codes.FIELDS_CONFLICT, ("columns", index, "name"), what, expected)
