"""Histograms that cost little to observe: a bucket is counted at once, and OpenTelemetry gets the counts when a reader
collects.

    observe ─► counts by bucket ─► collect ─► a metric of OpenTelemetry ─► Prometheus text, OTLP

A frame is observed several times on its way, and at low rates OpenTelemetry's own code for that took a tenth of a
worker's time. Above it: `metrics.py` observes, and `export.py` collects. Below it: OpenTelemetry's data model.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

SCOPE = "millstream"
"""Instrumentation scope of all metrics."""


@dataclass(frozen=True, slots=True)
class HistogramDescription:
    """A histogram of the table of metrics."""

    name: str
    description: str
    bounds: Sequence[float]
    """Upper bounds of its buckets, which belong to the buckets."""


class Histogram:
    """What one replica has observed, for one reader."""

    __slots__ = ("_bounds", "_counts", "_max", "_min", "_start_ns", "_sum", "labels")

    def __init__(self, bounds: Sequence[float], labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        self._bounds = bounds
        self._start_ns = time.time_ns()
        self._clear()

    def _clear(self) -> None:
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._min, self._max = math.inf, -math.inf

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add values that were observed elsewhere, with the same bounds. Their minimum and maximum are not known."""
        self._counts = [before + more for before, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def point(self, now_ns: int, *, begin_again: bool) -> HistogramDataPoint | None:
        """What was observed; None if nothing was. `begin_again`: and forget it."""
        count = sum(self._counts)
        if not count:
            return None
        point = HistogramDataPoint(
            attributes=self.labels,
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
            count=count,
            sum=self._sum,
            bucket_counts=tuple(self._counts),
            explicit_bounds=self._bounds,
            # None is not sent.
            min=self._min if self._min <= self._max else None,  # type: ignore[arg-type]
            max=self._max if self._min <= self._max else None,  # type: ignore[arg-type]
        )
        if begin_again:
            self._start_ns = now_ns
            self._clear()
        return point


class Histograms:
    """All histograms of a process, for one reader."""

    def __init__(self, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        """`temporality`: whether the reader wants everything since the start, or since its last collection."""
        self._temporality = temporality
        self._made: dict[HistogramDescription, list[Histogram]] = {}

    def make(self, described: HistogramDescription, labels: Mapping[str, str]) -> Histogram:
        """The histogram of one replica."""
        histogram = Histogram(described.bounds, labels)
        self._made.setdefault(described, []).append(histogram)
        return histogram

    def added_to(self, data: MetricsData) -> MetricsData:
        """What a reader has collected, with the histograms."""
        now_ns = time.time_ns()
        begin_again = self._temporality is AggregationTemporality.DELTA
        metrics: list[Metric] = []
        for described, histograms in self._made.items():
            points = [one.point(now_ns, begin_again=begin_again) for one in histograms]
            if found := [point for point in points if point is not None]:
                metrics.append(
                    Metric(described.name, described.description, "", HistogramData(found, self._temporality))
                )
        resource = data.resource_metrics[0]
        scopes = {one.scope.name: one for one in resource.scope_metrics}
        # OpenTelemetry may have metrics of its own, and ours may be histograms only.
        ours = scopes.get(SCOPE, ScopeMetrics(InstrumentationScope(SCOPE), [], ""))
        scopes[SCOPE] = ScopeMetrics(ours.scope, [*ours.metrics, *metrics], ours.schema_url)
        return MetricsData([ResourceMetrics(resource.resource, list(scopes.values()), resource.schema_url)])
