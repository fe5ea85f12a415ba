"""How long a lane's next commit waits for more to come with it: not at all, or a few milliseconds.

    units ─► more to come soon? ─► wait ─► one commit for all of them
               │    ▲
               no   └── what waits before have brought

A commit costs the same for one record as for hundreds, in the lane and in the broker. Above it: `lane`, which waits and
commits. It knows times and counts; it does not know what a unit is.
"""

from __future__ import annotations

from millstream.limits import COMMIT_LINGER_BYTES_MAX, COMMIT_LINGER_RECORDS_MAX, COMMIT_LINGER_S

_PROBE_EVERY = 16
"""Of so many commits without a wait one waits, to see whether it brings something."""
_FORGET = 8
"""Units after which the pace before them hardly counts."""
_SLACK = 1.25
"""The first wait is so many times what one unit takes to arrive: none comes to the microsecond."""
_REST = 4
"""A lane without a commit for so many of the longest waits has come to rest: nothing is known of the pace of what comes
then."""


class Linger:
    """The waits of one lane. All times are those of one monotonic clock."""

    def __init__(self, longest_s: float = COMMIT_LINGER_S) -> None:
        self._longest_s = longest_s
        self._wait_s = 0.0
        self._apart_s = longest_s
        """From one unit to the next, lately."""
        self._without = 0
        """Commits since the last wait."""
        self._last_s: float | None = None
        """When the last commit began."""
        self._probed = False
        self._missed = False
        """The last wait brought nothing."""

    def begin(self, now_s: float, records: int, size: int) -> float:
        """A commit could begin now. How long should it wait for more? `records` and `size` (bytes) wait already."""
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
        """Something has come in the course of a wait. Is another unit likely in what is left of it?"""
        return self._apart_s <= left_s

    def end(self, now_s: float, units: int, waited_s: float, came: int) -> None:
        """The commit of `units` begins now, of which `came` in the course of a wait of `waited_s`."""
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
            # A sender that waits for one answer before it sends again gains nothing.
            self._wait_s = 0.0 if self._probed else self._wait_s / 2
            # Nor does a wait that is shorter than one unit takes.
            if self._wait_s < max(self._apart_s, self._longest_s / 8):
                self._wait_s = 0.0


def enough(records: int, size: int) -> bool:
    """Whether so much is worth a commit of its own. `size`: bytes."""
    return records >= COMMIT_LINGER_RECORDS_MAX or size >= COMMIT_LINGER_BYTES_MAX
