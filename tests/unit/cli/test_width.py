"""Lines that `millstream run` and `millstream doctor` end with fit 80 columns, as far as no single word is longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream_runner.cli import doctor
from millstream_runner.cli.run import result_lines
from millstream_runner.doctor.checks import CheckState, Finding
from millstream_runner.local.formatting import folded
from millstream_runner.local.replica import Failure
from millstream_runner.local.run import ABORTED, RunResult
from millstream_runner.local.summary import Summary
from tests.support.widths import WIDTH

TEN_HOURS_S = 36_000.0


@pytest.mark.parametrize("had_ended", [True, False])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("failed", [True, False])
@pytest.mark.parametrize("exit_code", [0, 3, ABORTED])
def test_how_a_run_went(exit_code: int, failed: bool, ended: bool, had_ended: bool) -> None:
    summary = Summary((), (), ())
    failure = Failure("price-0", 3, "ended", "it failed") if failed else None
    shown = summary if ended else None
    directory = Path("/data/.millstream/orders")
    result = RunResult(exit_code, failure, shown, directory, TEN_HOURS_S, had_ended=had_ended)
    lines = result_lines(result, WIDTH)
    assert lines[-1] == "data directory: /data/.millstream/orders"
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("state", list(CheckState))
def test_each_part_of_a_finding_is_folded(state: CheckState, capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["some words about it"] * 10)
    doctor._show(Finding("Memory", state, long, needed_for=long, remedy=long))
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert " ".join(text.split()) == f"{state.value} Memory: {long} for {long} to do: {long}"


def test_code_stays_whole() -> None:
    command = "`millstream run orders.yaml --fresh --move-outputs`"
    assert folded(f"next: change the file functions.py and then run {command} now", WIDTH, indent=6) == [
        "next: change the file functions.py and then run",
        f"      {command} now",
    ]
    assert folded("", WIDTH) == [""]
    assert folded("a word", 4, indent=1, used=3) == ["a", " word"]
