"""Frames that a reader has prefetched: in order, and never more bytes than the limit. Pure.

    add ─► arrived: frames, and references to frames that are stored apart ─► pop
                        └─► to_request: the next reference whose frame has space

Above it: `pull.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from millstream import limits
from millstream.buffers.jetstream.references import FrameReference
from millstream.buffers.jetstream.sending import Answer
from millstream.ledger.protocol import Witness


@dataclass(slots=True)
class Arrival:
    """A frame, or the reference to one that is stored apart."""

    sequence: int
    witness: Witness | None
    """The name of the frame."""
    size: int
    """Bytes of the frame, wherever it is."""
    data: bytes
    reference: FrameReference | None = None
    """Where the frame is, if it is stored apart."""
    answer: Answer | None = None
    """The answer to the request for that frame."""


class Prefetch:
    """What has arrived and was not yet returned."""

    def __init__(self) -> None:
        self._arrived: deque[Arrival] = deque()
        self._not_requested: deque[Arrival] = deque()
        """Those of them that are references to frames which were not requested yet."""
        self._not_requested_bytes = 0
        self.bytes = 0
        """Size of all frames that have arrived, also of those that are stored apart."""

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames that have arrived or are requested."""
        return self.bytes - self._not_requested_bytes

    @property
    def first(self) -> Arrival:
        """The frame that is returned next; there must be one."""
        return self._arrived[0]

    def add(self, arrival: Arrival) -> None:
        """Append a frame, or a reference."""
        self._arrived.append(arrival)
        self.bytes += arrival.size
        if arrival.reference is not None:
            self._not_requested.append(arrival)
            self._not_requested_bytes += arrival.size

    def pop(self) -> Arrival:
        """Take the first frame out."""
        arrival = self._arrived.popleft()
        self.bytes -= arrival.size
        return arrival

    def to_request(self) -> Arrival | None:
        """The next frame to request; None if there is none, or no space for it. The frame that is returned next always
        has space."""
        if not self._not_requested:
            return None
        arrival = self._not_requested[0]
        is_next = arrival is self._arrived[0]
        return arrival if is_next or self.held_bytes + arrival.size <= limits.READ_AHEAD_BYTES_MAX else None

    def requested(self, answer: Answer) -> None:
        """The frame of `to_request` was requested, and `answer` brings it."""
        arrival = self._not_requested.popleft()
        arrival.answer = answer
        self._not_requested_bytes -= arrival.size

    def clear(self) -> None:
        """Forget everything."""
        for arrival in self._arrived:
            if arrival.answer is not None:
                arrival.answer.cancel()
        self._arrived.clear()
        self._not_requested.clear()
        self.bytes = self._not_requested_bytes = 0
