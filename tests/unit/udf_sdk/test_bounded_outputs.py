"""A function whose iterator does not end fails its record, before it has taken the memory of its process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import millstream_udf as udf
from millstream.limits import ANSWER_RECORDS_MAX
from millstream_udf import returned_values, testing


def yields(value: bytes) -> Iterator[bytes]:
    while True:
        yield value


async def yields_async(value: bytes) -> AsyncIterator[bytes]:
    while True:
        yield value


def returns(value: bytes) -> Any:
    return itertools.repeat(value)


@udf.map(threads=2)
def threaded(value: bytes) -> Iterator[bytes]:
    while True:
        yield value


@udf.source_transform
def transforms(value: bytes) -> Iterator[bytes]:
    while True:
        yield value


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv(returned_values.OUTPUTS_VARIABLE, "20")
    returned_values.outputs_max.cache_clear()
    yield 20
    returned_values.outputs_max.cache_clear()


@pytest.mark.parametrize("function", [yields, yields_async, returns, threaded, transforms])
def test_an_iterator_without_an_end_fails_its_record(function: Any, most: int) -> None:
    (outcome,) = testing.run(function, [b"a"]).outcomes
    assert outcome.result == "error"
    assert f"more than {most} outputs for one record" in outcome.reason


def test_as_many_as_are_allowed_are_kept(most: int) -> None:
    assert len(testing.run(lambda value: itertools.repeat(value, most), [b"a"]).values) == most


def test_without_a_setting_the_bound_is_that_of_an_answer() -> None:
    assert returned_values.OUTPUTS_MAX == ANSWER_RECORDS_MAX
