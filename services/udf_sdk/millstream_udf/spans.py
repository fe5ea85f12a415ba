"""Exports the spans of a function to the collector that the environment names.

Above it: the server. Below it: OpenTelemetry, which may be missing in a function's environment: without its SDK or its
gRPC exporter, or without a collector in the environment, nothing is set up.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FLUSH_S = 5.0
"""How long an ending process waits for the collector to accept the last spans."""
_log = logging.getLogger(__name__)


@contextmanager
def exported(pipeline: str, vertex: str, replica: int) -> Iterator[None]:
    """Send the function's spans, and the remaining ones at the end. A provider that the function's author has set is
    not changed."""
    provider = _provider(pipeline, vertex, replica) if _is_wanted() else None
    try:
        yield
    finally:
        if provider is not None:
            # In a thread, so that a hanging collector does not delay the end.
            ending = threading.Thread(target=provider.shutdown, name="spans", daemon=True)
            ending.start()
            ending.join(_FLUSH_S)


def _is_wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return False
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint and "@" in endpoint:
        _log.warning(
            "spans are not exported: the endpoint has a user or a password, which messages would show; "
            "put credentials into OTEL_EXPORTER_OTLP_HEADERS"
        )
        return False
    return bool(endpoint)


def _provider(pipeline: str, vertex: str, replica: int) -> Any:
    """The provider that is set up here; None without OpenTelemetry, or if there is one already."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
    except ImportError:
        _log.debug("spans are not exported: install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-grpc")
        return None
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return None
    own = {
        "service.namespace": pipeline,
        "service.instance.id": f"{vertex}-{replica}-udf",
        "millstream.pipeline": pipeline,
        "millstream.vertex": vertex,
        "millstream.replica": str(replica),
    }
    if "OTEL_SERVICE_NAME" not in os.environ:
        own["service.name"] = f"{pipeline}-{vertex}"
    # Sampling is decided at the source of a frame: a call without a context belongs to a frame that is not sampled.
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider
