"""What one upstream lane has promised about one buffer, as a staircase over the buffer's sequences. Pure.

    watermark
       │            ┌────── entry (sequence 40, watermark 900)
       │      ┌─────┘       a reader that has read up to 40 may use 900,
       │  ┌───┘             one that has read up to 39 may not
       └──┴───┴─────┴────── sequence

Above it: `fetch.py`, one timeline per upstream lane. Below it: nothing. It does not know where entries come from.
"""

from __future__ import annotations

from bisect import bisect_right

from millstream import limits
from millstream.clock import START_OF_TIME_US


class Timeline:
    """Answers "how far is this lane's watermark for a reader that has read up to s", in bounded memory.

    Three rules. An entry of an older epoch is ignored. No answer that was given goes back, and the last sequence does
    not go below what was asked about. When memory runs out the answer becomes too low for a while, never too high.
    """

    __slots__ = (
        "_asked",
        "_points_max",
        "_said_sequence",
        "_sequences",
        "_watermarks",
        "ended",
        "epoch",
        "head_sequence",
        "idle",
    )

    def __init__(self, points_max: int = limits.OT_TIMELINE_POINTS_MAX) -> None:
        assert points_max >= 3, "thinning keeps the first and the last point"
        self._points_max = points_max
        # Both strictly rising: a point says that from this sequence on the answer is this watermark.
        self._sequences: list[int] = []
        self._watermarks: list[int] = []
        self._asked = 0
        """The highest sequence that an answer was for. The reader has read up to there."""
        self.epoch = -1
        """Of the newest entry; -1 before the first."""
        self.head_sequence = 0
        """The last sequence the lane is known to have written to this buffer; 0 when none."""
        self._said_sequence = 0
        """The highest that an entry of this epoch said. Below the head when what the owner before wrote was trimmed:
        the new owner finds nothing of it."""
        self.idle = False
        """The newest entry says that the lane has nothing to read."""
        self.ended = False
        """The newest entry says that nothing will follow `head_sequence`."""

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, epoch: int, sequence: int, watermark_us: int, *, idle: bool = False, ended: bool = False) -> bool:
        """Take a published entry in. False when it says nothing new.

        1. Older epoch, or the same epoch and a sequence below what it has said before: a stale entry, ignored.
        2. Newer epoch with a lower watermark (an owner that starts again at its mark, after the one before had moved
           an idle lane on): the flags count, the watermark keeps its height.
        3. Newer epoch with a lower sequence. What lies between was read and trimmed, so the new owner finds nothing of
           it; or it was not read, and is gone with a ledger that was set back: what was said of that counts no more.
        4. Same sequence, higher watermark (an idle lane that moves on): the last step is raised.
        5. Higher sequence, higher watermark: a new step.
        """
        if epoch < self.epoch or (epoch == self.epoch and sequence < self._said_sequence):
            return False
        before = (self.epoch, self.head_sequence, self.idle, self.ended)
        if epoch > self.epoch:
            self._withdraw(max(sequence, self._asked))
        self._said_sequence = sequence
        sequence = max(sequence, self.head_sequence)
        self.epoch, self.head_sequence, self.idle, self.ended = epoch, sequence, idle, ended
        return self._step(sequence, watermark_us) or before != (epoch, sequence, idle, ended)

    def watermark_at(self, sequence: int) -> int:
        """The watermark for a reader that has read everything up to and including `sequence`, microseconds."""
        self._asked = max(self._asked, sequence)
        index = bisect_right(self._sequences, sequence)
        return self._watermarks[index - 1] if index else START_OF_TIME_US

    def forget(self, sequence: int) -> None:
        """No caller will ask about a sequence below `sequence` again."""
        self._asked = max(self._asked, sequence)
        below = bisect_right(self._sequences, sequence) - 1
        if below > 0:
            del self._sequences[:below]
            del self._watermarks[:below]

    def _withdraw(self, sequence: int) -> None:
        """Nothing that was said of frames behind `sequence` counts."""
        if sequence < self.head_sequence:
            self.head_sequence = sequence
            kept = bisect_right(self._sequences, sequence)
            del self._sequences[kept:], self._watermarks[kept:]

    def _step(self, sequence: int, watermark_us: int) -> bool:
        if watermark_us <= (self._watermarks[-1] if self._watermarks else START_OF_TIME_US):
            return False
        if self._sequences and self._sequences[-1] == sequence:
            self._watermarks[-1] = watermark_us
            return True
        self._sequences.append(sequence)
        self._watermarks.append(watermark_us)
        if len(self._sequences) > self._points_max:
            self._thin()
        return True

    def _thin(self) -> None:
        # Without a step, sequences above it get the answer of the step below: too low, so safe. The first step stays
        # because it is what the reader gets now, and the last because a lane that falls silent adds no other.
        del self._sequences[1:-1:2]
        del self._watermarks[1:-1:2]
