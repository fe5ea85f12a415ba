"""The two implementations of the codec of columns, and everything that both can be asked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from millstream_udf import columns
from millstream_vertex.keyed.keys import distinct_keys

IMPLEMENTATIONS = ("python", "compiled")


@contextmanager
def implemented_in(name: str) -> Iterator[None]:
    """Inside, columns are cut and joined by one implementation. Skips the test where no compiler has built it."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "python":
            patch.setattr(columns, "_compiled", None)
        elif not columns.is_compiled():
            pytest.skip("there was no C compiler when the SDK was installed")
        yield


@dataclass(frozen=True)
class Question:
    """A column, and what to do with it."""

    column: bytes
    records: int
    start: int
    stop: int
    groups: tuple[array[int], ...]
    other: bytes
    """A second column, of as many records."""


QUESTIONS: Mapping[str, Callable[[Question], object]] = {
    "unpack bytes": lambda q: columns.unpack_bytes(q.column),
    "unpack lists": lambda q: columns.unpack_lists(q.column, q.records),
    "unpack headers": lambda q: columns.unpack_headers(q.column, q.records),
    "slice bytes": lambda q: columns.slice_bytes(q.column, q.start, q.stop),
    "slice lists": lambda q: columns.slice_lists(q.column, q.start, q.stop),
    "slice headers": lambda q: columns.slice_headers(q.column, q.start, q.stop),
    "split bytes": lambda q: columns.split_bytes(q.column, q.groups),
    "split lists": lambda q: columns.split_lists(q.column, q.records, q.groups),
    "split headers": lambda q: columns.split_headers(q.column, q.records, q.groups),
    "split times": lambda q: columns.split_times(q.column, q.groups),
    "join bytes": lambda q: columns.join_bytes([q.column, q.other]),
    "join lists": lambda q: columns.join_lists([q.other, q.column, b""], [q.records, q.records, 2]),
    "join headers": lambda q: columns.join_headers([b"", q.column, q.other], [1, q.records, q.records]),
    "check bytes": lambda q: columns.check_bytes(q.column, q.records),
    "check texts": lambda q: columns.check_bytes(q.column, q.records, text=True),
    "check lists": lambda q: columns.check_lists(q.column, q.records, items_max=8),
    "check headers": lambda q: columns.check_headers(q.column, q.records, items_max=8),
    "partition": lambda q: columns.partition_lists(q.column, q.records, 3, keyless=1),
    "distinct": lambda q: [[*found] for found in distinct_keys(q.column, q.records)],
    "bounds": lambda q: columns.time_bounds(q.column),
}


def answer(name: str, question: Question) -> object:
    """What comes of it, or the error that is raised."""
    try:
        return QUESTIONS[name](question)
    except (ValueError, IndexError, OverflowError) as error:
        return type(error), str(error)


def differing(question: Question) -> list[str]:
    """What the two implementations answer differently; nothing where there is only one."""
    if not columns.is_compiled():
        return []
    compiled = {name: answer(name, question) for name in QUESTIONS}
    with implemented_in("python"):
        return [name for name in QUESTIONS if answer(name, question) != compiled[name]]
