"""The log sink: one JSON line a record on standard output, for people and for `millstream logs`.

Above it: the delivery. Below it: a text stream. At least once: a process that dies between printing and its mark
prints again.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TextIO

from millstream.clock import MICROSECONDS
from millstream.errors import EnvironmentFault
from millstream.record import Position
from millstream_writer.sink import Guarantee, SinkFrame, SinkLane, WriteResult

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(ensure_ascii=False).encode


def time_text(time_us: int) -> str:
    """RFC 3339 with microseconds; the plain number where a calendar has no such time."""
    second = _second_text(time_us // MICROSECONDS)
    return f"{second}.{time_us % MICROSECONDS:06}Z" if second else str(time_us)


@lru_cache(maxsize=4096)
def _second_text(time_s: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=time_s)).isoformat().removesuffix("+00:00")
    except OverflowError:
        return ""


def record_lines(item: SinkFrame) -> str:
    """The lines of a frame's records. Values and headers that are not UTF-8 are shown in base64."""
    frame = item.frame
    lines = []
    for value, time_us, keys, headers in zip(
        frame.values(), frame.event_times_us(), frame.keys(), frame.headers(), strict=True
    ):
        line: dict[str, object] = {"eventTime": time_text(time_us)}
        if keys:
            line["keys"] = [part.decode(errors="replace") for part in keys]
        if headers:
            line["headers"] = _header_texts(headers)
        try:
            line["value"] = value.decode()
        except UnicodeDecodeError:
            line["valueBase64"] = base64.b64encode(value).decode()
        lines.append(_encode(line))
    lines.append("")
    return "\n".join(lines)


def _header_texts(headers: Mapping[str, bytes]) -> dict[str, str]:
    texts = {}
    for name, value in headers.items():
        try:
            texts[name] = value.decode()
        except UnicodeDecodeError:
            texts[name] = base64.b64encode(value).decode()
    return texts


class _LogLane:
    def __init__(self, stream: TextIO, worker: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._worker = worker

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    @property
    def durable(self) -> Position | None:
        return None

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        # Whoever reads our output may be slow; the thread waits for it, not the event loop.
        await asyncio.get_running_loop().run_in_executor(self._worker, self._print, frames)
        return WriteResult()

    async def flush(self) -> None:
        return None

    async def tick(self) -> None:
        return None

    def _print(self, frames: Sequence[SinkFrame]) -> None:
        try:
            for item in frames:
                self._stream.write(record_lines(item))
            self._stream.flush()
        except OSError as error:
            raise EnvironmentFault(f"the log sink cannot write to its output: {error}") from error


@asynccontextmanager
async def open_log_sink(stream: TextIO | None = None) -> AsyncIterator[SinkLane]:
    """Prints to `stream`, or to standard output as it is when the sink is opened."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="log-sink")
    try:
        yield _LogLane(stream or sys.stdout, worker)
    finally:
        worker.shutdown(wait=False, cancel_futures=True)
