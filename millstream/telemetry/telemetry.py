"""Telemetry that lanes report while they work: spans, processing times, latencies.

Above it: lanes. Below it: tracing and metrics. Each of them may be off; then a call costs almost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from millstream.frame import Frame
from millstream.telemetry.untraced import Span, UntracedSpan

if TYPE_CHECKING:
    # Importing OpenTelemetry takes a tenth of a second; a process that exports nothing does not import it.
    from millstream.telemetry.metrics import VertexMetrics
    from millstream.telemetry.tracing import Tracing

_UNTRACED = UntracedSpan()


class Telemetry:
    """The telemetry of one replica. Made by `ProcessTelemetry`; without arguments it reports nothing."""

    def __init__(self, tracing: Tracing | None = None, metrics: VertexMetrics | None = None) -> None:
        self._tracing = tracing
        self._metrics = metrics

    def span(
        self, name: str, *, parent: str, lane: str = "", records: int = 0, sequence: int = 0, links: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """The span of a stage that processes a frame. `parent`: the frame's traceparent. `links`: the traceparents of
        other traces in the frame.

        The span's own traceparent goes to the called function, and with the frame to the next stage. A frame without a
        traceparent is not sampled: nothing is recorded for it.
        """
        if not parent:
            return _UNTRACED
        if self._tracing is None:
            return UntracedSpan(parent)
        return self._tracing.span(
            name,
            parent,
            {"millstream.lane": lane, "millstream.records": records, "millstream.sequence": sequence},
            links=links,
        )

    def source_span(self, frame: Frame, *, lane: str = "") -> AbstractContextManager[Span]:
        """The span `millstream.source.read`: the trace of a frame begins with it, if the frame is sampled."""
        if self._tracing is None:
            return _UNTRACED
        return self._tracing.source_span(
            "millstream.source.read", frame, {"millstream.lane": lane, "millstream.records": frame.records}
        )

    def observe_processing(self, stage: str, seconds: float) -> None:
        """Records how long a stage (udf, transformer, sink, commit) took for one frame."""
        if self._metrics is not None:
            self._metrics.observe_processing(stage, seconds)

    def observe_latency(self, seconds: float, records: int) -> None:
        """Records that a sink has written a frame of `records` records whose oldest one entered the pipeline `seconds`
        ago."""
        if self._metrics is not None:
            self._metrics.observe_latency(seconds, records)
