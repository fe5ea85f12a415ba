"""What a function is given and counts in a test: the part of the test kit for config, secrets and metrics.

Above it: `testing`. Below it: `settings` and `metrics`, whose process is that of the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from millstream_udf.metrics import REGISTRY, Reading
from millstream_udf.settings import Settings, current, held


@dataclass(frozen=True, slots=True)
class Observed:
    """What a histogram has recorded."""

    count: int
    total: float


Metrics = dict[str, "float | Observed"]
"""What was counted, by name and labels as Prometheus writes them: `{'refused{reason="price"}': 2}`."""

_COUNTING: list[Metrics] = []
"""Those that are being counted into, from the outermost to the innermost."""


@contextmanager
def given(*, config: Mapping[str, Any] | None = None, secrets: Mapping[str, str] | None = None) -> Iterator[Metrics]:
    """In the block, functions have this config and these secrets. Gives what they count, complete when it ends.

    For everything in the test kit, and for functions that a test calls directly.
    """
    with settled(config or {}, secrets or {}), counting() as counted:
        yield counted


@contextmanager
def settled(config: Mapping[str, Any] | None, secrets: Mapping[str, str] | None) -> Iterator[None]:
    """In the block, functions have these; those around it where it is None."""
    around = current() or Settings()
    settings = Settings(
        around.text if config is None else json.dumps(config), around.secrets if secrets is None else dict(secrets)
    )
    with nullcontext() if config is None and secrets is None else held(settings):
        yield


@contextmanager
def counting() -> Iterator[Metrics]:
    """Gives what functions count in the block, complete when it ends."""
    own: Metrics = {}
    # What came before is not counted here.
    _collect()
    _COUNTING.append(own)
    try:
        yield own
    finally:
        _collect()
        _COUNTING.pop()


def _collect() -> None:
    for reading in REGISTRY.take():
        for counted in _COUNTING:
            _add(counted, reading)


def _add(counted: Metrics, reading: Reading) -> None:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(reading.labels.items()))
    name = f"{reading.name}{{{labels}}}" if labels else reading.name
    before = counted.get(name)
    if reading.kind == "histogram":
        count, total = (before.count, before.total) if isinstance(before, Observed) else (0, 0.0)
        counted[name] = Observed(count + sum(reading.counts), total + reading.value)
    elif reading.kind == "counter" and isinstance(before, float):
        counted[name] = before + reading.value
    else:
        counted[name] = reading.value
