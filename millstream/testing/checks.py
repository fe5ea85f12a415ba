"""What a suite says when something is not as it must be. Not `assert`: a suite holds under `python -O`, too."""

from __future__ import annotations


def check(held: object, what: str) -> None:
    """Raises `AssertionError`."""
    if not held:
        raise AssertionError(what)
