"""Durable steps: listeners hear of each, and a process that is asked to die at one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from millstream import codes
from millstream.durable import CRASH_AT, crash_at, listen, step
from tests.support.errors import raises

STEPS = """\
import sys
from millstream.durable import step

for vertex in ("in", "sum", "in", "sum"):
    with step("log.entries.sync", vertex):
        print(vertex, flush=True)
"""


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    points: list[tuple[str, str]] = []
    listen(lambda point, vertex: points.append((point, vertex)))
    yield points
    listen(None)


def test_a_listener_is_told_of_both_points_of_a_step(heard: list[tuple[str, str]]) -> None:
    with step("a.write", "sum"), step("a.sync"):
        heard.append(("inside", ""))
    assert heard == [
        ("a.write:before", "sum"),
        ("a.sync:before", ""),
        ("inside", ""),
        ("a.sync:after", ""),
        ("a.write:after", "sum"),
    ]


def test_a_step_that_fails_has_no_after(heard: list[tuple[str, str]]) -> None:
    with pytest.raises(OSError, match="full"), step("a.write"):
        raise OSError("full")
    assert heard == [("a.write:before", "")]


def test_steps_of_other_threads_are_told_too(heard: list[tuple[str, str]]) -> None:
    def run() -> None:
        with step("a.write"):
            pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert [point for point, _ in heard] == ["a.write:before", "a.write:after"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("point", "done"),
    [
        ("log.entries.sync:before", 0),
        ("log.entries.sync:after", 1),
        ("log.entries.sync:before#3", 2),
        ("log.entries.sync:after#2@sum", 4),
        ("log.entries.sync:before@sum", 1),
        ("log.entries.sync:after#5", None),
        ("log.entries.sync:after@out", None),
        ("log.entries.write:after", None),
    ],
)
def test_a_process_dies_at_the_point_it_is_told(point: str, done: int | None) -> None:
    command = [sys.executable, "-c", STEPS]
    ended = subprocess.run(command, env={**os.environ, CRASH_AT: point}, capture_output=True, timeout=30, check=False)
    assert ended.returncode == (0 if done is None else -signal.SIGKILL)
    assert len(ended.stdout.split()) == (4 if done is None else done)


@pytest.mark.parametrize("text", ["", "log.entries.sync", "log:after", "log.entries.sync:during", "a.b:after#0"])
def test_a_point_of_another_form_is_refused(text: str) -> None:
    with raises(codes.OPTION_VALUE):
        crash_at(text)
