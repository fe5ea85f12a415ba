"""A collector, a free port, and an environment without OpenTelemetry's variables."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from millstream.ports import free_ports
from tests.unit.telemetry.collector import Collector, open_collector


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest_asyncio.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A running collector that the environment points at."""
    async with open_collector() as opened:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", opened.endpoint)
        yield opened


@pytest.fixture
def free_port() -> int:
    return free_ports()
