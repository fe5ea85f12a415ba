"""Sorting rows into groups, and finding the groups again: functions of columns. No state.

Everything here costs a few numpy calls for a whole batch, whatever it contains.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millstream_reduce.values import Rows
from millstream_reduce.windowing import Times

Integers = npt.NDArray[np.int64] | npt.NDArray[np.int32]

NO_ROWS: Rows = np.empty(0, np.int64)

_SHORT_SPAN = 1 << 16
"""Keys that fit 16 bits are sorted by radix, several times faster than by comparing."""


def rises(values: Integers) -> bool:
    """Whether no value is below the one before it."""
    return bool((values[1:] >= values[:-1]).all())


def stable_order(values: Integers) -> Rows:
    """Indexes that sort the values; equal ones stay in order."""
    low, high = int(values.min()), int(values.max())
    if high - low < _SHORT_SPAN:
        return np.argsort((values - values.dtype.type(low)).astype(np.uint16), kind="stable")
    return np.argsort(values, kind="stable")


def run_starts(values: Integers) -> Rows:
    """Index of the first value of each run of equal values; at least one value."""
    starts = np.flatnonzero(values[1:] != values[:-1])
    starts += 1
    return np.concatenate((np.zeros(1, np.int64), starts))


def run_numbers(values: Integers) -> Rows:
    """To which run of equal values each belongs: 0, 0, 1, ..."""
    numbers = np.zeros(len(values), np.int64)
    np.cumsum(values[1:] != values[:-1], out=numbers[1:])
    return numbers


def run_lengths(starts: Rows, total: int) -> Rows:
    return np.diff(starts, append=total)


def parts(values: Times, groups: Rows, step: int) -> Rows:
    """Cuts each group where its values, sorted, leave a gap of `step` or more: to which part each row belongs.

    Groups rise from row to row. Parts are numbered group by group, inside a group from low values to high ones.
    """
    if ((values[1:] >= values[:-1]) | (groups[1:] != groups[:-1])).all():
        return _cut(values, groups, step)
    order = np.lexsort((values, groups))
    numbers = np.empty(len(values), np.int64)
    numbers[order] = _cut(values[order], groups[order], step)
    return numbers


def _cut(values: Times, groups: Rows, step: int) -> Rows:
    # Values rise inside a group, so their distance fits 64 bits without a sign, however far apart they are.
    unsigned = values.view(np.uint64)
    far = (unsigned[1:] - unsigned[:-1]) >= np.uint64(step)
    numbers = np.zeros(len(values), np.int64)
    np.cumsum(far | (groups[1:] != groups[:-1]), out=numbers[1:])
    return numbers
