"""Reads what a function counts, for as long as the function is used.

Above it: `client.py`. Below it: gRPC. A server without metrics is asked once. When the stream ends because its process
does, the next one is opened as soon as there is another process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from millstream.background import beside
from millstream.limits import MIB, SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses, pause
from millstream.statistics import FunctionSeries
from millstream.udf.checks import count_parts
from millstream.udf.metrics import FunctionMetrics
from millstream.udf.native.service import SERVICE
from millstream_udf.metrics import NAMES_MAX, SERIES_MAX
from millstream_udf.wire.udf.v1 import udf_pb2

_log = logging.getLogger(__name__)

BYTES_MAX = 16 * MIB
"""Size of a message: twice what 1,100 series with the longest names and labels take."""
PARTS_MAX = 200_000
"""Fields of a message and of its series."""
_SERIES = 1
"""Number of their field."""
_INTERVAL_S = 0.5
"""Least time between two messages, until the last one."""
_LAST_S = 1.0
"""How long after the end of its process the last message of a stream may arrive."""
_KINDS = {
    udf_pb2.Series.KIND_COUNTER: "counter",
    udf_pb2.Series.KIND_GAUGE: "gauge",
    udf_pb2.Series.KIND_HISTOGRAM: "histogram",
}


class _Follower:
    """Opens one stream after another."""

    def __init__(self, channel: grpc.aio.Channel, target: str, metrics: FunctionMetrics) -> None:
        self._channel = channel
        self._target = target
        self._metrics = metrics
        self._is_open = False
        self._ended = asyncio.Event()
        self._warned = False

    async def follow(self) -> None:
        """Returns when the function turns out to have no metrics, or after the last stream."""
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        method: Any = self._channel.unary_stream(f"{SERVICE}/Metrics")
        while not self._ended.is_set():
            try:
                call = method(b"", wait_for_ready=True)
                await call.wait_for_connection()
                self._is_open = True
                async for data in call:
                    self._take(data)
                    pauses.begin_again()
                    # A server that sends more often than it should has to wait.
                    await pause(_INTERVAL_S, unless=self._ended)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            finally:
                self._is_open = False
            await pauses.wait(unless=self._ended)

    async def finish(self, following: asyncio.Task[None]) -> None:
        """Wait briefly for the end of the open stream."""
        self._ended.set()
        if self._is_open:
            await asyncio.wait((following,), timeout=_LAST_S)

    def _take(self, data: bytes) -> None:
        try:
            self._metrics.add(series_of(data))
        except (ValueError, DecodeError) as error:
            if not self._warned:
                _log.warning("metrics of the function at %s are not exported: %s", self._target, error)
            self._warned = True


@asynccontextmanager
async def following_metrics(
    channel: grpc.aio.Channel, target: str, metrics: FunctionMetrics, *, to_its_end: bool
) -> AsyncIterator[None]:
    """Adds what the function counts to `metrics`, until the block ends. `to_its_end`: the process ends in the block,
    and its last message is waited for."""
    follower = _Follower(channel, target, metrics)
    async with beside(follower.follow(), f"metrics of the function at {target}") as following:
        yield
        if to_its_end:
            await follower.finish(following)


def series_of(data: bytes) -> Sequence[FunctionSeries]:
    """The series of a message. Raises `ValueError` or `DecodeError` for one that is not valid."""
    if len(data) > BYTES_MAX:
        raise ValueError(f"a message has {len(data):,} bytes; at most {BYTES_MAX:,} are allowed")
    # Before it is decoded, which makes many times as much of a message of very small parts.
    count_parts(memoryview(data), (_SERIES,), PARTS_MAX)
    message = udf_pb2.MetricsResponse.FromString(data)
    if len(message.series) > SERIES_MAX + NAMES_MAX:
        raise ValueError(f"it has {len(message.series)} series")
    return [
        FunctionSeries(
            one.name,
            _KINDS.get(one.kind, ""),
            dict(one.labels),
            one.value,
            tuple(one.bounds),
            tuple(one.counts),
        )
        for one in message.series
    ]
