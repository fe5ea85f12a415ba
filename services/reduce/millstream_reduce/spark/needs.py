"""Which columns and fields a query reads, so that the others are neither decoded nor handed to Spark. Pure.

Above it: `sql`. Below it: `dialect`. It errs on one side only: what it cannot see for sure is read. A name counts as
read wherever it stands in the text, be it in a comment.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millstream_reduce.spark.dialect import NotUnderstoodError, parse

COLUMNS = ("key", "keys", "event_time", "headers", "window_start", "window_end", "window_early")
"""Of the table `window`, beside `value`."""


def needed_columns(query: str) -> tuple[tuple[str, ...], bool]:
    """The columns that are read, and whether `value` is."""
    text = query.lower()
    everything = _reads_all(query)
    names = tuple(name for name in COLUMNS if everything or name in text)
    return names, everything or "value" in text


def needed_fields(query: str, declared: Sequence[str]) -> tuple[str, ...]:
    """The declared fields of `value` that are read, in order."""
    text = query.lower()
    if _reads_all(query) or _reads_whole_value(query):
        return tuple(declared)
    return tuple(name for name in declared if name.lower() in text)


def reads_table(query: str, table: str) -> bool:
    """Whether a table is read anywhere; True where that cannot be seen."""
    if table not in query.lower():
        return False
    try:
        tree = parse(query)
    except NotUnderstoodError:
        return True
    return any(found.name.lower() == table for found in tree.find_all(exp.Table))


def _reads_all(query: str) -> bool:
    """There is a * that stands for columns."""
    if "*" not in query:
        return False
    try:
        tree = parse(query)
    except NotUnderstoodError:
        return True
    for star in tree.find_all(exp.Star):
        if not (isinstance(star.parent, exp.Anonymous) and star.parent.name.lower() == "count"):
            return True
    return False


def _reads_whole_value(query: str) -> bool:
    """`value` stands alone somewhere, without a field behind it."""
    try:
        tree = parse(query)
    except NotUnderstoodError:
        return True
    return any(
        isinstance(identifier.parent, exp.Column) and identifier.arg_key == "this"
        for identifier in tree.find_all(exp.Identifier)
        if identifier.name.lower() == "value"
    )
