"""A queue over real windows, and the records that its hand-overs name: shared by the tests of the queue."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream.frame import Frame, build_frame
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce import batches
from millstream_reduce.log.entries import read_entry, segment_name
from millstream_reduce.log.files import Files
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import AppendResult, Queue, QueuedFrame, QueueLimits, open_queue
from millstream_reduce.values import WindowContents, WindowTable
from millstream_reduce.windows import WindowConfig, make_windowing

EDGE, OTHER_EDGE = "a-sum", "b-sum"
TENS = WindowConfig("fixed", length_us=10)
LIMITS = QueueLimits(log_bytes_max=64 * 1024, unsynced_bytes_max=16 * 1024, segment_bytes=4096)


def frame_of(times: Sequence[int], *, keys: Sequence[bytes] | None = None, values: Sequence[bytes] = ()) -> Frame:
    """Records with these event times; their values are the times, unless there are others."""
    return build_frame(
        list(values) or [b"%d" % time for time in times],
        array("q", times),
        ingest_time_us=7,
        keys=[[key] for key in keys] if keys is not None else None,
    )


@dataclass
class Lane:
    """What a lane remembers between two openings of its queue: the mark."""

    directory: Path
    config: WindowConfig = TENS
    limits: QueueLimits = LIMITS
    keep_late: bool = False
    input_is_kept: bool = False
    files: Files | None = None
    epoch: int = 0
    progress: mark_pb2.ReduceProgress = field(default_factory=mark_pb2.ReduceProgress)
    sequences: dict[str, int] = field(default_factory=dict)
    """Of the last frame appended of each edge."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Queue]:
        """The queue, under the next epoch."""
        self.epoch += 1
        identity = LogIdentity("p", "sum", 0, self.epoch, "ledger-1")
        async with open_queue(
            self.directory,
            identity,
            make_windowing(self.config),
            self.progress,
            limits=self.limits,
            keep_late=self.keep_late,
            input_is_kept=self.input_is_kept,
            files=self.files,
        ) as queue:
            self.sequences = queue.positions()
            yield queue

    def append(self, queue: Queue, *frames: Frame, watermark_us: int = 0, edge: str = EDGE) -> AppendResult:
        queued = []
        for frame in frames:
            self.sequences[edge] = self.sequences.get(edge, 0) + 1
            queued.append(QueuedFrame(edge, self.sequences[edge], frame.size, frame))
        return queue.append(queued, watermark_us)

    async def acknowledge(self, queue: Queue) -> None:
        """Everything in the log is in the mark as well."""
        await queue.sync()
        for edge, sequence in queue.positions().items():
            done = next((item for item in self.progress.inputs if item.edge == edge), None)
            (done or self.progress.inputs.add(edge=edge)).sequence = sequence
        self.progress.closed_us = queue.closed_us
        await queue.committed(self.progress)

    def retrace(self, queue: Queue) -> None:
        """The input was read again up to the mark: do what it says was done there."""
        queue.retrace(wal_pb2.Milestone(closed_us=self.progress.closed_us))
        queue.retraced()

    async def commit(self, queue: Queue, hand_over: wal_pb2.HandOver) -> None:
        """The results of a hand-over are in the mark."""
        await self.acknowledge(queue)
        self.progress.hand_over = hand_over.number
        await queue.committed(self.progress)


def values_in(directory: Path, window: WindowContents) -> list[bytes]:
    """The values of a window's records, read as the tasks of a job read them."""
    values: list[bytes] = []
    for piece in window.pieces:
        data = memoryview((directory / segment_name(piece.segment)).read_bytes())
        entry = read_entry(data, piece.offset)
        assert entry.length == piece.length
        append = entry.message().append
        batch = batches.decoded(entry.body, append)
        assert batch.num_rows == append.rows
        values += batches.as_bytes(batch.column(0)).slice(piece.first_row, piece.rows).to_pylist()
    assert len(values) == window.rows
    return values


def contents_of(directory: Path, hand_overs: Sequence[wal_pb2.HandOver]) -> list[tuple[int, int, int, list[bytes]]]:
    """(start, end, early, values) of every window."""
    return [
        (one.window.start_us, one.window.end_us, one.window.early, values_in(directory, one))
        for hand_over in hand_overs
        for one in WindowTable.of_hand_over(hand_over)
    ]
