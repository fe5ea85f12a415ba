"""Decides how long a lane's next commit waits for more units: not at all, or a few milliseconds.

    units ─► more to come soon? ─► wait ─► one commit for all of them
               │    ▲
               no   └── the gains of earlier waits

A commit costs the same for one record as for hundreds, in the lane and in the broker. Above it: `lane`, which waits and
commits. It knows times and counts; it does not know what a unit is.
"""

from __future__ import annotations

from millstream.limits import COMMIT_LINGER_BYTES_MAX, COMMIT_LINGER_RECORDS_MAX, COMMIT_LINGER_S

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
