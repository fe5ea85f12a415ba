"""A collector of traces, metrics and logs: OTLP over gRPC, as OpenTelemetry's own would take them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

# Generated without types.
add_trace: Callable[[object, grpc.aio.Server], None] = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
add_logs: Callable[[object, grpc.aio.Server], None] = logs_service_pb2_grpc.add_LogsServiceServicer_to_server
add_metrics: Callable[[object, grpc.aio.Server], None] = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[trace_pb2.Span] = []
        self.metrics: dict[str, metrics_pb2.Metric] = {}
        """What was exported last, by name."""
        self.all_metrics: list[metrics_pb2.Metric] = []
        self.logs: list[logs_pb2.LogRecord] = []
        self.resource: dict[str, str] = {}
        self.exports = asyncio.Queue[str]()

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> trace_pb2.Span:
        """The first span of that name."""
        return next(span for span in self.spans if span.name == name)

    def span(self, name: str) -> trace_pb2.Span:
        """The one span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        for of_resource in request.resource_spans:
            self._collector.resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self._collector.spans.extend(of_scope.spans)
        self._collector.exports.put_nowait("traces")
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> metrics_service_pb2.ExportMetricsServiceResponse:
        for of_resource in request.resource_metrics:
            self._collector.resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_metrics:
                self._collector.metrics.update({metric.name: metric for metric in of_scope.metrics})
                self._collector.all_metrics.extend(of_scope.metrics)
        self._collector.exports.put_nowait("metrics")
        return metrics_service_pb2.ExportMetricsServiceResponse()


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def Export(self, request: Any, context: Any) -> logs_service_pb2.ExportLogsServiceResponse:
        for of_resource in request.resource_logs:
            self._collector.resource = attributes(of_resource.resource.attributes)
            for of_scope in of_resource.scope_logs:
                self._collector.logs.extend(of_scope.log_records)
        self._collector.exports.put_nowait("logs")
        return logs_service_pb2.ExportLogsServiceResponse()


def attributes(pairs: Any) -> dict[str, Any]:
    """OTLP's list of attributes as a mapping."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")


@asynccontextmanager
async def open_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    server = grpc.aio.server()
    add_trace(_Traces(collector), server)
    add_logs(_Logs(collector), server)
    add_metrics(_Metrics(collector), server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.endpoint = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
