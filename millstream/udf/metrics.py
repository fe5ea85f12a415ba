"""What a function has counted, as its vertex exports it. Pure.

    messages of the function ─► FunctionMetrics ─► snapshot ─► the telemetry of the vertex

Totals continue when the function is restarted: a message has what was added since the last one. Above it: protocols,
which add messages, and the statistics of a vertex. Below it: nothing. A function cannot make it larger than stated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from millstream.statistics import FunctionSeries
from millstream_udf.metrics import (
    BOUNDS_MAX,
    LABEL_CHARACTERS_MAX,
    LABELS_MAX,
    NAMES_MAX,
    OVERFLOW,
    RESERVED_LABELS,
    SERIES_MAX,
)

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class FunctionMetrics:
    """The series of one program of a replica."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, frozenset[tuple[str, str]]], FunctionSeries] = {}
        self._kinds: dict[str, tuple[str, tuple[float, ...]]] = {}
        self._snapshot: Sequence[FunctionSeries] | None = ()

    def add(self, reported: Sequence[FunctionSeries]) -> None:
        """Add what a function has reported. Raises `ValueError` for something that it cannot report, of which nothing
        is added."""
        for series in reported:
            _check(series)
        for series in reported:
            self._add(series)
        self._snapshot = None

    def snapshot(self) -> Sequence[FunctionSeries]:
        """All series."""
        if self._snapshot is None:
            self._snapshot = tuple(self._series.values())
        return self._snapshot

    def _add(self, new: FunctionSeries) -> None:
        if new.name not in self._kinds and len(self._kinds) == NAMES_MAX:
            return
        if self._kinds.setdefault(new.name, (new.kind, new.bounds)) != (new.kind, new.bounds):
            # A restart with other code: the first meaning of the name stays until the vertex is restarted.
            return
        key = (new.name, frozenset(new.labels.items()))
        if key not in self._series and len(self._series) >= SERIES_MAX and new.labels != OVERFLOW:
            key = (new.name, frozenset(OVERFLOW.items()))
        before = self._series.get(key)
        value = new.value if before is None or new.kind == "gauge" else before.value + new.value
        counts = new.counts
        if before is not None and new.kind == "histogram":
            counts = tuple(map(int.__add__, before.counts, new.counts))
        self._series[key] = FunctionSeries(new.name, new.kind, dict(key[1]), value, new.bounds, counts)


def _check(series: FunctionSeries) -> None:
    name, labels = series.name, series.labels
    if not _NAME.fullmatch(name) or series.kind not in ("counter", "gauge", "histogram"):
        raise ValueError(f"{name[:80]!r} is not a metric")
    if len(labels) > LABELS_MAX or any(
        not _LABEL.fullmatch(label) or len(value) > LABEL_CHARACTERS_MAX for label, value in labels.items()
    ):
        raise ValueError(f"the metric {name} has labels that it cannot have")
    if labels != OVERFLOW and RESERVED_LABELS & labels.keys():
        raise ValueError(f"the metric {name} has the label {min(RESERVED_LABELS & labels.keys())}")
    if series.kind == "counter" and not 0 <= series.value < math.inf:
        raise ValueError(f"the counter {name} has {series.value}")
    if series.kind == "histogram":
        bounds = series.bounds
        rising = all(low < high for low, high in pairwise(bounds))
        if not rising or not 0 < len(bounds) <= BOUNDS_MAX or len(series.counts) != len(bounds) + 1:
            raise ValueError(f"the histogram {name} has bounds that it cannot have")
    elif series.bounds or series.counts:
        raise ValueError(f"the metric {name} is no histogram, and has buckets")
