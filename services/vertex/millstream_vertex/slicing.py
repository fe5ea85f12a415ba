"""How many records to pass to a function at a time, so that a call takes about a target time and its output fits in a
commit. Pure."""

from __future__ import annotations

from millstream.limits import COMMIT_BYTES_MAX

FIRST_SLICE_RECORDS = 64
"""Records in the first call, while the function's rate is unknown."""

SLICES_IN_FLIGHT = 4
"""Slices in flight at a time: the work that a lane still has to finish when it is asked to stop."""


OUTPUT_BYTES_TARGET = COMMIT_BYTES_MAX // 2
"""Target size of a call's output. It leaves a margin, because some records have more output than others."""


class Slicer:
    """Learns a function's rate from its answers."""

    def __init__(self, *, target_s: float, records_max: int | None) -> None:
        """`records_max`: the upper bound (such as `readBatchSize`, if the user set it); None for no bound."""
        self._target_s = target_s
        self._records_max = records_max
        self._records_per_s: float | None = None
        self._bytes_per_record = 0.0
        """Bytes of output for each input record."""

    @property
    def learned(self) -> bool:
        """Whether an answer has been seen."""
        return self._records_per_s is not None

    def answered(self, records_ahead: int, seconds: float) -> None:
        """Record that a call was answered `seconds` after it was sent; it and the calls before it held `records_ahead`
        records.

        That many records in that time is the function's rate, however many it processes concurrently (Little's law).
        """
        rate = records_ahead / max(seconds, 1e-6)
        known = self._records_per_s
        self._records_per_s = rate if known is None else 0.8 * known + 0.2 * rate

    def gave(self, records: int, size: int) -> None:
        """Record that the output of `records` records had `size` bytes. The estimate rises at once and falls slowly."""
        found = size / records
        self._bytes_per_record = max(found, 0.8 * self._bytes_per_record + 0.2 * found)

    def records(self) -> int:
        """Records in the next call."""
        if self._records_per_s is None:
            wanted = FIRST_SLICE_RECORDS
        else:
            wanted = max(1, int(self._records_per_s * self._target_s))
            if self._bytes_per_record * wanted > OUTPUT_BYTES_TARGET:
                wanted = max(1, int(OUTPUT_BYTES_TARGET / self._bytes_per_record))
        return wanted if self._records_max is None else min(wanted, self._records_max)

    def records_in_flight_max(self) -> int | None:
        """Maximum number of records in flight: a few slices, so that a slow function always has some waiting, and a
        stop waits for no more than these. None while the rate is unknown."""
        if self._records_per_s is None:
            return None
        return max(SLICES_IN_FLIGHT * self.records(), int(SLICES_IN_FLIGHT * self._records_per_s * self._target_s))
