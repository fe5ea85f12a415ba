"""Guesses what a misspelt word means, for messages.

Above it: everything that looks up a name that a person has typed: commands, options, fields, vertices. Below it:
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_ALIKE_MIN = 0.6
"""Share of letters in common, in the same order. Below that, a guess would confuse the reader."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most similar, ignoring case; None if none is similar."""
    # Imported here, because only messages about a fault need it.
    from difflib import get_close_matches

    by_case = {name.lower(): name for name in reversed(list(known))}
    near = get_close_matches(word.lower(), by_case, n=1, cutoff=_ALIKE_MIN)
    return by_case[near[0]] if near else None


def one_of(word: str, known: Iterable[str]) -> str:
    """`one of a, b, c; did you mean b?`: the words that are expected instead of an unknown one."""
    names = list(known)
    listed = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)
    return f"{listed}{did_you_mean(word, names)}" if len(names) > 1 else listed


def near_file(path: Path) -> str:
    """`; did you mean NAME?` for a missing file: the path of a similar one in its directory."""
    try:
        # Only stems are compared: a common extension would make all names similar.
        by_stem = {entry.stem: entry for entry in sorted(path.parent.iterdir()) if not entry.name.startswith(".")}
    except OSError:
        return ""
    near = nearest(path.stem, by_stem)
    return f"; did you mean {by_stem[near]}?" if near is not None else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?`, to append to a message about the word; empty if no known word is similar."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near is not None else ""
