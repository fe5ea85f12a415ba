"""Telemetry of a process that runs one replica, as most tests need it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from millstream.clock import Clock
from millstream.statistics import VertexStatistics
from millstream.telemetry.opening import Identity
from millstream.telemetry.opening import open_telemetry as open_process_telemetry
from millstream.telemetry.telemetry import Telemetry
from tests.unit.telemetry.numbers import REPORTS


@asynccontextmanager
async def open_telemetry(
    pipeline: str,
    vertex: str,
    vertex_type: str,
    replica: int,
    statistics: Callable[[], VertexStatistics],
    *,
    metrics_port: int = 0,
    not_ready: Callable[[], str | None] = lambda: None,
    clock: Clock | None = None,
) -> AsyncIterator[Telemetry]:
    identity = Identity(pipeline, vertex, vertex_type, replica, REPORTS[vertex_type])
    async with open_process_telemetry(
        [identity], metrics_port=metrics_port, not_ready=not_ready, clock=clock
    ) as process:
        with process.replica(identity, statistics) as telemetry:
            yield telemetry
