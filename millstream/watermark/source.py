"""The watermark of a source lane, from which all other watermarks follow. Pure.

Above it: the source lane of the vertex process. Below it: nothing; times are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.clock import END_OF_TIME_US, MICROSECONDS, START_OF_TIME_US
from millstream.frame import Frame

_STEP_INTERVAL_S = 0.1
"""Time between two steps of an idle source if its policy does not set `stepInterval`."""
_TICK_GAP_MAX_S = 1.0
"""A longer gap between two ticks means that this process was paused or swapped out, not that the source was silent."""

_READ_AGAIN_S = 1.0
"""After a source could not be read, what it has had meanwhile arrives within this time."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """How the watermark of a silent source advances: the spec's `idleSource`."""

    threshold_s: float
    """A source is idle after it was silent for this long."""
    increment_by_s: float
    """How far the watermark moves in one step."""
    step_interval_s: float = 0.0
    """Time between two steps; 0: a tenth of a second."""
    init_source_delay_s: float | None = None
    """After this long, the watermark of a source that never had a record moves to the present; None: it stays at the
    start of time."""


class SourceWatermark:
    """The newest event time seen, minus the delay that records may have.

    Observe frames when their commit is created, in commit order, not when they are read: the watermark must not pass
    records that are read and not committed.
    """

    def __init__(
        self,
        *,
        max_delay_us: int = 0,
        idle: IdlePolicy | None = None,
        restored_us: int = START_OF_TIME_US,
    ) -> None:
        """`restored_us`: the watermark in the lane's mark, or in its last entry in the OT store if that is later."""
        self._max_delay_us = max_delay_us
        self._policy = idle
        self.watermark_us = restored_us
        self._silence_s = 0.0
        self._step_due_s = 0.0
        self._ticked_s: float | None = None
        self.idle = False
        """Whether the idle policy advances the watermark now."""
        self.ended = restored_us == END_OF_TIME_US
        """Whether no further record will follow."""

    @property
    def moves_by_itself(self) -> bool:
        """Whether `tick` may move the watermark. If not, only records do."""
        return self._policy is not None

    def observe(self, frame: Frame) -> int:
        """Process a frame. Returns how many of its records are late: older than the watermark before the frame."""
        late = frame.late_records(self.watermark_us)
        # A record whose event time is the end of time must not end the lane.
        self._raise_to(min(frame.event_time_max_us, END_OF_TIME_US - 1) - self._max_delay_us)
        self._hear()
        return late

    def tick(self, now_us: int, monotonic_s: float, *, waiting: bool = True, held_up: bool = False) -> int:
        """The current watermark, advanced if the source is idle. Call it after every read without records, once a
        second.

        `waiting`: everything that was read is committed, so the source is silent, rather than this lane slow.
        `held_up`: the source may have records that cannot be read or accepted now.

        1. There is no policy, or the source has ended: only data moves the watermark.
        2. Some frames are not committed yet: the silence has not begun.
        3. The source cannot be read: this time is not silence, and neither is the first second after it, or the
           threshold if that is shorter.
        4. No record was ever seen: after the initial delay, the watermark moves to the present.
        5. The source was silent for longer than the threshold: the watermark advances by one step, then by one step per
           interval. Missed steps are not caught up.
        The watermark never passes the present minus the delay, and never goes back.
        """
        gap_s = monotonic_s - self._ticked_s if self._ticked_s is not None else 0.0
        self._ticked_s = monotonic_s
        if self._policy is None or self.ended:
            return self.watermark_us
        if not waiting:
            self._hear()
            return self.watermark_us
        if held_up:
            self._interrupt()
            return self.watermark_us
        self._silence_s += min(gap_s, _TICK_GAP_MAX_S)
        present_us = now_us - self._max_delay_us
        if self.watermark_us == START_OF_TIME_US:
            delay_s = self._policy.init_source_delay_s
            if delay_s is not None and self._silence_s >= delay_s:
                self._step(present_us, present_us)
        elif self._silence_s >= max(self._policy.threshold_s, self._step_due_s):
            self._step(self.watermark_us + round(self._policy.increment_by_s * MICROSECONDS), present_us)
        return self.watermark_us

    def end(self) -> int:
        """Move the watermark to the end of time: no further record will follow."""
        self.watermark_us = END_OF_TIME_US
        self.idle, self.ended = False, True
        return self.watermark_us

    def _step(self, to_us: int, present_us: int) -> None:
        assert self._policy is not None
        self.idle = True
        self._step_due_s = self._silence_s + (self._policy.step_interval_s or _STEP_INTERVAL_S)
        self._raise_to(min(to_us, present_us))

    def _hear(self) -> None:
        self._silence_s = 0.0
        self._step_due_s = 0.0
        self.idle = False

    def _interrupt(self) -> None:
        """Continue the silence later. A source that loses its connection often must still become idle."""
        assert self._policy is not None
        limit_s = self._policy.threshold_s
        if self.watermark_us == START_OF_TIME_US:
            limit_s = self._policy.init_source_delay_s or limit_s
        cut_s = max(0.0, self._silence_s - max(0.0, limit_s - _READ_AGAIN_S))
        self._silence_s -= cut_s
        self._step_due_s = max(0.0, self._step_due_s - cut_s)
        self.idle = False

    def _raise_to(self, watermark_us: int) -> None:
        self.watermark_us = max(self.watermark_us, watermark_us)
