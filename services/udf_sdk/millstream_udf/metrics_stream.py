"""Sends what a function has counted to the vertex, on a stream of its own.

    REGISTRY ─► changes at once, then at most every second ─► the last ones when all calls are answered

Above it: the server. Below it: `metrics`. It costs nothing while nothing is counted: it waits for the first change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from millstream_udf.metrics import Reading, Registry
from millstream_udf.wire.udf.v1 import udf_pb2

INTERVAL_S = 1.0
"""Time between two messages."""
_KINDS = {
    "counter": udf_pb2.Series.KIND_COUNTER,
    "gauge": udf_pb2.Series.KIND_GAUGE,
    "histogram": udf_pb2.Series.KIND_HISTOGRAM,
}


class MetricsSender:
    """Collects for all streams, of which one gets each change. Belongs to the server's event loop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changed = asyncio.Event()
        self._ending = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            # A thread of the function's own may outlive the server.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._changed.set)

        registry.on_change = wake
        # What was counted before, for example in the function's `setup`.
        self._changed.set()

    def end(self) -> None:
        """Nothing more will be counted: the streams end after their last message."""
        self._ending.set()
        self._changed.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """The messages of a stream, until the end."""
        while True:
            await self._changed.wait()
            is_last = self._ending.is_set()
            if not is_last:
                self._changed.clear()
            if readings := self._registry.take():
                yield udf_pb2.MetricsResponse(series=map(_series, readings)).SerializeToString()
            if is_last:
                return
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._ending.wait()
            except TimeoutError:
                continue


def _series(reading: Reading) -> udf_pb2.Series:
    return udf_pb2.Series(
        name=reading.name,
        kind=_KINDS[reading.kind],
        labels=reading.labels,
        value=reading.value,
        bounds=reading.bounds,
        counts=reading.counts,
    )
