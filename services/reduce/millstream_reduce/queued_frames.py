"""Frames on their way into a queue: their positions in their buffers, and which of them have certain rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millstream.frame import Frame
from millstream.ledger.protocol import Witness
from millstream.ledger.witness import merged
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.values import Rows


class QueuedFrame(NamedTuple):
    """A frame on its way into the queue."""

    edge: str
    sequence: int
    """Stream sequence in the edge's buffer."""
    size: int
    """Bytes that it takes in the buffer."""
    frame: Frame
    witness: Witness | None = None
    """Its name in the buffer."""


def positions_of(frames: Sequence[QueuedFrame]) -> list[wal_pb2.InputPosition]:
    """How far each edge has been read after these, and the records and stored bytes taken from it."""
    positions: dict[str, wal_pb2.InputPosition] = {}
    read: dict[str, list[Witness]] = {}
    for item in frames:
        position = positions.setdefault(item.edge, wal_pb2.InputPosition(edge=item.edge))
        position.sequence = item.sequence
        position.records += item.frame.records
        position.bytes += item.size
        if item.witness is not None:
            read.setdefault(item.edge, []).append(item.witness)
    for edge, witnesses in read.items():
        positions[edge].read.extend(merged((), witnesses))
    return list(positions.values())


def rows_of_frames(frames: Sequence[QueuedFrame]) -> Iterator[tuple[QueuedFrame, int, int]]:
    """Each frame, with the range of its records among those of all frames."""
    begin = 0
    for item in frames:
        end = begin + item.frame.records
        yield item, begin, end
        begin = end


def rows_within(frames: Sequence[QueuedFrame], rows: Rows) -> Iterator[tuple[QueuedFrame, list[int]]]:
    """The frames that have some of these rows, which rise and are counted over all frames; with those rows, counted
    within the frame."""
    for item, begin, end in rows_of_frames(frames):
        low, high = np.searchsorted(rows, (begin, end))
        if high > low:
            yield item, (rows[low:high] - begin).tolist()
