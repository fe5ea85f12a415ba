"""The width of a terminal, which messages fit."""

from __future__ import annotations

WIDTH = 80


def fits(line: str) -> bool:
    """Whether a line has at most 80 columns, or one word that alone does not fit between indentation and edge."""
    return len(line) <= WIDTH or any(len(word) > WIDTH - 20 for word in line.split())
