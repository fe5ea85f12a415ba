"""Logs that go to a collector: level, text, fields and exception arrive, and what exports them is not among them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millstream.telemetry.logging import log_lane
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.telemetry.numbers import vertex
from tests.unit.telemetry.opening import open_telemetry

log = logging.getLogger("millstream.of_a_test")


@pytest.mark.usefixtures("collector")
async def test_logs_arrive_with_their_fields(collector: Collector) -> None:
    async with asyncio.timeout(30), open_telemetry("flights", "clean", "map", 1, vertex):
        with log_lane("in-clean.0"):
            log.warning("%d is odd", 7, extra={"number": 7, "of": ["a", 1]})
            try:
                raise ValueError("no good")
            except ValueError:
                log.exception("it failed")
        logging.getLogger("opentelemetry.sdk").error("the exporter's own")
    found = {record.body.string_value: record for record in collector.logs}
    odd, failed = found["7 is odd"], found["it failed"]
    assert (odd.severity_text, odd.severity_number) == ("warning", 13)
    fields = attributes(odd.attributes)
    assert fields == {"logger": "millstream.of_a_test", "lane": "in-clean.0", "number": 7, "of": "['a', 1]"}
    assert attributes(failed.attributes)["exception.message"] == "no good"
    assert "ValueError" in attributes(failed.attributes)["exception.stacktrace"]
    assert "the exporter's own" not in found
    assert collector.resource["service.instance.id"] == "clean-1"
    assert not [handler for handler in logging.getLogger().handlers if type(handler).__name__ == "LogExport"]


async def test_logs_stay_here_where_that_is_asked_for(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    async with asyncio.timeout(30), open_telemetry("flights", "clean", "map", 1, vertex):
        log.warning("here")
    assert collector.logs == []
