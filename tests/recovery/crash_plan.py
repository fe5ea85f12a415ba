"""Which cases there are: every point a pipeline reaches, by the kind of vertex that reaches it, and pairs of them.

Pure: what was reached it is told, choices come from the generator that is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Reached = Mapping[tuple[str, str], int]
"""By point and vertex: how often."""


def kind_of(vertex: str) -> str:
    """Vertices of one kind do the same at a point; sinks of different formats are different kinds."""
    return "sink" if vertex in ("out", "late") else vertex


def text_of(point: str, vertex: str, time: int) -> str:
    """As `millstream.durable.crash_at` takes it."""
    return f"{point}#{time}" + (f"@{vertex}" if vertex else "")


def one_of_each(reached: Reached, rng: random.Random) -> dict[tuple[str, str], str]:
    """Where to be killed, for every point and kind of vertex: at any vertex of the kind, any time but the last ones,
    which another run may not come to."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (point, vertex), times in sorted(reached.items()):
        places.setdefault((point, kind_of(vertex)), []).append((vertex, times))
    chosen = {}
    for point, kind in places:
        vertex, times = rng.choice(places[point, kind])
        chosen[point, kind] = text_of(point, vertex, rng.randint(1, max(1, times // 2)))
    return chosen


def only_after_a_kill(
    tried: Collection[tuple[str, str]], recoveries: Iterable[tuple[str, Reached]]
) -> Iterator[tuple[str, str]]:
    """(where to kill first, then where) for points that only a run after a kill reaches, each kind of vertex once.

    `tried`: points and kinds of vertices that a run from the beginning reaches. `recoveries`: the point at which a run
    was killed, and what the next one reached.
    """
    seen = set(tried)
    for killed_at, reached in recoveries:
        for point, vertex in sorted(reached):
            if (point, kind_of(vertex)) not in seen:
                seen.add((point, kind_of(vertex)))
                yield killed_at, text_of(point, vertex, 1)


def pairs(recoveries: Sequence[tuple[str, Reached]]) -> list[tuple[str, str]]:
    """Every point with every point that the run after it reaches, by kind of vertex."""
    found = []
    for killed_at, reached in recoveries:
        kinds: dict[tuple[str, str], str] = {}
        for point, vertex in sorted(reached):
            kinds.setdefault((point, kind_of(vertex)), vertex)
        found += [(killed_at, text_of(point, vertex, 1)) for (point, _), vertex in kinds.items()]
    return found


def names_of(points: Collection[str]) -> set[str]:
    """The points without times and vertices."""
    return {point.partition("#")[0].partition("@")[0] for point in points}
