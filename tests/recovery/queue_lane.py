"""A lane's queue in a process of its own, to be killed: takes numbered frames in, closes windows, keeps their values.

    python -m tests.recovery.queue_lane DIRECTORY EPOCH FRAMES

Says on standard output what is durable, as soon as it is: "durable SEQUENCE HAND_OVER". The lane's mark is a file, and
so is each result; both appear whole, by a rename, the result before the mark that speaks of it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.log.segments import LogIdentity
from millstream_reduce.queue import Queue, QueuedFrame, QueueLimits, open_queue
from millstream_reduce.windows import WindowConfig, make_windowing
from tests.unit.reduce.queued import EDGE, contents_of, frame_of

WINDOWS = WindowConfig("fixed", length_us=1000)
LIMITS = QueueLimits(log_bytes_max=2**22, segment_bytes=32 * 1024)
FRAME_RECORDS = 20
MARK = "mark"


def frame(sequence: int) -> Frame:
    """Out of order by up to two windows; the value of each record is its own."""
    rng = random.Random(sequence)
    times = [max(0, sequence * 50 - rng.randrange(2000)) for _ in range(FRAME_RECORDS)]
    values = [b"%d.%d at %d" % (sequence, index, time) + b"." * rng.randrange(200) for index, time in enumerate(times)]
    return frame_of(times, values=values)


def read_mark(directory: Path) -> mark_pb2.ReduceProgress:
    path = directory / MARK
    return mark_pb2.ReduceProgress.FromString(path.read_bytes() if path.exists() else b"")


def result_path(directory: Path, number: int) -> Path:
    return directory / f"result-{number}"


def _replace(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def _commit(directory: Path, queue: Queue, hand_over: wal_pb2.HandOver | None) -> mark_pb2.ReduceProgress:
    """Write the result of a hand-over, then the mark."""
    progress = read_mark(directory)
    if hand_over is not None:
        result = repr(contents_of(queue.directory, [hand_over])).encode()
        path = result_path(directory, hand_over.number)
        assert not path.exists() or path.read_bytes() == result, f"hand-over {hand_over.number} has other contents now"
        _replace(path, result)
        progress.hand_over = hand_over.number
    del progress.inputs[:]
    for edge, sequence in queue.positions().items():
        progress.inputs.add(edge=edge, sequence=sequence)
    progress.closed_us = queue.closed_us
    _replace(directory / MARK, progress.SerializeToString())
    return progress


async def run(directory: Path, epoch: int, frames: int) -> None:
    identity = LogIdentity("p", "sum", 0, epoch, "ledger-1")
    rng = random.Random()
    async with open_queue(
        directory / "log", identity, make_windowing(WINDOWS), read_mark(directory), limits=LIMITS
    ) as queue:
        sequence = queue.positions().get(EDGE, 0)
        while sequence < frames or queue.pending() or queue.open_windows:
            for _ in range(rng.randint(1, 8)):
                if sequence < frames:
                    sequence += 1
                    item = frame(sequence)
                    queue.append([QueuedFrame(EDGE, sequence, item.size, item)], 0)
            queue.close(sequence * 50 - 2000 if sequence < frames else END_OF_TIME_US)
            await queue.sync()
            pending = queue.pending()
            last = max([item.number for item in pending], default=read_mark(directory).hand_over)
            sys.stdout.write(f"durable {sequence} {last}\n")
            sys.stdout.flush()
            if rng.random() < 0.5:
                await queue.committed(_commit(directory, queue, pending[0] if pending else None))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
