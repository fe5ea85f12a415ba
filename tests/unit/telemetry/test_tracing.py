"""Traces, as a real collector receives them over OTLP."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import StringIO

import opentelemetry.metrics
import opentelemetry.trace
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream import codes, limits
from millstream.frame import Frame, frame_of_records
from millstream.record import Record
from millstream.telemetry.logging import configure_logging
from millstream.telemetry.telemetry import Telemetry
from millstream.telemetry.tracing import contexts_of, parse_traceparent
from millstream.udf.environment import inherited
from tests.support.errors import raises
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.telemetry.numbers import vertex
from tests.unit.telemetry.opening import open_telemetry

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def traceparent(number: int, *, sampled: bool = True) -> str:
    return f"00-{number:032x}-{number:016x}-{'01' if sampled else '00'}"


def frame(*parents: str) -> Frame:
    """A record per traceparent; an empty one is a record without."""
    records = [Record(b"x", 0, headers={"traceparent": parent.encode()} if parent else {}) for parent in parents]
    return frame_of_records(records, ingest_time_us=0)


async def test_a_frame_is_followed_through_its_stages(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    async with open_telemetry("flights", "in", "source", 0, lambda: vertex("source")) as source:
        with source.source_span(frame("", ""), lane="source.0") as reading:
            assert parse_traceparent(reading.traceparent) is not None
    async with open_telemetry("flights", "clean", "map", 1, vertex) as clean:
        with (
            clean.span("millstream.map", parent=reading.traceparent, lane="in-clean.0", records=2, sequence=7) as outer,
            clean.span("millstream.commit", parent=outer.traceparent) as inner,
        ):
            assert inner.traceparent != outer.traceparent
    read, mapped, committed = (
        collector.span(name) for name in ("millstream.source.read", "millstream.map", "millstream.commit")
    )
    assert read.parent_span_id == b""
    assert mapped.parent_span_id == read.span_id
    assert committed.parent_span_id == mapped.span_id
    assert len({span.trace_id for span in (read, mapped, committed)}) == 1
    assert attributes(mapped.attributes) == {
        "millstream.pipeline": "flights",
        "millstream.vertex": "clean",
        "millstream.vertex_type": "map",
        "millstream.replica": "1",
        "millstream.lane": "in-clean.0",
        "millstream.records": 2,
        "millstream.sequence": 7,
    }
    assert collector.resource["service.name"] == "flights-clean"
    assert collector.resource["service.instance.id"] == "clean-1"


async def test_the_contexts_that_records_carry_are_linked_once_each(collector: Collector) -> None:
    parents = [traceparent(1), traceparent(2), traceparent(1), "", "rubbish", traceparent(3, sampled=False)]
    async with open_telemetry("flights", "in", "source", 0, vertex) as telemetry:
        with telemetry.source_span(frame(*parents)):
            pass
    read = collector.span("millstream.source.read")
    assert sorted(int.from_bytes(link.trace_id) for link in read.links) == [1, 2, 3]
    assert int.from_bytes(read.trace_id) not in (1, 2, 3)


async def test_a_span_below_one_trace_is_linked_to_others_and_takes_attributes(collector: Collector) -> None:
    async with open_telemetry("flights", "sum", "reduce", 0, vertex) as telemetry:
        links = (traceparent(2), "", "no traceparent", traceparent(3))
        with telemetry.span("millstream.reduce.hand_over", parent=traceparent(1), links=links) as span:
            span.tell("millstream.spark.job_tags", ["a", "b"])
    sent = collector.span("millstream.reduce.hand_over")
    assert sent.trace_id == (1).to_bytes(16)
    assert [link.trace_id for link in sent.links] == [(2).to_bytes(16), (3).to_bytes(16)]
    (tags,) = [pair.value.array_value for pair in sent.attributes if pair.key == "millstream.spark.job_tags"]
    assert [tag.string_value for tag in tags.values] == ["a", "b"]


async def test_a_record_that_is_traced_elsewhere_is_traced_here_whatever_the_ratio(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    async with open_telemetry("flights", "in", "source", 0, vertex) as telemetry:
        for parents in ((traceparent(1),), (traceparent(2, sampled=False),), ("",)):
            with telemetry.source_span(frame(*parents)) as span:
                assert bool(span.traceparent) == (parents == (traceparent(1),))
    assert len(collector.spans) == 1


def test_links_are_bounded_and_sampled_ones_come_first() -> None:
    parents = [traceparent(n, sampled=n > 900) for n in range(1, 1001)]
    contexts = list(contexts_of(frame(*parents)))
    assert len(contexts) == limits.SPAN_LINKS_MAX
    assert all(context.trace_flags.sampled for context in contexts)


async def test_a_frame_that_is_not_sampled_leaves_no_trace(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    async with open_telemetry("flights", "clean", "map", 0, vertex) as telemetry:
        with telemetry.span("millstream.map", parent="") as span:
            assert span.traceparent == ""
        with telemetry.span("millstream.sink.write", parent=PARENT):
            pass
    assert collector.names() == ["millstream.sink.write"]


async def test_an_error_is_part_of_the_span_and_a_cancellation_is_not(collector: Collector) -> None:
    async with open_telemetry("flights", "clean", "map", 0, vertex) as telemetry:
        with pytest.raises(ValueError, match="bad"), telemetry.span("failed", parent=PARENT):
            raise ValueError("bad record")
        with pytest.raises(asyncio.CancelledError), telemetry.span("cancelled", parent=PARENT):
            raise asyncio.CancelledError
    failed, cancelled = collector.span("failed"), collector.span("cancelled")
    assert (failed.status.code, failed.status.message) == (2, "ValueError: bad record")
    assert failed.events[0].name == "exception"
    assert (cancelled.status.code, len(cancelled.events)) == (0, 0)


async def test_what_is_logged_inside_a_span_carries_its_trace_id(collector: Collector) -> None:
    root = logging.getLogger()
    before, level, stream = list(root.handlers), root.level, StringIO()
    configure_logging("flights", "clean", stream=stream, human=False)
    try:
        async with open_telemetry("flights", "clean", "map", 0, vertex) as telemetry:
            with telemetry.span("millstream.map", parent=PARENT):
                logging.getLogger("test").info("inside")
            logging.getLogger("test").info("outside")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    lines = {line["message"]: line for line in map(json.loads, stream.getvalue().splitlines())}
    assert lines["inside"]["trace_id"] == "ab" * 16
    assert "trace_id" not in lines["outside"]


def test_untraced_processes_pass_contexts_on_and_lose_no_time() -> None:
    telemetry = Telemetry()
    with telemetry.span("millstream.map", parent=PARENT) as span:
        assert span.traceparent == PARENT
    with telemetry.source_span(frame(PARENT)) as span:
        assert span.traceparent == ""
    nothing = nullcontext()
    # About as long as a call that does nothing; a real span takes a hundred times as long.
    pairs = [(_time_of(telemetry.span), _time_of(lambda name, **attributes: nothing)) for _ in range(50)]
    untraced_s, nothing_s = map(min, zip(*pairs, strict=True))
    assert untraced_s < 4 * nothing_s


def _time_of(span: Callable[..., AbstractContextManager[object]]) -> float:
    started = time.perf_counter()
    for _ in range(1000):
        with span("millstream.map", parent="", lane="in-clean.0", records=1, sequence=1):
            pass
    return time.perf_counter() - started


@pytest.mark.process
def test_a_process_that_exports_nothing_does_not_import_opentelemetry() -> None:
    program = """
import asyncio, sys
from millstream.telemetry.opening import Identity, open_telemetry
async def run():
    identity = Identity("p", "v", "map", 0)
    async with open_telemetry([identity]) as process:
        with process.replica(identity, lambda: None) as telemetry, telemetry.span("x", parent=""):
            telemetry.observe_processing("udf", 0.1)
asyncio.run(run())
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


async def test_nothing_global_is_set(collector: Collector, free_port: int) -> None:
    async with open_telemetry("flights", "clean", "map", 0, vertex, metrics_port=free_port):
        assert type(opentelemetry.trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")
        assert type(opentelemetry.metrics.get_meter_provider()).__module__.startswith("opentelemetry.metrics")


@pytest.mark.slow
async def test_a_collector_that_hangs_delays_the_end_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TELEMETRY_FLUSH_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(5):
            async with open_telemetry("flights", "clean", "map", 0, vertex) as telemetry:
                with telemetry.span("millstream.map", parent=PARENT):
                    pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROTOCOL", "http/protobuf"),
        ("ENDPOINT", "http://otel:SECRET@127.0.0.1:4317"),
        ("ENDPOINT", "SECRET@127.0.0.1:4317"),
        ("TRACES_ENDPOINT", "https://:SECRET@127.0.0.1/x"),
        ("LOGS_ENDPOINT", "http://SECRET@127.0.0.1"),
    ],
)
async def test_an_export_that_cannot_be_done_is_refused_at_the_start(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with raises(codes.TELEMETRY_SETTINGS) as refused:
        async with open_telemetry("flights", "clean", "map", 0, vertex):
            pytest.fail("opened")
    assert "SECRET" not in str(refused.value)
    # Nor does a function get it, where nothing is exported.
    assert "SECRET" not in str(inherited(os.environ))


def test_an_address_without_credentials_and_no_header_is_passed_to_functions() -> None:
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317/a@b", "OTEL_SERVICE_NAME": "a@b"}
    secrets = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=x", "OTEL_EXPORTER_JAEGER_PASSWORD": "x"}
    assert inherited({**settings, **secrets, "AWS_SECRET_ACCESS_KEY": "x"}) == settings


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
async def test_tracing_can_be_switched_off(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    async with open_telemetry("flights", "clean", "map", 0, vertex) as telemetry:
        with telemetry.span("millstream.map", parent=PARENT) as span:
            assert span.traceparent == PARENT
    assert collector.spans == []


@given(st.text(max_size=60) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True))
def test_a_traceparent_is_read_whole_or_not_at_all(text: str) -> None:
    context = parse_traceparent(text)
    if context is not None:
        assert text[3:].startswith(f"{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}")


@pytest.mark.parametrize(
    "text", ["", "00", "ff" + PARENT[2:], "00-" + "0" * 32 + "-" + "cd" * 8 + "-01", PARENT.upper(), PARENT + "x"]
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None
