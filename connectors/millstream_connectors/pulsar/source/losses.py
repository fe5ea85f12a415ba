"""How long partitions have been without a connection, by looks at them. Pure: the time is passed in.

Above it: the lane. A look sees only that moment, and a lane that waits for its buffer does not look: what it sees then
may be another brief loss. So a pause between two looks counts only in part.
"""

from __future__ import annotations

from collections.abc import Iterable

_PAUSE_SHARE = 0.25
"""Share of the limit up to which the time between two looks counts."""
_POSTPONED = 3.0
"""Times the limit that partitions have longer after a new client could not read one, which takes up to the limit."""


class Losses:
    """Of one lane's partitions."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lost_s: dict[str, float] = {}
        self._checked_at_s = 0.0

    def look(self, apart: Iterable[str], now_s: float) -> list[str]:
        """The partitions that have been apart for the limit. `apart`: those that have no connection now."""
        counted_s = min(now_s - self._checked_at_s, self._limit_s * _PAUSE_SHARE)
        self._checked_at_s = now_s
        known = self._lost_s
        self._lost_s = {name: known[name] + counted_s if name in known else 0.0 for name in apart}
        return [name for name, lost_s in self._lost_s.items() if lost_s >= self._limit_s]

    def postpone(self, names: Iterable[str]) -> None:
        """They are named again only after a multiple of the limit."""
        self._lost_s.update(dict.fromkeys(names, -_POSTPONED * self._limit_s))

    def forget(self) -> None:
        """All of them get new connections."""
        self._lost_s.clear()
