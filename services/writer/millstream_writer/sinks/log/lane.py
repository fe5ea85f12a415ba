"""The log sink: one JSON line per record on standard output, for users and for `millstream logs`.

Above it: the delivery. Below it: a text stream. At least once: a process that dies between printing and its mark
prints again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TextIO

from millstream import codes
from millstream.errors import InfrastructureError
from millstream.printable import printable
from millstream.record import Position
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WriteResult
from millstream_writer.sinks.envelope import envelope_lines


def record_lines(item: SinkFrame) -> str:
    """The envelopes of a frame's records, one line each."""
    return printable("".join(f"{line}\n" for line in envelope_lines(item)))


class _LogLane(UnkeptLane):
    def __init__(self, stream: TextIO, worker: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._worker = worker

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        # The reader of the output may be slow, so a thread waits for it instead of the event loop.
        await asyncio.get_running_loop().run_in_executor(self._worker, self._print, frames)
        return WriteResult()

    def _print(self, frames: Sequence[SinkFrame]) -> None:
        try:
            for item in frames:
                self._stream.write(record_lines(item))
            self._stream.flush()
        except OSError as error:
            raise InfrastructureError(
                codes.OUTPUT_CLOSED, f"the log sink cannot write to its output: {error}"
            ) from error


@asynccontextmanager
async def open_log_sink(stream: TextIO | None = None) -> AsyncIterator[SinkLane]:
    """Prints to `stream`, or to the standard output at the time when the sink is opened."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="log-sink")
    try:
        yield _LogLane(stream or sys.stdout, worker)
    finally:
        worker.shutdown(wait=False, cancel_futures=True)
