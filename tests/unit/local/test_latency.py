"""Latencies read off a metrics page."""

import pytest

from millstream.telemetry.metrics import LATENCY
from millstream_runner.bench.latency import LatencyCounts, parse_latency

PAGE = f"""\
# HELP {LATENCY} how long
# TYPE {LATENCY} histogram
{LATENCY}_bucket{{le="0.005",lane="a.0",pipeline="p"}} 50.0
{LATENCY}_bucket{{le="0.01",lane="a.0",pipeline="p"}} 90.0
{LATENCY}_bucket{{le="+Inf",lane="a.0",pipeline="p"}} 100.0
{LATENCY}_bucket{{lane="a.1",le="0.005"}} 50.0
{LATENCY}_bucket{{lane="a.1",le="0.01"}} 90.0
{LATENCY}_bucket{{lane="a.1",le="+Inf"}} 100.0
{LATENCY}_count{{lane="a.0"}} 100.0
other_bucket{{le="0.005"}} 7
"""


def test_lanes_are_added() -> None:
    counts = parse_latency(PAGE)
    assert counts == LatencyCounts({0.005: 100.0, 0.01: 180.0, float("inf"): 200.0})
    assert counts.total == 200


def test_quantiles_are_interpolated_and_never_above_the_last_bound() -> None:
    counts = parse_latency(PAGE)
    assert counts.quantile_s(0.5) == pytest.approx(0.005)
    assert counts.quantile_s(0.25) == pytest.approx(0.0025)
    assert counts.quantile_s(0.7) == pytest.approx(0.0075)
    assert counts.quantile_s(0.99) == pytest.approx(0.01)
    assert LatencyCounts().quantile_s(0.5) is None


def test_what_came_before_is_left_out() -> None:
    before = LatencyCounts({0.005: 100.0, 0.01: 100.0, float("inf"): 100.0})
    assert parse_latency(PAGE).since(before).at_most == {0.005: 0.0, 0.01: 80.0, float("inf"): 100.0}
    assert parse_latency("").total == 0
