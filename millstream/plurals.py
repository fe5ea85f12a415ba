"""Counts in messages: `1 record`, `3 records`. Pure.

Above it: every message with a count. Below it: nothing.
"""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count and its noun, such as `1 lane` or `12,000 records`. `plural` is for nouns whose plural is irregular."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
