"""Exports what functions count, beside our own metrics.

    statistics of each replica ─► instruments, made when a name first occurs ─► the readers of `metrics.py`

Above it: `Metrics`, which passes new statistics on before each collection. Below it: OpenTelemetry, and our histograms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from millstream.statistics import FunctionSeries
from millstream.telemetry.histograms import Histogram, HistogramDescription, Histograms

PREFIX = "udf_"
"""Begins the exported names, so that none is one of ours."""
DESCRIPTION = "Counted by a function of the pipeline."
_log = logging.getLogger(__name__)

_Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _Observed:
    """A histogram of a function, and what of it the readers have."""

    histograms: Sequence[Histogram]
    counts: tuple[int, ...]
    total: float = 0.0


class FunctionInstruments:
    """The instruments of one process for what functions count."""

    def __init__(self, meter: Meter, readers: Sequence[Histograms]) -> None:
        self._meter = meter
        self._readers = readers
        self._kinds: dict[str, str] = {}
        """The kind of each name: that of the function in which it first occurred."""
        self._values: dict[str, list[Observation]] = {}
        self._histograms: dict[_Key, _Observed] = {}

    def update(self, replicas: Iterable[tuple[Mapping[str, str], Mapping[str, Sequence[FunctionSeries]]]]) -> None:
        """What the next collection reports. `replicas`: the labels of each, and its series by the role of the
        program. Of several with the same labels, which a vertex has had in this process, the last one counts."""
        self._values = {}
        newest = {frozenset(labels.items()): (labels, functions) for labels, functions in replicas}
        for labels, functions in newest.values():
            for role, some in functions.items():
                for series in some:
                    self._add(series, {**series.labels, **labels, "role": role})

    def _add(self, series: FunctionSeries, labels: Mapping[str, str]) -> None:
        name = PREFIX + series.name
        if name not in self._kinds:
            self._kinds[name] = series.kind
            self._make(name, series.kind)
        if self._kinds[name] != series.kind:
            if self._kinds[name]:
                _log.warning(
                    "the metric %s is a %s in one function and a %s in another: from now on, no function exports it",
                    *(series.name, self._kinds[name], series.kind),
                )
            self._kinds[name] = ""
        elif series.kind == "histogram":
            self._observe(name, series, labels)
        else:
            self._values.setdefault(name, []).append(Observation(series.value, labels))

    def _make(self, name: str, kind: str) -> None:
        if kind == "counter":
            self._meter.create_observable_counter(name, callbacks=[self._read(name)], description=DESCRIPTION)
        elif kind == "gauge":
            self._meter.create_observable_gauge(name, callbacks=[self._read(name)], description=DESCRIPTION)

    def _read(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: self._values.get(name, ())

    def _observe(self, name: str, series: FunctionSeries, labels: Mapping[str, str]) -> None:
        key = (name, frozenset(labels.items()))
        observed = self._histograms.get(key)
        if observed is None:
            described = HistogramDescription(name, DESCRIPTION, series.bounds)
            made = [reader.make(described, labels) for reader in self._readers]
            observed = self._histograms[key] = _Observed(made, (0,) * len(series.counts))
        if len(observed.counts) != len(series.counts):
            return
        if any(now < before for now, before in zip(series.counts, observed.counts, strict=True)):
            # A new replica counts from 0.
            observed.counts, observed.total = (0,) * len(series.counts), 0.0
        added = [now - before for now, before in zip(series.counts, observed.counts, strict=True)]
        for histogram in observed.histograms:
            histogram.add(added, series.value - observed.total)
        observed.counts, observed.total = series.counts, series.value
