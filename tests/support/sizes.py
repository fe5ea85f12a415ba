"""How much a test does: enough for every change in `make test`, and all of it in `make test-all`."""

from __future__ import annotations

import os

VARIABLE = "MILLSTREAM_TESTS"
ALL = os.environ.get(VARIABLE) == "all"


def sized(quick: int, full: int) -> int:
    """A number of kills, cuts or seeds."""
    return full if ALL else quick
