"""How much progress of a lane counts as little: such progress may be published some tens of milliseconds later. If it
has no output, it may also be committed later.

Above it: `lane`, and `settings`, which derives the thresholds from the pipeline. It knows counts; it does not know what
waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Little:
    """The thresholds for one lane."""

    records: int
    """Progress of at least this many records is not little."""
    size: int
    """The same threshold in bytes."""
    watermark: bool
    """Whether an advance of the watermark alone is little, because no window waits for it."""

    def covers(self, records: int, size: int) -> bool:
        return records < self.records and size < self.size


NOTHING_IS_LITTLE = Little(0, 0, watermark=False)
