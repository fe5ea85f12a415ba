"""Which cases there are: every point a pipeline reaches, by the kind of vertex that reaches it, and pairs of them.

Pure: its caller says what was reached, choices come from the generator that is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence

Reached = Mapping[tuple[str, str], int]
"""By point and vertex: how often."""


_KINDS = {"single": "sum", "beside": "in"} | dict.fromkeys(("out", "late", "columns", "dead", "counts"), "sink")


def kind_of(vertex: str) -> str:
    """Vertices of one kind do the same at a point."""
    return _KINDS.get(vertex, vertex)


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
    tried: Collection[tuple[str, str]], recoveries: Iterable[tuple[Sequence[str], Reached]]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Where to be killed, one after another, for points and kinds of vertices that were not tried.

    `recoveries`: the points at which runs were killed one after another, and what the one after them reached.
    """
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for killed_at, reached in recoveries:
        for point, vertex in sorted(reached):
            place = point, kind_of(vertex)
            if place not in tried and place not in found:
                found[place] = (*killed_at, text_of(point, vertex, 1))
    return found


def pairs(recoveries: Iterable[tuple[Sequence[str], Reached]]) -> list[tuple[str, ...]]:
    """Every point with every point that the run after it reaches, by kind of vertex."""
    found: list[tuple[str, ...]] = []
    for killed_at, reached in recoveries:
        kinds: dict[tuple[str, str], str] = {}
        for point, vertex in sorted(reached):
            kinds.setdefault((point, kind_of(vertex)), vertex)
        found += [(*killed_at, text_of(point, vertex, 1)) for (point, _), vertex in kinds.items()]
    return found


def places_of(points: Iterable[str]) -> tuple[str, ...]:
    """Points and kinds of vertices, without times."""
    places = []
    for text in points:
        point, _, vertex = text.partition("@")
        places.append(f"{point.partition('#')[0]}@{kind_of(vertex)}")
    return tuple(places)


def names_of(points: Collection[str]) -> set[str]:
    """The points without times and vertices."""
    return {point.partition("#")[0].partition("@")[0] for point in points}
