"""What is drawn, and that it is drawn over."""

import io
import re

import pytest

from millstream_runner.local.progress import VertexProgress
from millstream_runner.local.screen import (
    PLAIN_INTERVAL_S,
    NoScreen,
    PlainScreen,
    Scene,
    TerminalScreen,
    choose_screen,
    duration_text,
)

VERTEX = VertexProgress("map", "map", 5, 1.0, 5, 0, 0.0, None, None, 0, ())


def scene(elapsed_s: float, state: str = "running") -> Scene:
    return Scene("p", state, elapsed_s, "fsync", [VERTEX], {"map": "running"})


class Terminal(io.StringIO):
    """Keeps the lines a terminal would show."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        lines: list[str] = []
        for part in re.split(r"(\x1b\[\d+F\x1b\[J)", self.getvalue()):
            if move := re.fullmatch(r"\x1b\[(\d+)F\x1b\[J", part):
                lines = lines[: -int(move[1])]
            else:
                lines += part.splitlines()
        return lines


def test_the_table_is_drawn_over_and_messages_stay_above_it() -> None:
    terminal = Terminal()
    screen = choose_screen(terminal, quiet=False)
    assert isinstance(screen, TerminalScreen)
    for second in range(3):
        screen.show(scene(float(second)))
        screen.message(f"message {second}")
    screen.show(scene(3.0, "ended"))
    shown = terminal.shown()
    assert shown[:3] == ["message 0", "message 1", "message 2"]
    assert shown[3].startswith("p  ended  00:03")
    assert len(shown) == 6
    screen.close()
    screen.message("after")
    assert terminal.shown() == [*shown, "after"]


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    screen = choose_screen(stream, quiet=False)
    assert isinstance(screen, PlainScreen)
    for tick in range(int(2 * PLAIN_INTERVAL_S) * 2 + 1):
        screen.show(scene(tick / 2))
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


def test_quiet_shows_messages_only(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    screen = choose_screen(stream, quiet=True)
    assert isinstance(screen, NoScreen)
    screen.show(scene(100.0))
    screen.message("warning")
    screen.output([b'{"value": 1}', b"\xff"])
    assert stream.getvalue() == "warning\n"
    assert capsys.readouterr().out == '{"value": 1}\n\\xff\n'


def test_a_terminal_that_has_gone_away_does_not_stop_a_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    PlainScreen(Gone()).message("unheard")


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (0.9, 61, 3725)] == ["00:00", "01:01", "1:02:05"]
