"""Divides what a sink writes into requests. Pure.

Above it: sinks whose requests have a maximum size. Below it: nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def requests_of(
    items: Iterable[T], size_of: Callable[[T], int], size_max: int, count_max: int = sys.maxsize
) -> list[list[T]]:
    """The items, in order, with as many as fit into each request. One that is larger than `size_max` is alone."""
    requests: list[list[T]] = []
    total = 0
    for item in items:
        size = size_of(item)
        if not requests or len(requests[-1]) == count_max or total + size > size_max:
            requests.append([])
            total = 0
        requests[-1].append(item)
        total += size
    return requests
