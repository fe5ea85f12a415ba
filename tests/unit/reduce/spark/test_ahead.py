"""What runs ahead gives the same items, what ends it, and leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from millstream_reduce.spark.rows import DEPTH, ahead


class _Watched:
    """Numbers from 0 on, and how many of them have been asked for."""

    def __init__(self, count: int, error: BaseException | None = None) -> None:
        self._count = count
        self._error = error
        self.made = 0
        self.more = threading.Event()
        """Set once the first three were made."""

    def __iter__(self) -> Iterator[int]:
        for number in range(self._count):
            self.made += 1
            if self.made == DEPTH + 1:
                self.more.set()
            yield number
        if self._error is not None:
            raise self._error


def test_the_items_come_in_order() -> None:
    assert list(ahead(range(1000))) == list(range(1000))
    assert list(ahead([])) == []


def test_it_goes_on_while_an_item_is_used_but_not_far() -> None:
    numbers = _Watched(1000)
    items = ahead(numbers)
    assert next(items) == 0
    assert numbers.more.wait(10.0), "it waits for who takes the items"
    taken = [next(items) for _ in range(10)]
    assert taken == list(range(1, 11))
    assert numbers.made <= 11 + DEPTH + 1
    items.close()


def test_an_error_comes_behind_the_items_before_it() -> None:
    items = ahead(_Watched(5, ValueError("entry 5 is damaged")))
    assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="entry 5 is damaged"):
        next(items)


@pytest.mark.parametrize("taken", [1, 5, 20])
def test_no_thread_is_left_when_it_is_closed_before_its_end(taken: int) -> None:
    before = set(threading.enumerate())
    numbers = _Watched(20)
    items = ahead(numbers)
    for _ in range(taken):
        next(items)
    items.close()
    assert set(threading.enumerate()) <= before
    assert numbers.made <= taken + DEPTH + 1
