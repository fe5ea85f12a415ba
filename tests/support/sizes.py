"""How much a test does: enough for every change in `make test`, and all of it in `make test-all`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

VARIABLE = "MILLSTREAM_TESTS"
ALL = os.environ.get(VARIABLE) == "all"


def sized(quick: int, full: int) -> int:
    """A number of kills, cuts or seeds."""
    return full if ALL else quick


def first(count: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Values of a parameter, or tuples of several: so many in each change, and the others as sweeps."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.sweep if at >= count else ())
        for at, value in enumerate(values)
    ]
