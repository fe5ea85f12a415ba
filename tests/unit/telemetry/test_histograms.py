"""Histograms among the metrics that OpenTelemetry has collected."""

from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from millstream.telemetry.histograms import SCOPE, HistogramDescription, Histograms


def test_metrics_of_opentelemetry_itself_stay_beside_them() -> None:
    scopes = [ScopeMetrics(InstrumentationScope(name), [], "") for name in ("opentelemetry-sdk", SCOPE, "other")]
    histograms = Histograms()
    histograms.make(HistogramDescription("millstream_wait", "", (1.0,)), {}).observe(0.5)
    for found in (scopes, scopes[::-1], scopes[:1]):
        data = histograms.added_to(MetricsData([ResourceMetrics(Resource.get_empty(), found, "")]))
        (resource,) = data.resource_metrics
        names = {one.scope.name: [metric.name for metric in one.metrics] for one in resource.scope_metrics}
        assert names == {one.scope.name: [] for one in found} | {SCOPE: ["millstream_wait"]}
