"""Metrics: scraped over HTTP and received over OTLP, and their description in the docs."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from millstream import codes
from millstream.statistics import VertexStatistics
from millstream.telemetry.metrics import (
    CLOSE_BOUNDS_S,
    LATENCY_BOUNDS_S,
    LOOP_LAG,
    METRICS,
    PROCESSING_BOUNDS_US,
    MetricKind,
)
from millstream.telemetry.opening import LOOP_LAG_INTERVAL_S
from tests.support.errors import raises
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.telemetry.numbers import FixedClock, vertex
from tests.unit.telemetry.opening import open_telemetry

DOCS = Path(__file__).parents[3] / "docs" / "telemetry.md"


async def get(port: int, path: str) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def scrape(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, without the labels that all have in common."""
    status, text = await get(port, "/metrics")
    assert status == 200
    families: list[Metric] = list(text_string_to_metric_families(text))
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            labels = dict(sample.labels)
            common = [labels.pop(name) for name in ("pipeline", "vertex", "vertex_type", "replica")]
            assert common[:2] + common[3:] == ["flights", "clean", "1"]
            samples.setdefault(sample.name, []).append((labels, sample.value))
    return samples


async def scrape_with_lag(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    """As `scrape`, once the event loop has been looked at."""
    async with asyncio.timeout(10):
        while f"{LOOP_LAG}_count" not in (samples := await scrape(port)):
            pass
    return samples


@pytest.mark.slow
async def test_the_lag_of_the_loop_is_told_by_each_replica(free_port: int) -> None:
    async with open_telemetry("flights", "clean", "map", 1, vertex, metrics_port=free_port):
        await scrape_with_lag(free_port)
        held_until_s = time.monotonic() + LOOP_LAG_INTERVAL_S + 0.25
        while time.monotonic() < held_until_s:
            # Nothing else has a turn.
            pass
        async with asyncio.timeout(10):
            while (await scrape(free_port))[f"{LOOP_LAG}_sum"][0][1] < 0.2:
                pass


async def test_a_scrape_gives_the_statistics(free_port: int) -> None:
    opening = open_telemetry("flights", "clean", "map", 1, vertex, metrics_port=free_port, clock=FixedClock())
    async with opening:
        samples = await scrape(free_port)
    first, second = {"partition_name": "in-clean.0"}, {"partition_name": "in-clean.1"}
    buffer = {"partition_name": "clean-out.0"}
    assert samples["forwarder_read_total"] == [(first, 100), (second, 100)]
    assert samples["forwarder_read_bytes_total"] == [(first, 10_000), (second, 10_000)]
    assert samples["forwarder_write_total"] == [(buffer, 150)]
    assert samples["forwarder_ud_drop_total"] == [(first, 11), (second, 11)]
    assert samples["forwarder_udf_write_total"] == [(first, 160), (second, 160)]
    assert samples["forwarder_drop_total"] == [
        ({**first, "reason": "malformed"}, 5),
        ({**first, "reason": "buffer-full"}, 2),
        ({**first, "reason": "forwarding-rules-not-met"}, 7),
    ]
    assert samples["vertex_pending_messages_raw"] == [(first, 1_000)]
    assert samples["millstream_source_pending_bytes"] == [(first, 9_000)]
    assert samples["millstream_source_pending_versions"] == [(first, 8)]
    assert samples["isb_jetstream_buffer_soft_usage"] == [({"buffer": "clean-out.0"}, 0.25)]
    assert samples["isb_jetstream_buffer_solid_usage"] == [({"buffer": "clean-out.0"}, 0.1)]
    assert samples["millstream_watermark_lag_seconds"] == [(first, 90)]
    assert samples["millstream_lane_ended"] == [(first, 0), (second, 1)]
    assert samples["millstream_sidecar_restarts_total"] == [({"role": "udf"}, 2)]
    assert samples["millstream_sidecar_oldest_call_seconds"] == [({"role": "udf"}, 7)]
    assert samples["millstream_commits_total"] == [({}, 20)]


async def test_what_a_sink_writes_is_counted_by_lane(free_port: int) -> None:
    async with open_telemetry("flights", "clean", "sink", 1, lambda: vertex("sink"), metrics_port=free_port):
        samples = await scrape(free_port)
    first, second = {"partition_name": "in-clean.0"}, {"partition_name": "in-clean.1"}
    assert samples["forwarder_write_total"] == [(first, 71), (second, 71)]
    assert samples["forwarder_fbsink_write_total"] == [(first, 9), (second, 9)]
    assert "forwarder_udf_read_total" not in samples


async def test_times_go_into_buckets(free_port: int) -> None:
    async with open_telemetry("flights", "clean", "sink", 1, lambda: vertex("sink"), metrics_port=free_port) as told:
        told.observe_processing("sink", 0.004)
        told.observe_processing("udf", 0.25)
        told.observe_processing("commit", 0.002)
        told.observe_latency(0.010, 500)
        told.observe_latency(-0.001, 10)
        samples = await scrape(free_port)
    assert samples["forwarder_write_processing_time_sum"] == [({}, 4_000)]
    assert samples["forwarder_udf_processing_time_sum"] == [({}, 250_000)]
    assert samples["millstream_commit_seconds_sum"] == [({}, 0.002)]
    assert samples["millstream_end_to_end_latency_seconds_count"] == [({}, 2)]
    buckets = {labels["le"]: value for labels, value in samples["millstream_end_to_end_latency_seconds_bucket"]}
    assert (buckets["0.001"], buckets["0.0075"], buckets["0.01"], buckets["600.0"]) == (1, 1, 2, 2)
    assert samples["millstream_end_to_end_records_total"] == [({}, 510)]
    assert samples["millstream_end_to_end_record_seconds_total"] == [({}, 5)]


@pytest.mark.slow
async def test_every_metric_of_the_table_is_exported_by_some_vertex_and_no_other(free_port: int) -> None:
    seen: set[str] = set()
    for vertex_type in ("source", "map", "reduce", "sink"):
        statistics = partial(vertex, vertex_type)
        opening = open_telemetry("flights", "clean", vertex_type, 1, statistics, metrics_port=free_port)
        async with opening as told:
            for stage in ("transformer", "udf", "reduce", "sink", "close", "commit"):
                told.observe_processing(stage, 0.1)
            told.observe_latency(0.1, 1)
            for name, samples in (await scrape_with_lag(free_port)).items():
                seen.add(re.sub(r"_(bucket|count|sum)$", "", name))
                table = {metric.name: set(metric.labels) for metric in METRICS}
                if name in table:
                    assert all(set(labels) == table[name] for labels, _ in samples), name
    assert seen == {metric.name for metric in METRICS}


async def test_metrics_reach_a_collector_at_the_end(collector: Collector) -> None:
    async with open_telemetry("flights", "clean", "map", 1, vertex) as told:
        told.observe_processing("udf", 0.25)
    read = collector.metrics["forwarder_read_total"].sum
    assert read.is_monotonic
    assert {attributes(p.attributes)["partition_name"]: p.as_int for p in read.data_points} == {
        "in-clean.0": 100,
        "in-clean.1": 100,
    }
    (times,) = collector.metrics["forwarder_udf_processing_time"].histogram.data_points
    assert tuple(times.explicit_bounds) == PROCESSING_BOUNDS_US
    assert (times.count, times.sum) == (1, 250_000)
    assert collector.resource["service.name"] == "flights-clean"


async def test_a_collector_may_get_only_what_is_new(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "DELTA")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    async with open_telemetry("flights", "clean", "map", 1, vertex) as told:
        for seconds in (0.25, 0.5):
            told.observe_processing("udf", seconds)
            # The first one may have been on its way.
            for _ in range(2):
                assert await collector.exports.get() == "metrics"
    exported = [one.histogram for one in collector.all_metrics if one.name == "forwarder_udf_processing_time"]
    assert {one.aggregation_temporality for one in exported} == {metrics_pb2.AGGREGATION_TEMPORALITY_DELTA}
    first, second = (one.data_points[0] for one in exported)
    assert [(one.count, one.sum, one.min, one.max) for one in (first, second)] == [
        (1, 250_000, 250_000, 250_000),
        (1, 500_000, 500_000, 500_000),
    ]
    assert first.start_time_unix_nano < first.time_unix_nano <= second.start_time_unix_nano


async def test_metrics_reach_a_collector_every_interval(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    async with open_telemetry("flights", "clean", "map", 1, vertex):
        for _ in range(3):
            assert await collector.exports.get() == "metrics"


async def test_statistics_are_taken_on_the_event_loop_once_per_collection(
    collector: Collector, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def statistics() -> VertexStatistics:
        threads.append(threading.current_thread())
        return vertex()

    async with open_telemetry("flights", "clean", "map", 1, statistics, metrics_port=free_port):
        await scrape(free_port)
        assert len(threads) == 1
    assert len(threads) == 2
    assert set(threads) == {threading.main_thread()}


async def test_probes_say_whether_the_process_lives_and_is_ready(free_port: int) -> None:
    reason: str | None = "the broker is away"
    async with open_telemetry("flights", "clean", "map", 1, vertex, metrics_port=free_port, not_ready=lambda: reason):
        assert await get(free_port, "/livez") == (200, "ok\n")
        assert await get(free_port, "/readyz") == (503, "the broker is away\n")
        reason = None
        assert await get(free_port, "/readyz") == (200, "ok\n")
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(free_port, "/livez")


async def test_a_port_that_is_taken_is_said_so(free_port: int) -> None:
    async with open_telemetry("flights", "clean", "map", 1, vertex, metrics_port=free_port):
        with raises(codes.PORT_TAKEN, match=f"127.0.0.1:{free_port}.*--metrics-port"):
            async with open_telemetry("flights", "clean", "map", 2, vertex, metrics_port=free_port):
                pytest.fail("opened")


@pytest.mark.parametrize("bounds", [LATENCY_BOUNDS_S, CLOSE_BOUNDS_S, PROCESSING_BOUNDS_US])
def test_buckets_are_fine_from_a_millisecond_to_ten_minutes(bounds: tuple[float, ...]) -> None:
    assert all(1 < after / before <= 2.5 for before, after in pairwise(bounds))
    unit = 1_000_000 if bounds is PROCESSING_BOUNDS_US else 1
    assert bounds[0] <= 0.001 * unit
    assert bounds[-1] == 600 * unit


def test_how_soon_windows_are_committed_is_told_to_a_fifth() -> None:
    where_it_lies = [bound for bound in CLOSE_BOUNDS_S if 0.05 <= bound <= 1.0]
    assert where_it_lies[0] == 0.05
    assert where_it_lies[-1] == 1.0
    assert all(after / before <= 1.2 for before, after in pairwise(where_it_lies))


def test_the_docs_list_every_metric_as_it_is() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", DOCS.read_text(), re.MULTILINE)
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), description) for name, kind, labels, description in rows
    }
    assert documented == {metric.name: (metric.kind.value, metric.labels, metric.description) for metric in METRICS}
    assert len(rows) == len(METRICS)


def test_counters_end_in_total_and_nothing_else_does() -> None:
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
