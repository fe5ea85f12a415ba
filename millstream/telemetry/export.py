"""The two ways in which metrics leave a process: pushed over OTLP, or read as Prometheus text.

Above it: `open_telemetry`. Below it: OpenTelemetry's exporters. Both collect on the event loop, from one snapshot of
the statistics, so that no other thread reads the state of running lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, MetricsData
from prometheus_client import CollectorRegistry, generate_latest

from millstream.telemetry.histograms import Histograms
from millstream.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter


class PrometheusReader(PrometheusMetricReader):
    """OpenTelemetry's reader, which also gets the histograms."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.histograms = Histograms()
        super().__init__(disable_target_info=True, scope_info_enabled=False, registry=registry)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        super()._receive_metrics(self.histograms.added_to(metrics_data), timeout_millis, **kwargs)


class PrometheusText:
    """Metrics in Prometheus's text format, from a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reader = PrometheusReader(self._registry)

    def text(self, metrics: Metrics) -> bytes:
        """The current metrics."""
        metrics.refresh()
        return generate_latest(self._registry)


class OtlpReader(MetricReader):
    """Collects on request, and sends in a separate step."""

    def __init__(self, exporter: OTLPMetricExporter) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,
            preferred_aggregation=exporter._preferred_aggregation,
        )
        self._exporter = exporter
        preferred = (exporter._preferred_temporality or {}).get(Histogram, AggregationTemporality.CUMULATIVE)
        self.histograms = Histograms(preferred)
        self._collected: MetricsData | None = None

    def take(self, metrics: Metrics) -> MetricsData | None:
        """The current metrics; None if there are none."""
        metrics.refresh()
        self.collect()
        data, self._collected = self._collected, None
        return data

    def send(self, data: MetricsData) -> None:
        """Sends the metrics to the collector. Blocks until it accepts them, or the exporter gives up and logs that."""
        self._exporter.export(data)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        self._collected = self.histograms.added_to(metrics_data)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis)


def make_otlp_reader(timeout_s: float | None) -> OtlpReader:
    """A reader that sends to where OTEL_EXPORTER_OTLP_* says. `timeout_s` None: the timeout in the environment."""
    # A process that is only read from needs no exporter, which takes 4 MiB.
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return OtlpReader(OTLPMetricExporter(timeout=timeout_s))
