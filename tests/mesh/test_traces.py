"""Traces and latencies of whole pipelines, as a collector receives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.clock import SystemClock
from tests.mesh.reducing import FUNCTIONS, Event, reduce, source, write_events
from tests.support.pipelines import open_pipeline
from tests.unit.telemetry.collector import Collector, attributes, open_collector

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1 import trace_pb2

    from tests.mesh.conftest import PipelineFiles
    from tests.spark_driver import SparkDriver


def path_of(collector: Collector, span: trace_pb2.Span) -> list[str]:
    """Names of a span and of those above it, up to the root."""
    by_id = {one.span_id: one for one in collector.spans}
    names = [span.name]
    while span.parent_span_id:
        span = by_id[span.parent_span_id]
        names.append(span.name)
    return names


async def test_a_trace_and_the_latency_go_through_a_reduce_to_the_sink(
    files: PipelineFiles, tmp_path: Path, spark: SparkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reduces.py").write_text(FUNCTIONS)
    write_events(tmp_path / "in.jsonl", [Event(n, float(n), "k") for n in range(200)])
    path = files.write(
        source() + reduce("{fixed: {length: 60s}}") + files.file_sink("out"),
        ["in -> sum", "sum -> out"],
    )
    async with open_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        # On a busy machine, an answer may take longer than the 10 s of the default, and what is not sent is given up.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
        begun_us = SystemClock().now_us()
        async with open_pipeline(path, tmp_path / "broker", spark=spark.address) as run:
            await run.run()
        took_s = (SystemClock().now_us() - begun_us) / 1_000_000
    above = ["millstream.reduce.hand_over", "millstream.source.read"]
    assert path_of(collector, collector.one("millstream.sink.write")) == ["millstream.sink.write", *above]
    commits = [path_of(collector, span) for span in collector.spans if span.name == "millstream.commit"]
    assert ["millstream.commit", *above] in commits
    hand_over = collector.one("millstream.reduce.hand_over")
    (tag,) = hand_over_tags(hand_over)
    assert tag.startswith("millstream-")
    # Results entered the pipeline with the records they are of, so the job is part of their latency.
    job_ns = hand_over.end_time_unix_nano - hand_over.start_time_unix_nano
    (point,) = collector.metrics["millstream_end_to_end_latency_seconds"].histogram.data_points
    assert attributes(point.attributes)["vertex"] == "out"
    assert job_ns / 1e9 <= point.max <= took_s


SECRET = "4929-1337"
REFUSING = """
def refuse(value: bytes) -> bytes:
    if value.endswith(b"7"):
        raise ValueError("I do not take it")
    return value
"""


async def test_spans_and_metrics_hold_nothing_of_a_record(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    (tmp_path / "in.txt").write_text("".join(f"{SECRET}-{number}\n" for number in range(20)))
    path = files.write(
        """
- name: in
  source: {file: {paths: [in.txt]}}
- name: map
  udf: {python: "refusing.py:refuse", retryStrategy: {onFailure: deadLetter, backoff: {steps: 1}}}
"""
        + files.file_sink("out").replace("jsonl", "lines")
        + files.file_sink("bad"),
        ["in -> map", "map -> out", "{from: map, to: bad, kind: deadLetter}"],
    )
    async with open_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        # On a busy machine, an answer may take longer than the 10 s of the default, and what is not sent is given up.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
        async with open_pipeline(path, tmp_path / "broker") as run:
            await run.run()
    assert SECRET in str(files.envelopes("bad")[0])
    assert {"millstream.sink.write", "millstream.source.read"} <= set(collector.names())
    exported = [message.SerializeToString() for message in (*collector.spans, *collector.all_metrics)]
    assert not [message for message in exported if SECRET.encode() in message]


def hand_over_tags(span: trace_pb2.Span) -> list[str]:
    (tags,) = [pair.value.array_value.values for pair in span.attributes if pair.key == "millstream.spark.job_tags"]
    return [tag.string_value for tag in tags]
