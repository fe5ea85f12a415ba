"""What a person sees of a run, on a real terminal, and what a log contains."""

import io
import os
import re
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.printable import printable_output
from millstream_runner.colours import Style
from millstream_runner.local.formatting import duration_text
from millstream_runner.local.progress import VertexProgress
from millstream_runner.local.scene import LINE_CHARS_MAX, PAGE_S, STALE_S, Scene, plain_lines, table
from millstream_runner.local.screen import (
    PLAIN_INTERVAL_S,
    PLAIN_LATER_INTERVAL_S,
    PLAIN_OFTEN_S,
    PlainScreen,
    Screen,
    TerminalScreen,
    choose_screen,
)
from millstream_runner.local.states import State
from tests.support.terminal import Terminal, open_terminal

VERTEX = VertexProgress("map", "map", 5, 1.0, 5, 0, 0.0, None, None, 0, ())
GLOSSARY = Path(__file__).parents[3] / "docs/glossary.md"


def scene(elapsed_s: float, state: str = "running") -> Scene:
    return Scene("p", state, elapsed_s, "fsync", [VERTEX], {"map": "running"})


def wide(vertices: int, elapsed_s: float = 0.0, *, name: str = "step") -> Scene:
    """Many vertices with large figures; the one before the last is slow."""
    found = [
        replace(
            VERTEX,
            vertex=f"{name}-{number}",
            records=1_234_567_890 - number,
            records_per_s=1_000_000.0,
            waiting=987_654,
            fill=0.9 if number in (1, vertices - 2) else 0.1,
            watermark_us=1_700_000_000_000_000,
            watermark_lag_s=1e9,
            has_input=number > 0,
            has_output=number < vertices - 1,
        )
        for number in range(vertices)
    ]
    states = {vertex.vertex: "running" for vertex in found}
    return Scene("orders", "running", elapsed_s, "fsync (verified)", found, states)


def drawn(terminal: Terminal, draw: Callable[[TerminalScreen], None]) -> list[str]:
    """What the terminal shows after that was drawn."""
    with terminal.stream() as stream:
        screen = choose_screen(stream, quiet=False)
        assert isinstance(screen, TerminalScreen)
        draw(screen)
        stream.write("THE END")
    terminal.until(lambda terminal: terminal.text.endswith("THE END"))
    return terminal.all[:-1]


def test_the_table_is_drawn_over_and_messages_stay_above_it() -> None:
    def draw(screen: TerminalScreen) -> None:
        for second in range(3):
            screen.show(scene(float(second)))
            screen.message(f"message {second}")
        screen.show(scene(3.0, "done"))
        screen.close()
        screen.message("after")

    with open_terminal() as terminal:
        shown = drawn(terminal, draw)
    assert shown[:3] == ["message 0", "message 1", "message 2"]
    assert shown[3].startswith("p  done  00:03")
    assert len(shown) == 7
    assert shown[-1] == "after"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_fits_the_width_and_names_what_does_not(columns: int) -> None:
    with open_terminal(columns) as terminal:
        shown = drawn(terminal, lambda screen: screen.show(wide(5, name="a-name-that-is-rather-long")))
    # Nothing is wrapped: a line each for the head, the header, five vertices and the slow one.
    assert len(shown) == (8 if columns == 120 else 9)
    assert all(len(line) < columns for line in shown)
    titles = shown[1].split()
    assert {"VERTEX", "RECORDS", "RATE/S", "WAITING", "STATE"} <= set(titles)
    left_out = [title for title in ("TYPE", "FULL", "WATERMARK") if title not in titles]
    assert bool(left_out) == (columns == 80)
    if left_out:
        assert shown[-1] == f"columns that do not fit this width: {', '.join(left_out)}"
    assert "slow: a-name-that-is-rather-l… (its input is 90% full)" in shown


def test_a_table_that_is_too_high_shows_every_vertex_in_turn() -> None:
    seen: set[str] = set()
    for page in range(3):
        with open_terminal(100, 16) as terminal:
            lines = drawn(terminal, lambda screen, page=page: screen.show(wide(30, page * PAGE_S)))  # type: ignore[misc]
        assert lines[0].startswith("orders  running")
        assert lines[1].startswith("VERTEX")
        assert len(lines) == 15
        remark = next(line for line in lines if line.startswith("vertices "))
        found = re.fullmatch(r"vertices (\d+)-(\d+) of 30, (\d+) not shown \(page \d of 3, turns every 4 s\)", remark)
        assert found is not None, remark
        rows = [line.split()[0] for line in lines if line.startswith("step-")]
        assert len(rows) == int(found[2]) - int(found[1]) + 1 == 30 - int(found[3])
        seen.update(rows)
    assert seen == {f"step-{number}" for number in range(30)}


def test_at_the_end_the_whole_table_stays_however_high_it_is() -> None:
    def draw(screen: TerminalScreen) -> None:
        screen.show(wide(30))
        screen.show(replace(wide(30), state="done"))
        screen.close()

    with open_terminal(100, 16) as terminal:
        lines = drawn(terminal, draw)
    assert [line.split()[0] for line in lines if line.startswith("step-")] == [f"step-{n}" for n in range(30)]
    assert len(lines) == 32


@pytest.mark.parametrize("height", range(1, 8))
def test_the_lowest_terminal_says_what_is_missing(height: int) -> None:
    lines = table(wide(30), 79, height)
    assert len(lines) <= height
    assert lines[0].startswith("orders  running")
    assert height == 1 or any("not shown" in line for line in lines)


def test_a_terminal_that_becomes_narrower_loses_no_line_above_the_table() -> None:
    with open_terminal(120, 20) as terminal:

        def draw(screen: TerminalScreen) -> None:
            screen.message("a message")
            screen.show(wide(3))
            terminal.resize(80, 20)
            screen.show(wide(3, 1.0))
            screen.show(wide(3, 2.0))

        shown = drawn(terminal, draw)
    assert shown[0] == "a message"
    assert sum(line.startswith("orders") for line in shown) == 2
    assert shown[-1].startswith("columns that do not fit")


def test_a_terminal_that_does_not_know_its_size_gets_a_table_all_the_same() -> None:
    with open_terminal() as terminal, terminal.stream() as stream:
        termios.tcsetwinsize(stream.fileno(), (0, 0))
        choose_screen(stream, quiet=False).show(scene(1.0))
        terminal.until(lambda terminal: terminal.text.startswith("p  running  00:01"))


def test_figures_that_the_broker_has_not_confirmed_are_marked_with_their_age() -> None:
    fresh, stale = scene(20.0), replace(scene(20.0), age_s=7.4)
    text = "the figures are 00:07 old: the broker does not answer"
    assert text in table(stale)
    assert text not in table(fresh)
    assert text not in table(replace(stale, age_s=STALE_S / 2))
    # What is over does not age.
    assert text not in table(replace(stale, state="done"))
    assert plain_lines(stale) == [f"00:20 running: {text}"]


def test_a_start_says_what_it_waits_for_instead_of_zeros() -> None:
    silent = replace(VERTEX, published=False)
    starting = replace(scene(2.0, "starting"), vertices=[silent], waits_for="map (0 of 1 vertices are there)")
    lines = table(starting)
    assert lines[1] == "waits for: map (0 of 1 vertices are there)"
    assert "0" not in lines[3]
    assert plain_lines(starting) == ["00:02 starting: waits for map (0 of 1 vertices are there)"]
    # The state has said so, and the figures have the room.
    spark = replace(scene(2.0, "waiting for Spark"), waits_for="Spark, which computes the windows")
    (line,) = plain_lines(spark)
    assert line.startswith("00:02 waiting for Spark: in ")
    assert "waits for" not in line


def test_lines_without_a_terminal_are_short_and_name_what_is_slow_and_what_does_not_run() -> None:
    many = wide(40, 360_000.0, name="a-name-that-is-as-long-as-names-may-be")
    states = dict.fromkeys(many.states, "1 running, 1 restarting, restarted 12x")
    lines = plain_lines(replace(many, states=states))
    assert len(lines) == 2
    assert all(len(line) <= LINE_CHARS_MAX for line in lines)
    assert lines[0].endswith("waiting")
    assert "slow: a-name-that-is-as-long-…" in lines[1]
    few = wide(3, 5.0)
    few = replace(few, vertices=[replace(one, records=1000, records_per_s=10.0, waiting=0) for one in few.vertices])
    (line, remarks) = plain_lines(replace(few, states={**few.states, "step-2": "restarting, restarted 1x"}))
    assert line == "00:05 running: in 1,000 (10/s), out 1,000 (10/s)"
    assert remarks.strip() == "slow: step-1 (its input is 90% full); step-2: restarting, restarted 1x"


def test_the_vertex_that_is_called_slow_is_the_last_with_a_full_input() -> None:
    many = wide(6)
    slow = many.slow
    assert slow is not None
    assert slow.vertex == "step-4"
    assert replace(many, state="done").slow is None
    behind = replace(many.vertices[5], fill=0.1, holds_up=0.8)
    chain = replace(many, vertices=[*many.vertices[:5], behind])
    assert chain.slow == behind
    assert table(chain)[-1] == f"slow: {behind.vertex} (its chain waits for it 80% of the time)"


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    stream = io.StringIO()
    screen = choose_screen(stream, quiet=False)
    assert isinstance(screen, PlainScreen)
    seconds = 3 * PLAIN_OFTEN_S
    for tick in range(int(seconds) * 2 + 1):
        screen.show(scene(tick / 2))
    screen.show(scene(seconds + 0.5, "draining"))
    lines = stream.getvalue().splitlines()
    # From 0 s to 55 s, from 85 s to 175 s, and the new state.
    assert len(lines) == PLAIN_OFTEN_S / PLAIN_INTERVAL_S + (seconds - PLAIN_OFTEN_S) / PLAIN_LATER_INTERVAL_S + 1
    assert lines[-1].startswith("03:00 draining: ")
    assert "\x1b" not in stream.getvalue()


def test_dead_letters_are_not_results() -> None:
    results = replace(VERTEX, vertex="out", records=30, has_output=False)
    letters = replace(VERTEX, vertex="dlq", records=4, has_output=False, takes_dead_letters=True)
    source = replace(VERTEX, vertex="in", records=34, has_input=False)
    done = replace(scene(3.0, "done"), vertices=[source, results, letters], states={})
    assert plain_lines(done) == ["00:03 done: in 34, out 30, 4 dead letters"]


def test_quiet_shows_messages_only() -> None:
    stream = io.StringIO()
    screen = choose_screen(stream, quiet=True)
    assert type(screen) is Screen
    screen.show(scene(100.0))
    screen.message("warning")
    assert stream.getvalue() == "warning\n"


def test_a_terminal_that_has_gone_away_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as gone, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", gone)
        with printable_output() as printed:
            screen = PlainScreen(sys.stderr)
            screen.message("unheard")
            screen.show(scene(100.0))
    assert printed.error is None


def test_records_and_progress_share_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    screen = TerminalScreen(stream)
    screen.show(scene(1.0))
    before = len(stream.getvalue())
    with screen.printing(), screen.printing():
        erased = stream.getvalue()[before:]
        screen.message("later")
        screen.show(scene(2.0))
        assert stream.getvalue()[before:] == erased
    after = stream.getvalue()[before + len(erased) :]
    assert after.startswith("later\n")
    assert "00:02" in after


def test_every_state_stands_in_the_glossary() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \|", text.partition("## States")[2], re.MULTILINE)
    assert set(rows) == {state.value for state in State}


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (0.9, 61, 3725)] == ["00:00", "01:01", "1:02:05"]


@pytest.mark.parametrize(
    ("terminal", "shown"), [(True, f"{Style.WARNING.value}warning:\x1b[0m late\n"), (False, "warning: late\n")]
)
def test_what_is_said_while_it_runs_has_colours_at_a_terminal(
    terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    choose_screen(stream, quiet=True).message("warning: late")
    assert stream.getvalue() == shown
