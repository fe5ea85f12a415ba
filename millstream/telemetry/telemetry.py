"""Telemetry that lanes report while they work: spans, processing times, latencies.

Above it: lanes. Below it: a tracer and a meter, which are passed in. Each of them may be off; then a call costs almost
nothing. It does not know OpenTelemetry, whose import takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from millstream.frame import Frame


class Span(Protocol):
    """The work of a stage on a frame."""

    @property
    def traceparent(self) -> str:
        """The context for the called function and, with the frame, for the next stage; empty if it is not sampled."""

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        """Sets an attribute of the span."""


class UntracedSpan:
    """Records nothing, and passes on the context that it was given."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent

    def tell(self, name: str, value: str | int | float | Sequence[str]) -> None:
        return None

    def __enter__(self) -> UntracedSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None


_UNTRACED = UntracedSpan()


class Tracer(Protocol):
    """Starts the spans of one replica, of frames that may be sampled."""

    def span(
        self, name: str, parent: str, attributes: Mapping[str, str | int], *, links: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """A child span of `parent`, which is a traceparent, linked to other ones."""

    def source_span(self, name: str, frame: Frame, attributes: Mapping[str, str | int]) -> AbstractContextManager[Span]:
        """The first span of a frame's trace."""


class Meter(Protocol):
    """Takes the times of one replica."""

    def observe_processing(self, stage: str, seconds: float) -> None:
        """See `Telemetry.observe_processing`."""

    def observe_latency(self, seconds: float, records: int) -> None:
        """See `Telemetry.observe_latency`."""


class Telemetry:
    """The telemetry of one replica. Made by `ProcessTelemetry`; without arguments it reports nothing."""

    def __init__(self, tracer: Tracer | None = None, meter: Meter | None = None) -> None:
        self._tracer = tracer
        self._meter = meter

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
        if self._tracer is None:
            return UntracedSpan(parent)
        return self._tracer.span(
            name,
            parent,
            {"millstream.lane": lane, "millstream.records": records, "millstream.sequence": sequence},
            links=links,
        )

    def source_span(self, frame: Frame, *, lane: str = "") -> AbstractContextManager[Span]:
        """The span `millstream.source.read`: the trace of a frame begins with it, if the frame is sampled."""
        if self._tracer is None:
            return _UNTRACED
        return self._tracer.source_span(
            "millstream.source.read", frame, {"millstream.lane": lane, "millstream.records": frame.records}
        )

    def observe_processing(self, stage: str, seconds: float) -> None:
        """Records how long a stage (udf, transformer, sink, commit) took for one frame."""
        if self._meter is not None:
            self._meter.observe_processing(stage, seconds)

    def observe_latency(self, seconds: float, records: int) -> None:
        """Records that a sink has written a frame of `records` records whose oldest one entered the pipeline `seconds`
        ago."""
        if self._meter is not None:
            self._meter.observe_latency(seconds, records)
