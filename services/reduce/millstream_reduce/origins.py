"""The origin of the records in a queue's log: their traces, and when they entered the pipeline. Pure.

Above it: the queue's contents. It keeps notes by entry of the log, few for each segment, and drops them with the
segment: traces and latencies may be coarse, so that they cost little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from millstream.limits import SPAN_LINKS_MAX
from millstream.wire.reduce.v1 import wal_pb2
from millstream_reduce.values import Location, Piece, WindowContents, WindowTable

ENTRIES_MAX = 128
"""The most entries of a segment for which the entry time of records is noted; of more entries, a sample is noted."""
WINDOWS_MAX = 256
"""The most windows of a hand-over that are considered."""


@dataclass(frozen=True, slots=True)
class HandOverOrigin:
    """Origin of the records in a hand-over."""

    ingest_time_us: int
    """When the newest record of a window entered the pipeline, wall clock; of the window for which that is longest ago.
    Where only entries before it are noted, theirs."""
    traceparents: tuple[str, ...]
    """Different sampled contexts of records in it, at most `SPAN_LINKS_MAX`."""

    @property
    def first_traceparent(self) -> str:
        """The trace that continues with the results; empty if there is none."""
        return self.traceparents[0] if self.traceparents else ""

    def within(self, traceparent: str) -> HandOverOrigin:
        """The same, with one trace."""
        return HandOverOrigin(self.ingest_time_us, (traceparent,) if traceparent else ())


@dataclass(slots=True)
class _Segment:
    entries: int = 0
    stride: int = 1
    """The time of every n-th entry is noted."""
    offsets: list[int] = field(default_factory=list)
    """Their offsets, rising."""
    ingest_times_us: list[int] = field(default_factory=list)
    traceparents: dict[int, str] = field(default_factory=dict)
    """By offset, the newest ones."""


class Origins:
    """The notes of one log."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}

    def clear(self) -> None:
        self._segments.clear()

    def note(self, location: Location, ingest_time_us: int, traceparent: str) -> None:
        """Records are in the log, in this entry."""
        segment = self._segments.setdefault(location.segment, _Segment())
        if segment.entries % segment.stride == 0:
            segment.offsets.append(location.offset)
            segment.ingest_times_us.append(ingest_time_us)
        segment.entries += 1
        if len(segment.offsets) > ENTRIES_MAX:
            del segment.offsets[1::2], segment.ingest_times_us[1::2]
            segment.stride *= 2
        if traceparent:
            segment.traceparents[location.offset] = traceparent
            if len(segment.traceparents) > SPAN_LINKS_MAX:
                del segment.traceparents[next(iter(segment.traceparents))]

    def keep(self, segments: Iterable[int]) -> None:
        """Drop the notes of all segments except these."""
        kept = set(segments)
        self._segments = {number: notes for number, notes in self._segments.items() if number in kept}

    def of(self, hand_over: wal_pb2.HandOver, now_us: int) -> HandOverOrigin:
        """Origin of its records. `now_us`: used as their entry time if it is unknown."""
        windows = WindowTable.of_hand_over(hand_over)
        windows = windows[:: -(-len(windows) // WINDOWS_MAX) or 1]
        times = [time_us for window in windows if (time_us := self._newest_us(window.pieces)) is not None]
        return HandOverOrigin(min(times, default=now_us), self._traceparents(windows))

    def _newest_us(self, pieces: Iterable[Piece]) -> int | None:
        newest = max(((piece.segment, piece.offset) for piece in pieces), default=None)
        if newest is None or newest[0] not in self._segments:
            return None
        segment = self._segments[newest[0]]
        at = bisect_right(segment.offsets, newest[1])
        return segment.ingest_times_us[at - 1] if at else None

    def _traceparents(self, windows: Iterable[WindowContents]) -> tuple[str, ...]:
        if not any(segment.traceparents for segment in self._segments.values()):
            return ()
        found: dict[str, None] = {}
        for window in windows:
            for piece in window.pieces:
                segment = self._segments.get(piece.segment)
                traceparent = segment.traceparents.get(piece.offset) if segment is not None else None
                if traceparent is not None:
                    found[traceparent] = None
                    if len(found) == SPAN_LINKS_MAX:
                        return tuple(found)
        return tuple(found)
