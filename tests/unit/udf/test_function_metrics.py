"""What a vertex exports of what its function counts: totals over restarts, and nothing that a function cannot count."""

from __future__ import annotations

import math
from typing import Any

import pytest

from millstream.statistics import FunctionSeries
from millstream.udf.metrics import FunctionMetrics
from millstream.udf.native.metrics_stream import BYTES_MAX, PARTS_MAX, series_of
from millstream_udf.metrics import NAMES_MAX, SERIES_MAX
from millstream_udf.wire.udf.v1 import udf_pb2


def counter(name: str = "seen", value: float = 1, **labels: str) -> FunctionSeries:
    return FunctionSeries(name, "counter", labels, value)


def test_messages_add_up() -> None:
    metrics = FunctionMetrics()
    assert metrics.snapshot() == ()
    histogram = FunctionSeries("size", "histogram", {}, 5.0, (1.0, 2.0), (1, 0, 2))
    metrics.add([counter(value=2, who="ada"), FunctionSeries("level", "gauge", {}, 3), histogram])
    metrics.add([counter(value=3, who="ada"), FunctionSeries("level", "gauge", {}, 1), histogram])
    assert list(metrics.snapshot()) == [
        counter(value=5, who="ada"),
        FunctionSeries("level", "gauge", {}, 1),
        FunctionSeries("size", "histogram", {}, 10.0, (1.0, 2.0), (2, 0, 4)),
    ]
    assert metrics.snapshot() is metrics.snapshot()


def test_a_function_cannot_make_it_larger_than_stated() -> None:
    metrics = FunctionMetrics()
    for life in range(3):
        metrics.add([counter(id=f"{life}/{number}") for number in range(SERIES_MAX)])
    found = metrics.snapshot()
    assert len(found) == SERIES_MAX + 1
    assert found[-1] == FunctionSeries("seen", "counter", {"overflow": "true"}, 2 * SERIES_MAX)
    metrics.add([counter(f"n{number}") for number in range(NAMES_MAX + 5)])
    assert len({one.name for one in metrics.snapshot()}) == NAMES_MAX


def test_a_name_keeps_its_meaning() -> None:
    metrics = FunctionMetrics()
    metrics.add([counter()])
    metrics.add([FunctionSeries("seen", "gauge", {}, 7)])
    assert list(metrics.snapshot()) == [counter()]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "with-dash"},
        {"kind": ""},
        {"value": -1.0},
        {"value": math.inf},
        {"labels": {"vertex": "x"}},
        {"labels": {"a": "x" * 201}},
        {"labels": dict.fromkeys("abcdefghijk", "x")},
        {"bounds": (1.0,), "counts": (1, 2)},
        {"kind": "histogram", "bounds": (2.0, 1.0), "counts": (0, 0, 0)},
        {"kind": "histogram", "bounds": (1.0,), "counts": (0,)},
    ],
)
def test_what_a_function_cannot_report_is_refused_and_nothing_of_it_is_added(fields: dict[str, Any]) -> None:
    metrics = FunctionMetrics()
    wrong = FunctionSeries(**{"name": "seen", "kind": "counter", "labels": {}, "value": 1.0, **fields})
    with pytest.raises(ValueError, match=r"metric|counter|histogram"):
        metrics.add([counter("right"), wrong])
    assert metrics.snapshot() == ()


def message(series: int) -> bytes:
    one = udf_pb2.Series(name="seen", kind=udf_pb2.Series.KIND_COUNTER, value=1, labels={"who": "x"})
    return udf_pb2.MetricsResponse(series=[one] * series).SerializeToString()


def test_a_message_is_bounded_before_it_is_decoded() -> None:
    assert list(series_of(message(2))) == [counter(who="x")] * 2
    with pytest.raises(ValueError, match="2000 series"):
        series_of(message(2000))
    with pytest.raises(ValueError, match="more fields"):
        series_of(b"\x0a\x00" * (PARTS_MAX + 1))
    with pytest.raises(ValueError, match="at most 16,777,216"):
        series_of(bytes(BYTES_MAX + 1))
    with pytest.raises(ValueError, match="not a metric"):
        FunctionMetrics().add(series_of(b"\x0a\x00"))
