"""Where a call comes from, as a function sees it.

Above it: users' functions. It knows trace contexts only as text, and OpenTelemetry only when somebody installed it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("millstream_udf.function")


@dataclass(frozen=True, slots=True)
class Context:
    """Of one call. All records of a call share it."""

    pipeline: str = ""
    vertex: str = ""
    lane: str = ""
    """The input partition these records come from, for example "in-map.0"; empty in `setup`."""
    replica: int = 0
    attempt: int = 0
    """0 for the first attempt at these records; then how often the function has failed on one of them or asked for it
    by `Retry`."""
    watermark_us: int = -(2**63)
    """No record older than this will follow (late data excepted): microseconds since the epoch."""
    traceparent: str = ""
    """W3C trace context of the mesh's span around this call; empty when it is not sampled."""

    @property
    def watermark(self) -> datetime | None:
        """The watermark as a time; None before the first and after the last."""
        try:
            return _EPOCH + timedelta(microseconds=self.watermark_us)
        except OverflowError:
            return None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs to standard error, which the mesh collects, with pipeline, vertex and lane as extra fields."""
        return logging.LoggerAdapter(
            _LOGGER, {"pipeline": self.pipeline, "vertex": self.vertex, "lane": self.lane, "attempt": self.attempt}
        )

    @contextmanager
    def span(self, name: str) -> Iterator[Any]:
        """An OpenTelemetry span below the mesh's; gives None and costs nothing where OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            yield None
            return
        parent = TraceContextTextMapPropagator().extract({"traceparent": self.traceparent})
        with trace.get_tracer("millstream_udf").start_as_current_span(name, context=parent) as span:
            yield span
