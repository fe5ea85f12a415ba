"""A function that yields and returns a value, which would be lost, is refused, or its record fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import millstream_udf as udf
from millstream_udf import testing
from millstream_udf.testing import run_reduce


def early(value: bytes) -> Any:
    if value == b"x":
        return [b"early"]
    yield value


def at_the_end(value: bytes) -> Any:
    try:
        yield value
    finally:
        value += b"!"
    return value


def one_of_two(value: bytes) -> Any:
    yield value
    return value or None


class Method:
    def process(self, value: bytes) -> Any:
        yield value
        return value


class Instance:
    def __call__(self, value: bytes) -> Any:
        yield value
        return ()


@udf.map(threads=2)
def threaded(value: bytes) -> Any:
    yield value
    return b"x"


@udf.reduce
def reducing(keys: tuple[str, ...], records: Iterable[udf.Record[bytes]], window: udf.Window) -> Any:
    yield b"x"
    return b"y"


@udf.reduce
class PerGroup:
    def add(self, record: udf.Record[bytes]) -> None: ...

    def result(self) -> Any:
        yield b"x"
        return [b"y"]


REFUSED: list[Any] = [early, at_the_end, one_of_two, Method, Instance(), threaded]


@pytest.mark.parametrize("function", REFUSED)
def test_it_is_refused_at_its_start(function: Any) -> None:
    with pytest.raises(TypeError, match="yields outputs and also returns a value, which would be lost: yield it"):
        testing.run(function, [b"a"])


@pytest.mark.parametrize("function", [reducing, PerGroup])
def test_so_is_a_reduce(function: Any) -> None:
    with pytest.raises(TypeError, match="also returns a value"):
        run_reduce(function, [b"a"])


def ends_early(value: bytes) -> Iterator[bytes]:
    with nullcontext():
        if value == b"x":
            return
    try:
        yield value
    except ValueError:
        return None
    for _ in value:
        yield b"again"
        return


def delegates(value: bytes) -> Iterator[bytes]:
    return (yield from ends_early(value))


class Collects:
    """A function whose caller uses what it returns."""

    def __init__(self, function: Callable[[bytes], Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, value: bytes) -> list[bytes]:
        items, outputs = self.__wrapped__(value), []  # type: ignore[attr-defined]
        while True:
            try:
                outputs.append(next(items))
            except StopIteration as ended:
                return outputs + (ended.value or [])


@pytest.mark.parametrize(
    ("function", "outputs"),
    [
        (ends_early, [b"a", b"again"]),
        (delegates, [b"a", b"again"]),
        (lambda value: (yield value), [b"a", b"x"]),
        (Collects(early), [b"a", b"early"]),
    ],
)
def test_one_that_loses_nothing_runs(function: Any, outputs: list[bytes]) -> None:
    assert testing.run(function, [b"a", b"x"]).values == outputs


def delegating(value: bytes) -> Any:
    return (yield from early(value))


def helped(value: bytes) -> Any:
    return early(value)


@functools.wraps(early)
def wrapped(value: bytes) -> Any:
    return early(value)


@udf.map(batch=True)
def batched(values: list[bytes]) -> list[Any]:
    return [early(value) for value in values]


@pytest.mark.parametrize("function", [delegating, helped, wrapped, functools.partial(early), batched])
def test_what_its_code_does_not_show_fails_its_record(function: Any) -> None:
    results = testing.run(function, [b"a", b"x", b"b"])
    (outcome,) = results.outcomes
    assert outcome.index == 1
    assert "yields outputs and also returns list, which would be lost" in outcome.reason
    assert (results.of(0)[0].value, results.of(2)[0].value) == (b"a", b"b")


@udf.reduce
def helped_reduce(keys: tuple[str, ...], records: Iterable[udf.Record[bytes]], window: udf.Window) -> Any:
    return early(b"x")


def test_or_its_group() -> None:
    with pytest.raises(RuntimeError, match="also returns list"):
        run_reduce(helped_reduce, [b"a"])
