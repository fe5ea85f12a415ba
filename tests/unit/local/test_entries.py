"""What is shown of what vertices log: not too much at once, and nothing twice in a row."""

from __future__ import annotations

import sys

from millstream.telemetry.logging import NOTICE
from millstream_runner.local.display import ShownEntries
from millstream_runner.local.recording import Recording
from millstream_runner.local.screen import MESSAGES_PER_S, Screen


class _Screen(Screen):
    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


class _Clock:
    time_s = 1000.0

    def now_us(self) -> int:
        return int(self.time_s * 1_000_000)

    def monotonic_s(self) -> float:
        return self.time_s


def _entry(text: str) -> dict[str, str]:
    return {"level": "warning", "vertex": "map", "message": text}


def test_the_same_line_is_shown_again_only_after_a_while() -> None:
    screen, clock = _Screen(), _Clock()
    entries = ShownEntries(screen, clock, Recording())
    assert entries.show(_entry("waits"))
    assert entries.show(_entry("waits"))
    assert len(screen.messages) == 1
    clock.time_s += 31
    assert entries.show(_entry("waits"))
    assert len(screen.messages) == 2


def test_of_too_many_lines_in_a_second_the_rest_is_counted() -> None:
    screen, clock = _Screen(), _Clock()
    entries = ShownEntries(screen, clock, Recording())
    shown = [entries.show(_entry(f"line {number}")) for number in range(MESSAGES_PER_S + 3)]
    assert shown == [True] * MESSAGES_PER_S + [False] * 3
    clock.time_s += 1
    assert entries.show(_entry("later"))
    assert screen.messages[-2:][0] == "... and 3 more lines: see `millstream logs`"


def test_repeats_are_counted() -> None:
    screen, clock = _Screen(), _Clock()
    entries = ShownEntries(screen, clock, Recording())
    for _ in range(3):
        entries.show(_entry("waits"))
    clock.time_s += 60
    entries.show(_entry("waits"))
    assert screen.messages[1:] == ["warning: : waits (2 more times since it was last shown)"]


def test_a_notice_is_shown_each_time_and_once_for_all_replicas() -> None:
    screen, clock = _Screen(), _Clock()
    entries = ShownEntries(screen, clock, Recording())
    notice = {"level": "info", "vertex": "map", "message": "f.py changed", NOTICE: True}
    for _ in range(2):
        for replica in ("map-0", "map-1"):
            entries.show({**notice, "process": replica})
        clock.time_s += 2
    assert screen.messages == ["map-0: f.py changed"] * 2
    entries.show({**notice, "level": "error", "process": "map-0", "message": "no", "code": "MS-3101"})
    assert screen.messages[-1] == "error[MS-3101]: map-0: no"
