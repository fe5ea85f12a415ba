"""The promises of one upstream lane about one buffer, as a step function of the buffer's sequences. Pure.

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
    """Answers "what is this lane's watermark for a reader that has read up to s?", in bounded memory.

    It has three rules. An entry of an older epoch is ignored. Answers never go back, and the last sequence never goes
    below a sequence that was asked about. If there are too many points, answers become too low for a while, never too
    high.
    """

    __slots__ = (
        "_asked",
        "_last_sequence",
        "_points_max",
        "_sequences",
        "_watermarks",
        "ended",
        "epoch",
        "head_sequence",
    )

    def __init__(self, points_max: int = limits.OT_TIMELINE_POINTS_MAX) -> None:
        assert points_max >= 3, "thinning keeps the first and the last point"
        self._points_max = points_max
        # Both strictly rising: from the sequence of a point on, the answer is the point's watermark.
        self._sequences: list[int] = []
        self._watermarks: list[int] = []
        self._asked = 0
        """The highest sequence that was asked about. The reader has read everything up to it."""
        self.epoch = -1
        """Epoch of the newest entry; -1 before the first."""
        self.head_sequence = 0
        """The last sequence that the lane is known to have written to this buffer; 0 if there is none."""
        self._last_sequence = 0
        """The highest sequence in an entry of this epoch. It is below the head if the frames of the previous owner were
        trimmed, because the new owner does not find them."""
        self.ended = False
        """The newest entry says that nothing will follow `head_sequence`."""

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, epoch: int, sequence: int, watermark_us: int, *, ended: bool = False) -> bool:
        """Add a published entry. Returns False if it contains nothing new.

        1. Older epoch, or the same epoch with a lower sequence than before: the entry is stale and ignored.
        2. Newer epoch with a lower watermark (an owner starts at its mark, but the previous owner had advanced the
           watermark of an idle lane): the flag is used, and the watermark stays.
        3. Newer epoch with a lower sequence. Either the frames in between were read and trimmed, so the new owner does
           not find them. Or they were not read, and were lost when the ledger was set back: promises about them are
           withdrawn.
        4. Same sequence, higher watermark (the watermark of an idle lane advances): the last step is raised.
        5. Higher sequence, higher watermark: a step is added.
        """
        if epoch < self.epoch or (epoch == self.epoch and sequence < self._last_sequence):
            return False
        before = (self.epoch, self.head_sequence, self.ended)
        if epoch > self.epoch:
            self._withdraw(max(sequence, self._asked))
        self._last_sequence = sequence
        sequence = max(sequence, self.head_sequence)
        self.epoch, self.head_sequence, self.ended = epoch, sequence, ended
        return self._step(sequence, watermark_us) or before != (epoch, sequence, ended)

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
        """Withdraw all promises about frames after `sequence`."""
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
        # Without a step, sequences above it get the answer of the step below, which is too low and therefore safe. The
        # first step stays because it is the reader's current answer, and the last one because a lane that falls silent
        # adds no further step.
        del self._sequences[1:-1:2]
        del self._watermarks[1:-1:2]
