"""What a function counts: names, labels, limits, threads; and what the test kit gives of it."""

from __future__ import annotations

import asyncio
import logging
import math
import threading

import pytest

import millstream_udf as udf
from millstream_udf import checking, metrics
from millstream_udf.defining import define
from millstream_udf.metrics import NAMES_MAX, SERIES_MAX, Counter, Gauge, Histogram, Registry, gauge
from millstream_udf.metrics_stream import MetricsSender
from millstream_udf.testing import Observed, given, run
from millstream_udf.wire.udf.v1 import udf_pb2


def taken(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(one.name, tuple(one.labels.items())): one.value for one in registry.take()}


def test_a_collection_has_what_was_added_since_the_last_one() -> None:
    registry = Registry()
    seen = registry.series(Counter, "seen", {"who": "ada", "n": 7})
    assert registry.series(Counter, "seen", {"n": 7, "who": "ada"}) is seen
    seen.add()
    seen.add(2.5)
    level = registry.series(Gauge, "level", None)
    level.set(3)
    level.set(-1)
    sizes = registry.series(Histogram, "sizes", None, (1, 10))
    for value in (0, 1, 1.5, 11):
        sizes.record(value)
    first = {one.name: one for one in registry.take()}
    assert (first["seen"].value, first["seen"].labels) == (3.5, {"n": "7", "who": "ada"})
    assert first["level"].value == -1
    assert (first["sizes"].value, first["sizes"].counts, first["sizes"].bounds) == (13.5, [2, 1, 1], (1.0, 10.0))
    assert registry.take() == []
    seen.add()
    assert taken(registry) == {("seen", (("n", "7"), ("who", "ada"))): 1}


@pytest.mark.parametrize(
    ("kind", "name", "labels", "bounds", "says"),
    [
        (Counter, "with-dash", None, None, "'with-dash' is not the name of a metric"),
        (Counter, "a", {"1": "x"}, None, "'1' is not the name of a label"),
        # OpenTelemetry takes it for the same name as `orders`.
        (Counter, "Orders", None, None, "small letters"),
        (Counter, "a", {"vertex": "x"}, None, "cannot have the label vertex"),
        (Counter, "a", dict.fromkeys("abcdefghijk", 1), None, "11 labels; at most 10"),
        (Gauge, "known", {"b": 1}, None, "known is a counter elsewhere"),
        (Counter, "known", {"c": 1}, None, "has the labels c, and b elsewhere"),
        (Histogram, "h", None, (2, 1), "rising numbers"),
        (Histogram, "h", None, (1, math.inf), "rising numbers"),
        (Histogram, "sizes", None, (1, 2), "has other bounds elsewhere"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    kind: type, name: str, labels: dict[str, object] | None, bounds: tuple[float, ...] | None, says: str
) -> None:
    registry = Registry()
    registry.series(Counter, "known", {"b": 1})
    registry.series(Histogram, "sizes", None)
    with pytest.raises(ValueError, match=says):
        registry.series(kind, name, labels, bounds)


def test_a_counter_only_grows_and_a_histogram_takes_numbers() -> None:
    registry = Registry()
    with pytest.raises(ValueError, match="a counter only grows"):
        registry.series(Counter, "a", None).add(-1)
    with pytest.raises(ValueError, match="not a finite number"):
        registry.series(Histogram, "b", None).record(math.nan)
    assert registry.take() == []


def test_series_beyond_the_limit_are_counted_together_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    with caplog.at_level(logging.WARNING):
        for number in range(SERIES_MAX + 5):
            registry.series(Counter, "orders", {"id": number}).add()
        registry.series(Counter, "other", None).add()
    found = taken(registry)
    assert len(found) == SERIES_MAX + 2
    assert found[("orders", (("overflow", "true"),))] == 5
    assert found[("other", (("overflow", "true"),))] == 1
    (line,) = caplog.messages
    assert f"at most {SERIES_MAX} series of metrics: what is new, such as orders with" in line
    # Those that were there before still are.
    registry.series(Counter, "orders", {"id": 1}).add()
    assert taken(registry) == {("orders", (("id", "1"),)): 1}


def test_names_beyond_the_limit_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    for number in range(NAMES_MAX + 3):
        registry.series(Counter, f"n{number}", None).add()
    assert len(registry.take()) == NAMES_MAX
    assert len(caplog.messages) == 1


@pytest.mark.slow
def test_threads_count_together() -> None:
    registry = Registry()

    def work() -> None:
        for _ in range(20_000):
            registry.series(Counter, "seen", {"who": "all"}).add()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken(registry) == {("seen", (("who", "all"),)): 80_000}


async def test_a_stream_has_the_first_change_at_once_and_the_last_one_at_the_end() -> None:
    registry = Registry()
    seen = registry.series(Counter, "seen", None)
    sender = MetricsSender(registry)
    stream = sender.messages()

    async def value() -> float:
        async with asyncio.timeout(10):
            (series,) = udf_pb2.MetricsResponse.FromString(await anext(stream)).series
        return series.value

    await asyncio.to_thread(seen.add, 2)
    assert await value() == 2
    seen.add(3)
    sender.end()
    assert await value() == 3
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@udf.map
def counted(record: udf.Record[dict[str, float]]) -> None:
    udf.metrics.counter("orders", {"large": record.value["price"] > 10}).add()
    metrics.histogram("price").record(record.value["price"])
    metrics.gauge("last_price").set(record.value["price"])


def test_a_test_sees_what_its_function_counts() -> None:
    with given() as both:
        first = run(counted, [{"price": 5.0}, {"price": 20.0}, {"price": 30.0}]).metrics
        assert first == {
            'orders{large="False"}': 1,
            'orders{large="True"}': 2,
            "price": Observed(3, 55.0),
            "last_price": 30.0,
        }
        assert run(counted, [{"price": 1.0}]).metrics['orders{large="False"}'] == 1
    assert both['orders{large="False"}'] == 2
    assert both["price"] == Observed(4, 56.0)


def test_what_a_record_has_as_a_label_can_always_be_sent() -> None:
    registry = Registry()
    registry.series(Counter, "seen", {"user": "\ud800x"}).add()
    (reading,) = registry.take()
    assert {name: value.encode() for name, value in reading.labels.items()} == {"user": b"?x"}


def test_a_run_keeps_what_is_given_around_it() -> None:
    @udf.map
    def both(record: udf.Record) -> str:
        return f"{udf.config()['a']} {udf.secret('token')}"

    with given(config={"a": 1}, secrets={"token": "t"}):
        assert run(both, [b"x"], config={"a": 2}).values == [b"2 t"]
        assert run(both, [b"x"], secrets={"token": "u"}).values == [b"1 u"]


def test_whether_a_function_has_metrics_is_seen_without_running_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REGISTRY", metrics.Registry())

    class Inside:
        def process(self, value: bytes) -> None:
            def later() -> None:
                metrics.counter("bytes").add(len(value))

            later()

    def directly(value: bytes) -> None:
        gauge("size").set(len(value))

    def without(value: bytes) -> bytes:
        return value.upper()

    found = [checking._counts(define(one, "f")) for one in (Inside, directly, without, len)]
    assert found == [True, True, False, False]
    metrics.counter("made_when_it_was_imported")
    assert checking._counts(define(without, "f"))
