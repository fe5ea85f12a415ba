"""Traces: one span per frame and stage, from the source to the sinks.

    record's own traceparent ··link··► millstream.source.read ──► millstream.map ──► millstream.sink.write
                                              │ the frame's traceparent, in the buffer ▲

A trace begins at a source frame and is sampled there. A frame that is not sampled has no traceparent, and costs
nothing at any later stage. Above it: `Telemetry`. Below it: OpenTelemetry with providers of its own, never the global
ones. It does not depend on lanes or commits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.util.types import Attributes, AttributeValue

from millstream import limits
from millstream.frame import Frame
from millstream.telemetry.logging import log_trace
from millstream.telemetry.telemetry import Span, UntracedSpan

TRACEPARENT_HEADER = "traceparent"
"""Header of a record that has its own trace context (W3C)."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLER_VARIABLE = "OTEL_TRACES_SAMPLER"
_RATIO_VARIABLE = "OTEL_TRACES_SAMPLER_ARG"
_RATIO = 0.001
"""Share of source frames that are traced if the environment does not set one."""


class Tracing:
    """The tracer of one replica. Made by `make_tracing`."""

    def __init__(self, provider: TracerProvider, fixed: Mapping[str, AttributeValue]) -> None:
        self._tracer = provider.get_tracer("millstream")
        self._fixed = dict(fixed)

    def span(
        self, name: str, parent: str, attributes: Mapping[str, AttributeValue], *, links: Sequence[str] = ()
    ) -> AbstractContextManager[Span]:
        """A child span of `parent`, which is a traceparent, linked to other ones."""
        context = parse_traceparent(parent)
        if context is None:
            return UntracedSpan()
        below = set_span_in_context(NonRecordingSpan(context), Context())
        linked = [Link(other) for other in map(parse_traceparent, links) if other is not None]
        return self._start(name, below, attributes, linked, SpanKind.INTERNAL)

    def source_span(
        self, name: str, frame: Frame, attributes: Mapping[str, AttributeValue]
    ) -> AbstractContextManager[Span]:
        """The first span of a frame's trace, linked to the contexts of its records. If one of them is sampled, the span
        is, too."""
        return self._start(name, Context(), attributes, list(map(Link, contexts_of(frame))), SpanKind.CONSUMER)

    def _start(
        self,
        name: str,
        context: Context,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[Link],
        kind: SpanKind,
    ) -> AbstractContextManager[Span]:
        span = self._tracer.start_span(
            name,
            context,
            kind=kind,
            attributes={**self._fixed, **attributes},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )
        return _RecordedSpan(span) if span.get_span_context().trace_flags.sampled else UntracedSpan()


class _RecordedSpan:
    """A sampled span."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        self._log = log_trace(f"{context.trace_id:032x}")

    def tell(self, name: str, value: AttributeValue) -> None:
        self._span.set_attribute(name, value)

    def __enter__(self) -> _RecordedSpan:
        self._log.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.__exit__(None, None, None)
        # A cancellation says nothing about the stage.
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        self._span.end()


class LinkedSampler(Sampler):
    """Samples a span that is linked to a sampled one; for other spans, another sampler decides."""

    def __init__(self, other: Sampler) -> None:
        self._other = other

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if any(link.context.trace_flags.sampled for link in links or ()):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return self._other.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"Linked({self._other.get_description()})"


def make_tracing(
    spans: SpanProcessor, resource: Resource, fixed: Mapping[str, AttributeValue], environment: Mapping[str, str]
) -> Tracing:
    """The tracing of a replica, which sends to the span processor of the process. The processor outlives it. `fixed`:
    attributes of every span. `environment` selects the sampler."""
    sampler = None if _SAMPLER_VARIABLE in environment else ParentBased(TraceIdRatioBased(_ratio(environment)))
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.sampler = LinkedSampler(provider.sampler)
    provider.add_span_processor(spans)
    return Tracing(provider, fixed)


def parse_traceparent(text: str) -> SpanContext | None:
    """The context of a W3C traceparent; None if the traceparent is empty, malformed or all zeros."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or text.startswith("ff"):
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def contexts_of(frame: Frame) -> Iterable[SpanContext]:
    """The distinct contexts of the records of a frame, sampled ones first, at most `limits.SPAN_LINKS_MAX`."""
    if TRACEPARENT_HEADER.encode() not in frame.headers_column:
        return []
    texts = {headers[TRACEPARENT_HEADER] for headers in frame.headers() if TRACEPARENT_HEADER in headers}
    contexts = (parse_traceparent(text.decode("ascii", "replace")) for text in sorted(texts))
    known = [context for context in contexts if context is not None]
    known.sort(key=lambda context: not context.trace_flags.sampled)
    return known[: limits.SPAN_LINKS_MAX]


def _ratio(environment: Mapping[str, str]) -> float:
    try:
        ratio = float(environment.get(_RATIO_VARIABLE, _RATIO))
    except ValueError:
        return _RATIO
    return ratio if 0 <= ratio <= 1 else _RATIO
