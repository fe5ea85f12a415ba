"""How much a lane does at a time, and how long it waits for more: in a call, in flight, before a commit and before it
publishes.

    Slicer      records in a call, so that it takes about a target time and its output fits into a commit
    bound_by    what is in flight: enough to keep functions and commits busy. More would only wait, in memory
    Linger      how long a commit with output waits for more: not at all, or a few milliseconds, if that has paid off
    Little      progress that may be published some tens of milliseconds later, and committed later if it has no output

Above it: the lane, its core, and `settings`, which derives thresholds from the pipeline. It knows times and counts; it
does not know what a unit is, or what waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.limits import (
    COMMIT_BYTES_MAX,
    COMMIT_LINGER_BYTES_MAX,
    COMMIT_LINGER_RECORDS_MAX,
    COMMIT_LINGER_S,
    FUNCTION_BYTES_MAX,
)
from millstream_reader.tracker import Tracker, UnansweredBounds

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


_PIECES = 2
"""Pieces of any size for each function: the one that it processes, and the next one."""


def bound_by(tracker: Tracker, concurrencies: Sequence[int], ahead_bytes_max: int) -> None:
    """Bound the work of a lane.

    `concurrencies`: how many records each function that they pass in the lane processes concurrently; 0: unknown.
    `ahead_bytes_max`: bytes that the functions may have answered and the output has not taken.
    """
    if any(one != 1 for one in concurrencies):
        # A function that waits for something else may need everything at once.
        return
    functions = len(concurrencies)
    unanswered = UnansweredBounds(_PIECES * functions, FUNCTION_BYTES_MAX * functions) if functions else None
    tracker.bound(ahead_bytes_max + FUNCTION_BYTES_MAX * functions, unanswered)


_PROBE_EVERY = 16
"""One in this many commits without a wait waits as a probe, to see whether more units arrive."""
_FORGET = 8
"""Number of units after which the earlier pace hardly counts."""
_SLACK = 1.25
"""The first wait is this multiple of the time between two units, because units do not arrive at exact intervals."""
_REST = 4
"""A lane without a commit for this many of the longest waits is idle: the pace of the next units is unknown."""


class Linger:
    """The waits of one lane. All times are those of one monotonic clock."""

    def __init__(self, longest_s: float = COMMIT_LINGER_S) -> None:
        self._longest_s = longest_s
        self._wait_s = 0.0
        self._apart_s = longest_s
        """Recent average time from one unit to the next."""
        self._without = 0
        """Commits since the last wait."""
        self._last_s: float | None = None
        """Time at which the last commit began."""
        self._probed = False
        self._missed = False
        """Whether no unit arrived during the last wait."""

    def begin(self, now_s: float, records: int, size: int) -> float:
        """How long a commit that could begin now should wait for more; `records` and `size` (bytes) already wait."""
        self._probed = False
        if self._last_s is None or now_s - self._last_s > _REST * self._longest_s:
            self._wait_s, self._apart_s, self._without = 0.0, self._longest_s, 0
            return 0.0
        if enough(records, size):
            return 0.0
        if self._wait_s:
            return self._wait_s
        self._without += 1
        if self._apart_s >= self._longest_s or self._without < _PROBE_EVERY:
            return 0.0
        self._without, self._probed = 0, True
        return min(self._longest_s, _SLACK * self._apart_s)

    def expects_more(self, left_s: float) -> bool:
        """Whether, after a unit has arrived during a wait, another is likely in the `left_s` that remain."""
        return self._apart_s <= left_s

    def end(self, now_s: float, units: int, waited_s: float, came: int) -> None:
        """Record that the commit of `units` begins now; `came` of them arrived during a wait of `waited_s`."""
        if self._last_s is not None and units:
            apart_s = min((now_s - self._last_s) / units, self._longest_s)
            self._apart_s += (apart_s - self._apart_s) * min(1.0, units / _FORGET)
        self._last_s = now_s
        if not waited_s:
            return
        missed, self._missed = self._missed, not came
        if came:
            self._wait_s = min(self._longest_s, 2 * max(waited_s, self._wait_s))
        elif self._probed or missed:
            # Waiting gains nothing if the sender waits for each answer before it sends again.
            self._wait_s = 0.0 if self._probed else self._wait_s / 2
            # A wait that is shorter than the time between two units gains nothing either.
            if self._wait_s < max(self._apart_s, self._longest_s / 8):
                self._wait_s = 0.0


def enough(records: int, size: int) -> bool:
    """Whether this much is worth a separate commit. `size`: bytes."""
    return records >= COMMIT_LINGER_RECORDS_MAX or size >= COMMIT_LINGER_BYTES_MAX


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
