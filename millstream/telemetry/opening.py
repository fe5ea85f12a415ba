"""Opens a worker's telemetry according to its environment, and flushes it at the end.

    OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_..., ..._METRICS_...)   enables the export over OTLP/gRPC
    --metrics-port                                                     enables the Prometheus endpoint

All replicas of the process share one endpoint and one export of each signal; each replica has its own labels and spans.
OpenTelemetry itself reads all other standard OTEL_* variables (headers, certificates, sampler, intervals, resource
attributes). Providers belong to the context that opened them; no global provider is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from millstream import codes, limits
from millstream.background import beside
from millstream.clock import Clock, SystemClock
from millstream.endpoints import names_a_user
from millstream.errors import UserError
from millstream.importing import importing
from millstream.statistics import LaneReport, VertexStatistics
from millstream.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from millstream.telemetry.export import OtlpReader, PrometheusReader, PrometheusText
    from millstream.telemetry.log_export import LogExport
    from millstream.telemetry.metrics import Metrics

_log = logging.getLogger(__name__)

_METRIC_INTERVAL_MS = 60_000.0
"""Default of OTEL_METRIC_EXPORT_INTERVAL in OpenTelemetry's specification."""
LOOP_LAG_INTERVAL_S = 0.5
"""Time between two samples of the event loop's lag: each wakes up the process, and counts for every replica in it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of one replica in telemetry: labels of its metrics, attributes of its spans."""

    pipeline: str
    vertex: str
    vertex_type: str
    replica: int
    reports: frozenset[LaneReport] = frozenset()
    """What its lanes report in addition to what all lanes report."""

    @property
    def name(self) -> str:
        return f"{self.vertex}-{self.replica}"

    def labels(self) -> dict[str, str]:
        return {
            "pipeline": self.pipeline,
            "vertex": self.vertex,
            "vertex_type": self.vertex_type,
            "replica": str(self.replica),
        }

    def attributes(self) -> dict[str, str]:
        return {f"millstream.{name}": value for name, value in self.labels().items()}


def _resource(identities: Sequence[Identity], environment: Mapping[str, str]) -> Resource:
    """The resource for the telemetry of these replicas, named after the vertex of a single replica, otherwise after the
    pipeline."""
    from opentelemetry.sdk.resources import Resource

    first = identities[0]
    alone = len(identities) == 1
    own = {
        "service.namespace": first.pipeline,
        "service.instance.id": ",".join(identity.name for identity in identities),
    }
    if "OTEL_SERVICE_NAME" not in environment:
        own["service.name"] = f"{first.pipeline}-{first.vertex}" if alone else first.pipeline
    return Resource.create({**own, **(first.attributes() if alone else {"millstream.pipeline": first.pipeline})})


class ProcessTelemetry:
    """The telemetry of one process. Made by `open_telemetry`."""

    def __init__(self, spans: BatchSpanProcessor | None, metrics: Metrics | None) -> None:
        self._spans = spans
        self._metrics = metrics

    @contextmanager
    def replica(self, identity: Identity, statistics: Callable[[], VertexStatistics]) -> Iterator[Telemetry]:
        """The telemetry of a replica, until the context ends. `statistics` is called on the event loop, once per
        collection."""
        tracing = None
        if self._spans is not None:
            from millstream.telemetry.tracing import make_tracing

            # Each replica has its own provider, because its spans belong to a service named after the vertex.
            resource = _resource([identity], os.environ)
            tracing = make_tracing(self._spans, resource, identity.attributes(), os.environ)
        if self._metrics is None:
            yield Telemetry(tracing, None)
            return
        with self._metrics.replica(statistics, identity.labels(), identity.reports) as metrics:
            yield Telemetry(tracing, metrics)


@asynccontextmanager
async def open_telemetry(
    identities: Sequence[Identity],
    *,
    metrics_port: int = 0,
    metrics_host: str = "127.0.0.1",
    not_ready: Callable[[], str | None] = lambda: None,
    clock: Clock | None = None,
) -> AsyncIterator[ProcessTelemetry]:
    """The telemetry of a worker, until the context ends. Then it sends the remaining data, for a few seconds at most.

    `identities`: the replicas that the worker runs, at least one. `metrics_port` 0: no endpoint. `not_ready` returns
    the reason with which /readyz answers 503; None when the worker is ready. Raises `UserError` for an export that is
    not supported and `InfrastructureError` for a port that is in use.
    """
    environment = os.environ
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        spans = None
        if _exports("TRACES", environment):
            spans = await importing(_span_processor, environment)
            stack.push_async_callback(run_bounded, spans.shutdown)
        if _exports("LOGS", environment):
            export = await importing(_log_export, identities, environment)
            stack.push_async_callback(run_bounded, export.shut_down)
            logging.getLogger().addHandler(export)
            stack.callback(logging.getLogger().removeHandler, export)
        metrics = None
        if metrics_port or _exports("METRICS", environment):
            metering = await importing(_metering, identities, environment, clock, serves=bool(metrics_port))
            metrics = metering.metrics
            metrics.register()
            stack.callback(metering.provider.shutdown)
            await stack.enter_async_context(
                beside(measure_loop_lag(metrics.observe_loop_lag, clock), "lag of the event loop")
            )
            if metering.otlp is not None:
                await stack.enter_async_context(_open_export(metering.otlp, metrics, _interval_s(environment)))
            if metering.prometheus is not None:
                text = partial(metering.prometheus.text, metrics)
                await stack.enter_async_context(
                    metering.open_endpoint(metrics_host, metrics_port, text, not_ready, clock)
                )
        yield ProcessTelemetry(spans, metrics)


def _log_export(identities: Sequence[Identity], environment: Mapping[str, str]) -> LogExport:
    from millstream.telemetry.log_export import LogExport

    return LogExport(_resource(identities, environment), _timeout_s("LOGS", environment))


def _span_processor(environment: Mapping[str, str]) -> BatchSpanProcessor:
    """The processor that sends the spans of all replicas."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter(timeout=_timeout_s("TRACES", environment)))


class _Metering(NamedTuple):
    """The instruments of a process, and their readers."""

    provider: MeterProvider
    metrics: Metrics
    prometheus: PrometheusText | None
    otlp: OtlpReader | None
    open_endpoint: Callable[..., AbstractAsyncContextManager[None]]


def _metering(
    identities: Sequence[Identity], environment: Mapping[str, str], clock: Clock, *, serves: bool
) -> _Metering:
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider

    from millstream.telemetry.endpoint import open_endpoint
    from millstream.telemetry.export import PrometheusText, make_otlp_reader
    from millstream.telemetry.histograms import SCOPE
    from millstream.telemetry.metrics import Metrics

    prometheus = PrometheusText() if serves else None
    otlp: OtlpReader | None = None
    readers: list[PrometheusReader | OtlpReader] = [] if prometheus is None else [prometheus.reader]
    if _exports("METRICS", environment):
        otlp = make_otlp_reader(_timeout_s("METRICS", environment))
        readers.append(otlp)
    provider = MeterProvider(
        readers,
        _resource(identities, environment),
        # Exemplars would take as long as the rest of an observation.
        exemplar_filter=AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    )
    metrics = Metrics(provider.get_meter(SCOPE), clock, [reader.histograms for reader in readers])
    return _Metering(provider, metrics, prometheus, otlp, open_endpoint)


async def measure_loop_lag(observe: Callable[[float], None], clock: Clock) -> None:
    """Measures how late the event loop of this process is: how long a task that is ready waits for its turn.

    Passes the lag in seconds to `observe`, for every `LOOP_LAG_INTERVAL_S` of time, until cancelled. Replicas that
    share a worker share its loop, so a replica that keeps the loop busy delays the others.

    While the loop is blocked, no samples are taken. So a long lag is followed by the samples that are missing: two
    seconds without a turn count as four samples, as they would for four events that became ready in that time.
    """
    while True:
        due_s = clock.monotonic_s() + LOOP_LAG_INTERVAL_S
        await asyncio.sleep(LOOP_LAG_INTERVAL_S)
        lag_s = max(0.0, clock.monotonic_s() - due_s)
        observe(lag_s)
        while (lag_s := lag_s - LOOP_LAG_INTERVAL_S) > 0:
            observe(lag_s)


@asynccontextmanager
async def _open_export(otlp: OtlpReader, metrics: Metrics, interval_s: float) -> AsyncIterator[None]:
    """Sends the metrics at every interval, and once more at the end."""

    async def export() -> None:
        # The statistics belong to the event loop; only sending, which may block, runs in a thread.
        data = otlp.take(metrics)
        if data is not None:
            await run_bounded(partial(otlp.send, data))

    async def export_for_ever() -> None:
        while True:
            await asyncio.sleep(interval_s)
            await export()

    try:
        async with beside(export_for_ever(), "export of metrics"):
            yield
    finally:
        await export()


async def run_bounded(call: Callable[[], object]) -> None:
    """Runs a call that may block in a thread of its own, and waits for it until the limit for telemetry."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            call()
        finally:
            # The loop may be closed before the call ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

    # A daemon thread: a collector that does not accept data must not prevent the process from ending.
    threading.Thread(target=run, name="telemetry", daemon=True).start()
    try:
        async with asyncio.timeout(limits.TELEMETRY_FLUSH_TIMEOUT_S):
            await done.wait()
    except TimeoutError:
        _log.warning("the collector of telemetry did not take it within %g s", limits.TELEMETRY_FLUSH_TIMEOUT_S)


def _exports(signal: str, environment: Mapping[str, str]) -> bool:
    """Whether traces, metrics or logs go to a collector."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if disabled or environment.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none":
        return False
    endpoint = _setting("ENDPOINT", signal, environment)
    if not endpoint:
        return False
    if names_a_user(endpoint):
        raise UserError(
            codes.TELEMETRY_SETTINGS,
            f"OTEL_EXPORTER_OTLP_ENDPOINT (or that of {signal.lower()}) has a user or a password, which an export over "
            "gRPC does not send, and which its messages would show: put credentials into OTEL_EXPORTER_OTLP_HEADERS, "
            "such as authorization=Basic%20...",
        )
    protocol = _setting("PROTOCOL", signal, environment)
    if protocol not in ("", "grpc"):
        raise UserError(
            codes.TELEMETRY_SETTINGS,
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, and Millstream exports over grpc only; "
            "leave it out, and point OTEL_EXPORTER_OTLP_ENDPOINT at the collector's gRPC port (usually 4317)",
        )
    return True


def _setting(name: str, signal: str, environment: Mapping[str, str]) -> str:
    return environment.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}") or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")


def _timeout_s(signal: str, environment: Mapping[str, str]) -> float | None:
    """Our timeout; None if the environment sets one, because the exporter reads that itself."""
    return None if _setting("TIMEOUT", signal, environment) else limits.TELEMETRY_FLUSH_TIMEOUT_S


def _interval_s(environment: Mapping[str, str]) -> float:
    try:
        interval_ms = float(environment.get("OTEL_METRIC_EXPORT_INTERVAL", _METRIC_INTERVAL_MS))
    except ValueError:
        interval_ms = _METRIC_INTERVAL_MS
    return (interval_ms if interval_ms > 0 else _METRIC_INTERVAL_MS) / 1000
