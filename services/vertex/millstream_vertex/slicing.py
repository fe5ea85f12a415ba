"""How many records to hand to a function at a time, so that one call stays near a target time and what it gives fits a
commit. Pure."""

from __future__ import annotations

from millstream.limits import COMMIT_BYTES_MAX

FIRST_SLICE_RECORDS = 64
"""Records in the first call, when nothing is known of the function."""

SLICES_IN_FLIGHT = 4
"""Slices that are begun at a time: what a lane still has to finish when it is asked to stop."""


OUTPUT_BYTES_TARGET = COMMIT_BYTES_MAX // 2
"""What a call may give: some records become more than others."""


class Slicer:
    """Learns a function's rate from its answers."""

    def __init__(self, *, target_s: float, records_max: int | None) -> None:
        """`records_max`: never more than this (`readBatchSize`, where the user set it); None for no bound."""
        self._target_s = target_s
        self._records_max = records_max
        self._records_per_s: float | None = None
        self._bytes_per_record = 0.0
        """Of outputs, for each record handed over."""

    @property
    def learned(self) -> bool:
        """An answer has been seen."""
        return self._records_per_s is not None

    def answered(self, records_ahead: int, seconds: float) -> None:
        """A call was answered `seconds` after it was sent, when it and the calls before it held `records_ahead`
        records.

        That many records in that time is the function's rate, however many it works on at once (Little's law).
        """
        rate = records_ahead / max(seconds, 1e-6)
        known = self._records_per_s
        self._records_per_s = rate if known is None else 0.8 * known + 0.2 * rate

    def gave(self, records: int, size: int) -> None:
        """The function made outputs of `size` bytes of so many records. More is believed at once, less in time."""
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
        """Records that may be begun and not finished: a few slices, so that a slow function has always some waiting,
        and a request to stop need not wait for more. None while nothing is known."""
        if self._records_per_s is None:
            return None
        return max(SLICES_IN_FLIGHT * self.records(), int(SLICES_IN_FLIGHT * self._records_per_s * self._target_s))
