"""The course of a run over time, with a bounded size however long it takes. Pure.

    figures of each moment ─► points ─► every two are merged when there are too many ─► report
    warnings and errors    ─► by their text, with count and times

Above it: the run, and the report of it. Below it: the figures. Records are counted, not measured, so a rate between two
points is exact however far apart they are. Of waiting records and delays, the highest value is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millstream_runner.local.logfiles import level_of
from millstream_runner.local.progress import VertexProgress, lowest
from millstream_runner.local.scene import slow_of

POINTS_MAX = 600
"""Points of a run; a chart is about as many pixels wide."""
TROUBLES_MAX = 100
"""The most different warnings and errors that are kept."""
TEXT_CHARS_MAX = 2000
"""Length of one."""
_PASSES_MAX = 4096
"""The most moments to remember at which the event time of the sources advanced."""


@dataclass(frozen=True, slots=True)
class VertexPoint:
    """A vertex at a moment; `waiting` is the highest value since the previous point."""

    records: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Point:
    """A run at a moment."""

    at_s: float
    """Seconds since it began."""
    vertices: Mapping[str, VertexPoint]
    delay_s: float | None
    """The longest time that event time took from the sources to the sinks since the previous point; None if unknown."""


@dataclass(slots=True)
class Trouble:
    """A warning or an error, with how often it occurred."""

    level: str
    process: str
    code: str
    text: str
    first_s: float
    last_s: float
    count: int = 1


class Recording:
    """The data for the report of a run."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.troubles: dict[tuple[str, str, str], Trouble] = {}
        self.troubles_left_out = 0
        """Occurrences of warnings and errors beyond those."""
        self.states: list[tuple[float, str]] = []
        """When the run entered which state."""
        self.slow_s: dict[str, float] = {}
        """For how long each vertex was the slow one."""
        self.durability = ""
        """What the broker has reported; empty until it has."""
        self._delays = _Delays()
        self._taken_s = 0.0
        self._width_s = 0.0
        """Time between two points."""
        self._open: Point | None = None
        """The newest point, which may still be merged with the next."""

    def take(self, at_s: float, vertices: Sequence[VertexProgress]) -> None:
        """Take the figures of a moment."""
        found = {one.vertex: VertexPoint(one.records, one.waiting) for one in vertices if one.published}
        point = Point(at_s, found, self._delays.now(at_s, vertices))
        slow = slow_of(vertices)
        if slow is not None and self._open is not None:
            self.slow_s[slow.vertex] = self.slow_s.get(slow.vertex, 0.0) + at_s - self._taken_s
        self._taken_s = at_s
        self._open = point if self._open is None else _merged(self._open, point)
        if not self.points or at_s - self.points[-1].at_s >= self._width_s:
            self.points.append(self._open)
            self._open = point
        if len(self.points) >= POINTS_MAX:
            self._thin()

    def finish(self) -> None:
        """Make the newest moment a point, too."""
        if self._open is not None and self.points[-1].at_s < self._open.at_s:
            self.points.append(self._open)

    def entry(self, at_s: float, entry: Mapping[str, Any]) -> None:
        """A process logged a warning or worse."""
        text = str(entry.get("message", ""))[:TEXT_CHARS_MAX]
        level, process = level_of(entry).lower(), str(entry.get("process", ""))
        key = (level, process, text)
        known = self.troubles.get(key)
        if known is not None:
            known.count += 1
            known.last_s = at_s
        elif len(self.troubles) < TROUBLES_MAX:
            self.troubles[key] = Trouble(level, process, str(entry.get("code") or ""), text, at_s, at_s)
        else:
            self.troubles_left_out += 1

    def _thin(self) -> None:
        """Merge the points in pairs; the first one stays, because the counts began there."""
        first, rest = self.points[0], self.points[1:]
        pairs = [_merged(*rest[index : index + 2]) for index in range(0, len(rest) - 1, 2)]
        last = rest[-1:] if len(rest) % 2 else []
        self.points = [first, *pairs, *last]
        self._width_s = (self.points[-1].at_s - first.at_s) / (len(self.points) - 1)


def _merged(one: Point, next_: Point) -> Point:
    """Two points as one, at the time of the second."""
    vertices = {
        name: VertexPoint(
            new.records,
            max(new.waiting, one.vertices[name].waiting) if name in one.vertices else new.waiting,
        )
        for name, new in next_.vertices.items()
    }
    delays = [delay for delay in (one.delay_s, next_.delay_s) if delay is not None]
    return Point(next_.at_s, vertices, max(delays, default=None))


class _Delays:
    """How long event time is on its way: the time since the sources passed what the sinks have reached."""

    def __init__(self) -> None:
        self._passes: deque[tuple[float, int]] = deque()
        """When the sources had reached which event time; both rise."""

    def now(self, at_s: float, vertices: Sequence[VertexProgress]) -> float | None:
        """Seconds; None until every source and sink has an event time."""
        newest = lowest([one.watermark_us for one in vertices if not one.has_input])
        oldest = lowest([one.watermark_us for one in vertices if one.has_input and not one.has_output])
        if newest is None or oldest is None:
            return None
        if not self._passes or newest > self._passes[-1][1]:
            self._passes.append((at_s, newest))
        if len(self._passes) > _PASSES_MAX:
            self._passes = deque(list(self._passes)[::2])
        while self._passes and self._passes[0][1] <= oldest:
            self._passes.popleft()
        return at_s - self._passes[0][0] if self._passes else 0.0
