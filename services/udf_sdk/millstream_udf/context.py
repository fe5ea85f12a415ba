"""The origin of a call, for functions.

Above it: users' functions. It knows trace contexts only as text, and OpenTelemetry only when it is installed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("millstream_udf.function")

CURRENT: ContextVar[Context | None] = ContextVar("millstream_udf_context", default=None)
"""The context of the call that the running function works on, in this task or thread; None outside a call."""


class _Adapter(logging.LoggerAdapter[logging.Logger]):
    """Adds its fields to those of the caller, which the standard adapter would replace."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one call. All records of the call share it."""

    pipeline: str = ""
    vertex: str = ""
    lane: str = ""
    """The input partition from which these records come, for example "in-map.0"; empty in `setup`."""
    replica: int = 0
    version: str = ""
    """Version of the Millstream that runs the pipeline, such as "0.2.0"."""
    attempt: int = 0
    """0 at the first attempt at these records; then the number of times that the function has failed on one of them or
    raised `Retry`."""
    watermark_us: int = -(2**63)
    """No record older than this will follow, except for late data. Microseconds since the epoch."""
    traceparent: str = ""
    """W3C trace context of the span that the vertex opened for this call; empty if it is not sampled."""
    edge: str = ""
    """The name of the edge by which these records come: `<from>-<to>`, unless the pipeline file gives it another. Empty
    in a source, its transformer and a reduce."""
    tables: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict, repr=False, compare=False)
    """The tables of the vertex, by name, read-only: `context.tables["rates"].get("EUR")`. All records of the call see
    one version of them. Values are read as JSON, unless the function declares the table with another type."""

    @property
    def partition(self) -> int | None:
        """Number of the partition from which these records come: that of the lane. None in `setup`."""
        number = self.lane.rpartition(".")[2]
        return int(number) if number.isdecimal() else None

    @property
    def watermark(self) -> datetime | None:
        """The watermark as a time; None before the first and after the last."""
        try:
            return _EPOCH + timedelta(microseconds=self.watermark_us)
        except OverflowError:
            return None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs to standard error. Millstream adds level, lane, attempt, trace id and the fields of `extra`."""
        return _Adapter(_LOGGER, {"pipeline": self.pipeline, "vertex": self.vertex, **self.log_fields()})

    def log_fields(self) -> dict[str, Any]:
        """The fields that a log line of this call gets."""
        fields: dict[str, Any] = {"lane": self.lane} if self.lane else {}
        if self.attempt:
            fields["attempt"] = self.attempt
        if self.traceparent:
            fields["trace_id"] = self.traceparent.split("-")[1]
        return fields

    @contextmanager
    def span(self, name: str) -> Iterator[Any]:
        """An OpenTelemetry span inside that of the vertex. Without OpenTelemetry it yields None and costs nothing."""
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            yield None
            return
        parent = TraceContextTextMapPropagator().extract({"traceparent": self.traceparent})
        with trace.get_tracer("millstream_udf").start_as_current_span(name, context=parent) as span:
            yield span
