"""The log sink: one JSON line per record on standard output, for users and for `millstream logs`.

Above it: the delivery. Below it: standard output, which takes the lines or raises (`millstream.print_channel`). At
least once: a process that dies between printing and its mark prints again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import BinaryIO

from millstream import codes
from millstream.descriptors import cause_text
from millstream.errors import InfrastructureError
from millstream.printable import printable
from millstream.record import Position
from millstream_connectors.shared.envelope_lane import envelope_lines
from millstream_writer.sink import SinkFrame, SinkLane, UnkeptLane, WriteResult

_PIECE_CHARACTERS_MIN = 256 * 1024


def record_lines(item: SinkFrame) -> str:
    """The envelopes of a frame's records, one line each."""
    return printable("".join(f"{line}\n" for line in envelope_lines(item)))


def _pieces(frames: Sequence[SinkFrame]) -> Iterator[bytes]:
    """Their lines, in pieces that are worth an answer each."""
    lines: list[str] = []
    size = 0
    for item in frames:
        lines.append(record_lines(item))
        size += len(lines[-1])
        if size >= _PIECE_CHARACTERS_MIN:
            yield "".join(lines).encode()
            lines, size = [], 0
    yield "".join(lines).encode()


class _LogLane(UnkeptLane):
    def __init__(self, stream: BinaryIO, worker: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._worker = worker

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        # The reader of the output may be slow, so a thread waits for it instead of the event loop.
        await asyncio.get_running_loop().run_in_executor(self._worker, self._print, frames)
        return WriteResult()

    def _print(self, frames: Sequence[SinkFrame]) -> None:
        try:
            for piece in _pieces(frames):
                self._stream.write(piece)
        except OSError as error:
            raise InfrastructureError(
                codes.OUTPUT_CLOSED, f"the log sink cannot write to standard output: {cause_text(error)}"
            ) from error


@asynccontextmanager
async def open_log_sink(stream: BinaryIO | None = None) -> AsyncIterator[SinkLane]:
    """Prints to `stream`, which returns from `write` when everything is printed, or to the standard output of the
    process."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="log-sink")
    try:
        yield _LogLane(stream or sys.stdout.buffer, worker)
    finally:
        worker.shutdown(wait=False, cancel_futures=True)
