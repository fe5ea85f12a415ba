"""What a misspelt word probably means, for messages. Pure.

Above it: everything that looks up a name that a person has typed: commands, options, fields, vertices. Below it:
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

_ALIKE_MIN = 0.6
"""Share of letters in common, in their order: below that a guess would be a nuisance."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like it, whatever its case; None when none is alike."""
    # Only for messages about a fault.
    from difflib import get_close_matches

    by_case = {name.lower(): name for name in reversed(list(known))}
    near = get_close_matches(word.lower(), by_case, n=1, cutoff=_ALIKE_MIN)
    return by_case[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?`, to be put behind what is said of the word; empty when nothing is alike."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near is not None else ""
