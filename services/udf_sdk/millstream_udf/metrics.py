"""What a function counts and measures, exported by Millstream beside its own metrics.

    refused = udf.metrics.counter("refused", {"reason": "price"})
    refused.add()
    udf.metrics.gauge("model_age_seconds").set(3.5)
    udf.metrics.histogram("request_seconds").record(0.12)

A series is a name with labels: the same ones give the same series. Names are exported with the prefix `udf_`, and with
the labels pipeline, vertex, vertex_type, replica and role.

A call whose answer is lost is made again, and counts again: these are numbers about the work, not about the records.
What was counted in the last second before a process is killed is lost.

A process has at most `SERIES_MAX` series. More of a name are counted together, with the label `overflow="true"`, and
names beyond `NAMES_MAX` are not counted; either is logged once.

Above it: users' functions, in any thread. Below it: nothing. What `REGISTRY` has collected is sent by `metrics_stream`.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

SERIES_MAX = 1000
"""Series of a process, without those that count the others of their name together."""
NAMES_MAX = 100
"""Names of metrics of a process."""
LABELS_MAX = 10
BOUNDS_MAX = 50
"""Bounds of a histogram."""
LABEL_CHARACTERS_MAX = 200
"""A longer value of a label is cut."""
RESERVED_LABELS = frozenset(("pipeline", "vertex", "vertex_type", "replica", "role", "overflow", "le"))
"""Labels that are not the function's."""
OVERFLOW: Mapping[str, str] = {"overflow": "true"}
"""The labels of the series that has what did not get a series of its own."""
BOUNDS = tuple(round(digit * 10.0**power, -power) for power in range(-3, 5) for digit in (1, 2, 5))
"""Default bounds of a histogram: 1, 2 and 5 times each power of ten, from 0.001 to 50,000."""

_NAMES = {"metric": re.compile(r"[a-z_][a-z0-9_]{0,62}"), "label": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")}
"""OpenTelemetry makes no difference between small and capital letters in the names of metrics."""
_log = logging.getLogger("millstream_udf.metrics")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a series has collected."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    labels: Mapping[str, str]
    value: float
    """What was added to a counter, the value of a gauge, the sum of what a histogram has recorded."""
    bounds: Sequence[float] = ()
    counts: Sequence[int] = ()
    """Values in each bucket of a histogram."""


class _Series:
    """One series, with what was added to it since the last collection."""

    __slots__ = ("_is_noted", "_registry", "labels", "name")

    def __init__(self, registry: Registry, name: str, labels: Mapping[str, str], *, is_counted: bool) -> None:
        self.name = name
        self.labels = labels
        self._registry = registry
        # What is not counted is never collected.
        self._is_noted = not is_counted

    def taken(self) -> Reading:
        """What was collected, which is then forgotten. Called with the registry's lock."""
        raise NotImplementedError

    def _change(self) -> None:
        if not self._is_noted:
            self._is_noted = True
            self._registry.note(self)


class Counter(_Series):
    """A number that only grows. Made by `counter`."""

    __slots__ = ("_added",)

    def __init__(self, registry: Registry, name: str, labels: Mapping[str, str], *, is_counted: bool) -> None:
        super().__init__(registry, name, labels, is_counted=is_counted)
        self._added = 0.0

    def add(self, amount: float = 1) -> None:
        """Add an amount, not negative."""
        if not 0 <= amount < math.inf:
            raise ValueError(f"a counter only grows, so {amount!r} cannot be added; a gauge can have any value")
        with self._registry.lock:
            self._added += amount
            self._change()

    def taken(self) -> Reading:
        added, self._added, self._is_noted = self._added, 0.0, False
        return Reading(self.name, "counter", self.labels, added)


class Gauge(_Series):
    """A number that goes up and down. Made by `gauge`."""

    __slots__ = ("_value",)

    def __init__(self, registry: Registry, name: str, labels: Mapping[str, str], *, is_counted: bool) -> None:
        super().__init__(registry, name, labels, is_counted=is_counted)
        self._value = 0.0

    def set(self, value: float) -> None:
        """The present value."""
        with self._registry.lock:
            self._value = float(value)
            self._change()

    def taken(self) -> Reading:
        self._is_noted = False
        return Reading(self.name, "gauge", self.labels, self._value)


class Histogram(_Series):
    """How often values were in which range. Made by `histogram`."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(
        self,
        registry: Registry,
        name: str,
        labels: Mapping[str, str],
        *,
        is_counted: bool,
        bounds: Sequence[float] = BOUNDS,
    ) -> None:
        super().__init__(registry, name, labels, is_counted=is_counted)
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def record(self, value: float) -> None:
        """Count a value, which is finite."""
        if not math.isfinite(value):
            raise ValueError(f"{value!r} cannot be recorded: it is not a finite number")
        with self._registry.lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value
            self._change()

    def taken(self) -> Reading:
        counts, self._counts = self._counts, [0] * len(self._counts)
        total, self._sum, self._is_noted = self._sum, 0.0, False
        return Reading(self.name, "histogram", self.labels, total, self._bounds, counts)


_Made = TypeVar("_Made", Counter, Gauge, Histogram)
_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class _Named:
    """What all series of a name have in common."""

    kind: type[_Series]
    labels: frozenset[str]
    bounds: tuple[float, ...]


class Registry:
    """All series of a process."""

    def __init__(self) -> None:
        # A handler of logs, which a warning reaches with the lock, may count as well.
        self.lock = threading.RLock()
        self.on_change: Callable[[], None] = lambda: None
        """Called when something has changed, and nothing had since the last collection, in any thread."""
        self.not_exported = ""
        """Why nothing of it is exported from this process."""
        self._names: dict[str, _Named] = {}
        self._series: dict[_Key, Any] = {}
        self._own = 0
        """How many series are not for what did not get one."""
        self._changed: list[_Series] = []
        self._warned: set[str] = set()

    @property
    def is_used(self) -> bool:
        """Whether there is any."""
        return bool(self._names)

    def series(
        self, kind: type[_Made], name: str, labels: Mapping[str, object] | None, bounds: Sequence[float] | None = None
    ) -> _Made:
        """The series of that name and labels; a new one at the first time. Raises `ValueError` for what cannot be
        exported, and for a name that is used differently elsewhere."""
        key = (name, tuple(sorted((label, _text(value)) for label, value in labels.items())) if labels else ())
        found = self._series.get(key)
        if type(found) is kind and bounds is None:
            return found
        _check(name, dict(key[1]), bounds)
        with self.lock:
            return self._made(kind, key, None if bounds is None else tuple(map(float, bounds)))

    def note(self, series: _Series) -> None:
        """Collect a series that has changed. Called with the lock."""
        self._changed.append(series)
        if len(self._changed) == 1:
            self.on_change()

    def take(self) -> list[Reading]:
        """What has changed since the last collection."""
        with self.lock:
            taken = [series.taken() for series in self._changed]
            self._changed.clear()
        return taken

    def _made(self, kind: type[_Made], key: _Key, bounds: tuple[float, ...] | None) -> _Made:
        name, labels = key[0], dict(key[1])
        named = self._names.get(name) or _Named(kind, frozenset(labels), bounds or BOUNDS)
        if named.kind is not kind:
            raise ValueError(f"the metric {name} is a {named.kind.__name__.lower()} elsewhere")
        if named.labels != labels.keys():
            raise ValueError(
                f"the metric {name} has the labels {_listed(labels)}, and {_listed(named.labels)} elsewhere"
            )
        if bounds is not None and bounds != named.bounds:
            raise ValueError(f"the histogram {name} has other bounds elsewhere")
        if self.not_exported:
            self._warn("exported", self.not_exported)
        if name not in self._names and len(self._names) == NAMES_MAX:
            self._warn(
                "names", f"a function has at most {NAMES_MAX} metrics: {name} and those after it are not counted"
            )
            return self._new(kind, key, named.bounds, is_counted=False)
        self._names[name] = named
        if key not in self._series and self._own == SERIES_MAX:
            self._warn(
                "series",
                f"a function has at most {SERIES_MAX} series of metrics: what is new, such as {name} with {labels}, is "
                'counted with the label overflow="true". Use labels with few values',
            )
            key = (name, tuple(OVERFLOW.items()))
        elif key not in self._series:
            self._own += 1
        if key not in self._series:
            self._series[key] = self._new(kind, key, named.bounds, is_counted=True)
        made: _Made = self._series[key]
        return made

    def _new(self, kind: type[_Made], key: _Key, bounds: Sequence[float], *, is_counted: bool) -> _Made:
        if issubclass(kind, Histogram):
            return kind(self, key[0], dict(key[1]), is_counted=is_counted, bounds=bounds)
        return kind(self, key[0], dict(key[1]), is_counted=is_counted)

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", text)


REGISTRY = Registry()
"""The series of this process."""


def counter(name: str, labels: Mapping[str, object] | None = None) -> Counter:
    """A counter: `add`. Prometheus gets it as `udf_NAME_total`."""
    return REGISTRY.series(Counter, name, labels)


def gauge(name: str, labels: Mapping[str, object] | None = None) -> Gauge:
    """A gauge: `set`."""
    return REGISTRY.series(Gauge, name, labels)


def histogram(
    name: str, labels: Mapping[str, object] | None = None, *, bounds: Sequence[float] | None = None
) -> Histogram:
    """A histogram: `record`. `bounds`: the upper bounds of its buckets, rising, at most 50; by default 0.001, 0.002,
    0.005, 0.01 and so on up to 50,000."""
    return REGISTRY.series(Histogram, name, labels, bounds)


def _check(name: str, labels: Mapping[str, str], bounds: Sequence[float] | None) -> None:
    for what, text in (("metric", name), *(("label", label) for label in labels)):
        if not _NAMES[what].fullmatch(text):
            letters = "small letters" if what == "metric" else "letters"
            raise ValueError(f"{text!r} is not the name of a {what}: {letters}, digits and _, at most 63 characters")
    if reserved := RESERVED_LABELS & labels.keys():
        raise ValueError(f"the metric {name} cannot have the label {min(reserved)}, which Millstream uses")
    if len(labels) > LABELS_MAX:
        raise ValueError(f"the metric {name} has {len(labels)} labels; at most {LABELS_MAX} are allowed")
    if bounds is not None and (
        not 0 < len(bounds) <= BOUNDS_MAX
        or not all(map(math.isfinite, bounds))
        or any(low >= high for low, high in pairwise(bounds))
    ):
        raise ValueError(f"the bounds of the histogram {name} must be 1 to {BOUNDS_MAX} rising numbers")


def _text(value: object) -> str:
    # Half of a character cannot be sent.
    return str(value)[:LABEL_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(sorted(labels)) or "none"
