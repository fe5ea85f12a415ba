"""The watermark of a source lane: where watermarks begin. Pure.

Above it: the source lane of the vertex process. Below it: nothing; times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.frame import Frame

_STEP_INTERVAL_S = 0.1
"""Between two steps of an idle source when its policy leaves `stepInterval` out."""
_TICK_GAP_MAX_S = 1.0
"""A longer gap between two ticks was this process asleep (paused, swapped out), not the source silent."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """How a silent source lets time pass: the spec's `idleSource`."""

    threshold_s: float
    """Silence for this long is being idle."""
    increment_by_s: float
    """How far the watermark moves in one step."""
    step_interval_s: float = 0.0
    """Between two steps; 0: a tenth of a second."""
    init_source_delay_s: float | None = None
    """A source that never gave anything starts at the present after this long; None: it stays at the start of time."""


class SourceWatermark:
    """Newest event time seen, less the delay that records may have.

    Observe a frame when its commit is made, in commit order, not when it is read: the watermark must not pass records
    that are read and not committed.
    """

    def __init__(
        self,
        *,
        max_delay_us: int = 0,
        idle: IdlePolicy | None = None,
        restored_us: int = START_OF_TIME_US,
    ) -> None:
        """`restored_us`: from the lane's mark, or its last entry in the OT store where that is later."""
        self._max_delay_us = max_delay_us
        self._policy = idle
        self._watermark_us = restored_us
        self._silence_s = 0.0
        self._step_due_s = 0.0
        self._ticked_s: float | None = None
        self.idle = False
        """The idle policy moves the watermark on."""
        self.ended = restored_us == END_OF_TIME_US
        """Nothing will follow."""

    @property
    def watermark_us(self) -> int:
        return self._watermark_us

    def observe(self, frame: Frame) -> int:
        """Take a frame in; returns how many of its records are late: older than the watermark was before it."""
        late = 0
        if frame.event_time_min_us < self._watermark_us:
            late = sum(time_us < self._watermark_us for time_us in frame.event_times_us())
        # A record that claims the end of time must not end the lane.
        self._raise_to(min(frame.event_time_max_us, END_OF_TIME_US - 1) - self._max_delay_us)
        self._hear()
        return late

    def tick(self, now_us: int, monotonic_s: float, *, waiting: bool = True) -> int:
        """The watermark now, moved on if the source is idle. Call it at every read that gave nothing, each second.

        `waiting`: nothing is read and uncommitted, so the source is silent, and not this lane slow.

        1. No policy, or ended: only data moves the watermark.
        2. Frames are on their way to their commit: silence has not begun.
        3. Nothing was ever seen: after the initial delay, the present.
        4. Silent for longer than the threshold: one step, then one per interval. Steps missed are not made up.
        Neither goes past the present less the delay, nor back.
        """
        gap_s = monotonic_s - self._ticked_s if self._ticked_s is not None else 0.0
        self._ticked_s = monotonic_s
        if self._policy is None or self.ended:
            return self._watermark_us
        if not waiting:
            self._hear()
            return self._watermark_us
        self._silence_s += min(gap_s, _TICK_GAP_MAX_S)
        present_us = now_us - self._max_delay_us
        if self._watermark_us == START_OF_TIME_US:
            delay_s = self._policy.init_source_delay_s
            if delay_s is not None and self._silence_s >= delay_s:
                self._step(present_us, present_us)
        elif self._silence_s >= max(self._policy.threshold_s, self._step_due_s):
            self._step(self._watermark_us + round(self._policy.increment_by_s * MICROSECONDS), present_us)
        return self._watermark_us

    def end(self) -> int:
        """Nothing will follow."""
        self._watermark_us = END_OF_TIME_US
        self.idle, self.ended = False, True
        return self._watermark_us

    def _step(self, to_us: int, present_us: int) -> None:
        assert self._policy is not None
        self.idle = True
        self._step_due_s = self._silence_s + (self._policy.step_interval_s or _STEP_INTERVAL_S)
        self._raise_to(min(to_us, present_us))

    def _hear(self) -> None:
        self._silence_s = 0.0
        self._step_due_s = 0.0
        self.idle = False

    def _raise_to(self, watermark_us: int) -> None:
        self._watermark_us = max(self._watermark_us, watermark_us)
