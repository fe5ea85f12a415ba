"""What the lanes of a worker have been waiting for, for a while, as the lines of its log say. Pure.

Above it: the worker's state. Below it: the fields of `millstream.pauses.RepeatedFailure`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.pauses import REPEATED_AFTER_S, WAIT, WAITS_FOR


class Waits:
    """The waits of one process."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[str, str, float]] = {}
        """Vertex, reason, and since when; by their number in the process."""

    def take(self, entry: Mapping[str, Any], now_s: float) -> None:
        """Takes a line of the log into account."""
        number, why = entry.get(WAIT), entry.get(WAITS_FOR)
        if not isinstance(number, int):
            return
        if not why:
            self._waits.pop(number, None)
            return
        before = self._waits.get(number)
        since_s = now_s - REPEATED_AFTER_S if before is None else before[2]
        self._waits[number] = (str(entry.get("vertex", "")), str(why), since_s)

    def longest(self, vertex: str, now_s: float) -> tuple[float, str]:
        """How long a lane of the vertex has been waiting, in seconds, and what for; no reason if none is."""
        waits = ((now_s - since_s, why) for name, why, since_s in self._waits.values() if name == vertex)
        return max(waits, default=(0.0, ""))

    def clear(self) -> None:
        """There is a new process."""
        self._waits.clear()
