"""A check and its result, and the verdict over all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Result(Enum):
    """What a check found."""

    HELD = "held"
    VIOLATED = "violated"
    UNCHECKED = "not checked"
    """It is not visible from outside, or the guarantee does not cover it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    subject: str
    """What it is about: a vertex, an edge, "pipeline"."""
    what: str
    """What should hold."""
    result: Result
    detail: str = ""
    """What was counted; for a violation, where."""
    counts: dict[str, int] = field(default_factory=dict)
    """For programs."""


def checked(subject: str, what: str, faults: Sequence[str], detail: str = "", **counts: int) -> Check:
    """A check that holds when there are no faults."""
    if not faults:
        return Check(subject, what, Result.HELD, detail, counts)
    more = f" (and {len(faults) - PROBLEMS_SHOWN_MAX:,} more)" if len(faults) > PROBLEMS_SHOWN_MAX else ""
    return Check(subject, what, Result.VIOLATED, "; ".join(faults[:PROBLEMS_SHOWN_MAX]) + more, counts)


PROBLEMS_SHOWN_MAX = 5
"""The most faults of one check that are shown."""


def verdict(checks: Sequence[Check]) -> dict[str, Any]:
    """The verdict as JSON."""
    counts: Counter[str] = Counter()
    for check in checks:
        counts.update(check.counts)
    return {
        "sound": all(check.result is not Result.VIOLATED for check in checks),
        "counts": counts,
        "checks": [{**asdict(check), "result": check.result.value} for check in checks],
    }
