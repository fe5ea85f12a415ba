"""What functions count, beside our own metrics: with the labels of the replica, for each reader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.metrics import NoOpMeter

from millstream.statistics import FunctionSeries, VertexStatistics
from millstream.telemetry.function_metrics import FunctionInstruments
from millstream.telemetry.histograms import Histograms
from tests.unit.telemetry.numbers import vertex
from tests.unit.telemetry.opening import open_telemetry
from tests.unit.telemetry.test_metrics import scrape

SIZES = FunctionSeries("size", "histogram", {}, 5.5, (1.0, 2.0), (1, 0, 2))


async def test_a_scrape_has_what_functions_count(free_port: int) -> None:
    counted = [
        FunctionSeries("seen", "counter", {"who": "ada"}, 3),
        FunctionSeries("seen", "counter", {"who": "bob"}, 4),
        FunctionSeries("level", "gauge", {}, -1.5),
        SIZES,
    ]

    def statistics() -> VertexStatistics:
        return replace(vertex(), functions={"udf": list(counted)})

    async with open_telemetry("flights", "clean", "map", 1, statistics, metrics_port=free_port):
        samples = await scrape(free_port)
        own = {"role": "udf"}
        assert samples["udf_seen_total"] == [({**own, "who": "ada"}, 3), ({**own, "who": "bob"}, 4)]
        assert samples["udf_level"] == [(own, -1.5)]
        assert samples["udf_size_count"] == [(own, 3)]
        assert samples["udf_size_sum"] == [(own, 5.5)]
        assert [value for _, value in samples["udf_size_bucket"]] == [1, 1, 3]
        # Later numbers, and a name that is new.
        counted[:] = [replace(SIZES, value=9.5, counts=(1, 2, 2)), FunctionSeries("new", "counter", {}, 1)]
        samples = await scrape(free_port)
        assert [value for _, value in samples["udf_size_bucket"]] == [1, 3, 5]
        assert samples["udf_size_sum"] == [(own, 9.5)]
        assert samples["udf_new_total"] == [(own, 1)]
        assert "udf_seen_total" not in samples


async def test_a_name_with_two_meanings_is_not_exported(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    functions = {
        "source": [FunctionSeries("seen", "counter", {}, 3)],
        "transformer": [FunctionSeries("seen", "gauge", {}, 4)],
    }

    def statistics() -> VertexStatistics:
        return replace(vertex(), functions=functions)

    async with open_telemetry("flights", "clean", "map", 1, statistics, metrics_port=free_port):
        await scrape(free_port)
        samples = await scrape(free_port)
    assert not [name for name in samples if name.startswith("udf_seen")]
    assert [line for line in caplog.messages if "seen" in line] == [
        "the metric seen is a counter in one function and a gauge in another: from now on, no function exports it"
    ]


def test_a_replica_that_was_opened_again_counts_from_0() -> None:
    reader = Histograms()
    instruments = FunctionInstruments(NoOpMeter("test"), [reader])
    labels = {"vertex": "clean", "replica": "0"}
    seen = FunctionSeries("seen", "counter", {}, 3)
    instruments.update([(labels, {"udf": [SIZES, seen]})])
    # The one before is still known, with its last numbers.
    again = replace(SIZES, value=1.5, counts=(0, 1, 0)), replace(seen, value=1)
    instruments.update([(labels, {"udf": [SIZES, seen]}), (labels, {"udf": list(again)})])
    ((_, observed),) = instruments._histograms.items()
    point = observed.histograms[0].point(1, begin_again=False)
    assert point is not None
    assert (point.bucket_counts, point.sum) == ((1, 1, 2), 7.0)
    assert [one.value for one in instruments._values["udf_seen"]] == [1]
