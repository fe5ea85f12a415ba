"""Selects the log entries of vertices that the screen has room for.

Above it: the run. Below it: the screen. The log files have all entries, whatever is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from millstream.clock import Clock
from millstream.telemetry.logging import NOTICE
from millstream_runner.local.logfiles import short_entry
from millstream_runner.local.recording import Recording
from millstream_runner.local.screen import MESSAGES_PER_S, Screen

_REPEAT_S = 30.0
"""Time after which the same line of a vertex is shown again."""
_NOTICE_S = 1.0
"""The same for a notice."""
_REMEMBERED_MAX = 1000


class ShownEntries:
    """Shows warnings and worse, at a bounded rate, and repeats the same one only after a while."""

    def __init__(self, screen: Screen, clock: Clock, recording: Recording) -> None:
        self._screen = screen
        self._clock = clock
        self._recording = recording
        self._begun_s = clock.monotonic_s()
        self._count = 0
        """Entries shown or omitted since `_since_s`."""
        self._since_s = 0.0
        self._shown_s: dict[str, float] = {}
        """When each text was last shown."""
        self._repeats: Counter[str] = Counter()
        """How often each has occurred since."""

    def say(self, entry: Mapping[str, Any]) -> None:
        """Show an entry, no matter how many there are."""
        self._recording.entry(self._clock.monotonic_s() - self._begun_s, entry)
        self._screen.message(short_entry(entry))

    def show(self, entry: Mapping[str, Any]) -> bool:
        """Show an entry, unless there are too many. Returns whether it was shown."""
        now_s = self._clock.monotonic_s()
        self._recording.entry(now_s - self._begun_s, entry)
        if now_s - self._since_s >= 1.0:
            if self._count > MESSAGES_PER_S:
                left_out = self._count - MESSAGES_PER_S
                self._screen.message(f"... and {left_out} more lines: see `millstream logs`")
            self._since_s, self._count = now_s, 0
        text = short_entry(entry)
        # Lanes that wait for something say so at every attempt. A notice is about a moment, and each replica sends one.
        notice = bool(entry.get(NOTICE))
        key = f"{entry.get('vertex') or entry.get('process')}: {entry.get('message')}" if notice else text
        if now_s - self._shown_s.get(key, -_REPEAT_S) < (_NOTICE_S if notice else _REPEAT_S):
            self._repeats[key] += not notice
            return True
        if len(self._shown_s) > _REMEMBERED_MAX:
            self._shown_s.clear()
            self._repeats.clear()
        self._count += 1
        if self._count > MESSAGES_PER_S:
            return False
        self._shown_s[key] = now_s
        times = self._repeats.pop(key, 0)
        self._screen.message(f"{text} ({times} more times since it was last shown)" if times else text)
        return True
