"""The check that suites use instead of `assert`, so that they also work under `python -O`."""

from __future__ import annotations


def check(held: object, what: str) -> None:
    """Raises `AssertionError` with `what` unless `held`."""
    if not held:
        raise AssertionError(what)
