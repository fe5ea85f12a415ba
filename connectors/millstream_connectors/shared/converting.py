"""Converts the records of a frame, one by one, to the form of a target. Pure.

Above it: sinks whose target has a message, an entry or a key for each record. Below it: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from millstream_connectors.shared.kept import ConvertedRecords
from millstream_writer.sink import SinkFailure

T = TypeVar("T")


class RefusedRecordError(Exception):
    """A record that cannot be written: the reason, from a small set, and the detail."""


def convert_each(
    records: Iterable[tuple[Any, ...]],
    convert: Callable[..., T],
    *,
    misfit: str = "",
    shows_value: bool = False,
    indexes: Iterable[int] | None = None,
) -> ConvertedRecords[T]:
    """The converted form of each record. `convert` gets the parts of one, and raises `RefusedRecordError`, with reason
    and detail, if it has no such form. `misfit`: the reason of records for which it raises another `ValueError`, whose
    text shows the value with `shows_value`. `indexes`: of the records in their frame; None if these are all of them."""
    rows: list[int] = []
    made: list[T] = []
    failures: list[SinkFailure] = []
    for row, parts in zip(count() if indexes is None else indexes, records, strict=indexes is not None):
        try:
            made.append(convert(*parts))
        except RefusedRecordError as error:
            reason, detail = error.args
            failures.append(SinkFailure(row, reason, retryable=False, detail=detail))
        except ValueError as error:
            if not misfit:
                raise
            failures.append(SinkFailure(row, misfit, retryable=False, detail=str(error), shows_value=shows_value))
        else:
            rows.append(row)
    return ConvertedRecords(rows, made, failures)
