"""The records that suites write, and the owners of the lanes that write them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from millstream.clock import SystemClock
from millstream.frame import build_frame
from millstream.record import LaneId, Position
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import SinkFrame

FRAMES = 6
FRAME_RECORDS = 10
ALL = range(FRAMES * FRAME_RECORDS)
"""The numbers of all records."""
_EPOCH_US = 1_700_000_000_000_000


def value_of(number: int) -> bytes:
    """A JSON object with the number as member `n`, and a text."""
    return json.dumps({"n": number, "text": f"text {number}"}).encode()


def frame_of(sequence: int, *, name: str = "") -> SinkFrame:
    """The frame at a sequence, which starts at 1. Its ten records begin with number (`sequence` - 1) * 10, and each has
    its number as its key."""
    numbers = range((sequence - 1) * FRAME_RECORDS, sequence * FRAME_RECORDS)
    frame = build_frame(
        [value_of(number) for number in numbers],
        array("q", [_EPOCH_US + number * 1000 for number in numbers]),
        ingest_time_us=_EPOCH_US,
        keys=[[str(number).encode()] for number in numbers],
    )
    return SinkFrame(frame, sequence, 0, f"out/in/0/{sequence}/", name=name or f"frame-{sequence}")


def offered(sequences: Iterable[int]) -> Iterator[tuple[SinkFrame, Position]]:
    """Frames, each with the lane's position after it."""
    for sequence in sequences:
        yield frame_of(sequence), Position(sequence)


async def _held(sequence: int, name: str) -> str | None:
    """Simulates a buffer that has exactly these frames."""
    expected = f"frame-{sequence}"
    return None if name == expected else f"the frame {expected}"


def owner_of(place: Path, epoch: int, *, start: Position = Position(0), run: str = "first") -> SinkOwner:  # noqa: B008
    """An owner of the suite's only lane. `run` changes when the pipeline is started over."""
    return SinkOwner(
        pipeline="conformance",
        lane=LaneId("out", "in-out", 0),
        replica=0,
        epoch=epoch,
        start=start,
        ledger_id=run,
        base_dir=place,
        clock=SystemClock(),
        held_instead=_held,
    )
