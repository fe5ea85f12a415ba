"""A file sink killed or paused at every step it takes: each record is in one file, once, and no file ever changes."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import FencedError
from tests.contract.sinks.file_sink_process import REFUSED_EVERY
from tests.contract.sinks.file_target import finished_files, leftovers, numbers_in
from tests.support.sizes import sized
from tools.style import REPOSITORY

RECORDS = 5000
STORED = [number for number in range(RECORDS) if number % REFUSED_EVERY]
ANSWER_S = 30.0

STEPS = ["write", "fsync", "rename", "directory fsync", "mark"]
KILLS = [(step, when, times) for step in STEPS for when in ("before", "after") for times in (2, 3)]


class SinkProcesses:
    """Starts processes that deliver into one directory, one epoch after another."""

    def __init__(self, starter: subprocess.Popen[str], path: Path, file_format: str) -> None:
        self._starter = starter
        self._path = path
        self._format = file_format
        self._epoch = 0

    def run(
        self, step: str = "never", when: str = "", times: int = 0, signal_number: int = signal.SIGKILL
    ) -> dict[str, int]:
        self._epoch += 1
        return self.ask(
            path=str(self._path),
            format=self._format,
            epoch=self._epoch,
            records=RECORDS,
            step=step,
            when=when,
            times=times,
            signal=signal_number,
        )

    def ask(self, **run: Any) -> dict[str, int]:
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._starter.stdin.write(json.dumps(run) + "\n")
        self._starter.stdin.flush()
        ready, _, _ = select.select([self._starter.stdout], [], [], ANSWER_S)
        assert ready, f"no answer within {ANSWER_S} s"
        answer: dict[str, int] = json.loads(self._starter.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def starter() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.contract.sinks.file_sink_process"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["jsonl", pytest.param("csv", marks=pytest.mark.sweep), "parquet"])
def processes(request: pytest.FixtureRequest, starter: subprocess.Popen[str], tmp_path: Path) -> SinkProcesses:
    return SinkProcesses(starter, tmp_path / "out", request.param)


def account_of(path: Path) -> dict[str, Any]:
    account: dict[str, Any] = json.loads(path.with_suffix(".mark").read_text())["account"]
    return account


@pytest.mark.guarantee("I1", "I2", "I6", "I8")
def test_each_record_is_stored_once_whatever_step_is_the_last(processes: SinkProcesses, tmp_path: Path) -> None:
    path = tmp_path / "out"
    seen: dict[str, bytes] = {}
    for step, when, times in KILLS[:: sized(5, 1)]:
        assert processes.run(step, when, times)["ended"] == -signal.SIGKILL, (step, when, times)
        now = {file.name: file.read_bytes() for file in finished_files(path)}
        assert seen.items() <= now.items(), f"a finished file was changed or withdrawn after {when} {step}"
        seen = now
        numbers = numbers_in(path)
        assert numbers == STORED[: len(numbers)], f"after {when} {step}"
    assert processes.run()["ended"] == 0
    assert numbers_in(path) == STORED
    assert leftovers(path) == []
    refused = RECORDS - len(STORED)
    assert account_of(path) == {"inputs": RECORDS, "processed": len(STORED), "dropped": {"value is not JSON": refused}}


@pytest.mark.guarantee("I1", "I6")
@pytest.mark.parametrize(
    ("step", "when"),
    [
        ("write", "before"),
        pytest.param("write", "after", marks=pytest.mark.sweep),
        pytest.param("fsync", "before", marks=pytest.mark.sweep),
        ("fsync", "after"),
        ("rename", "before"),
        pytest.param("rename", "after", marks=pytest.mark.sweep),
    ],
)
def test_an_owner_that_was_paused_adds_nothing_once_it_is_replaced(
    processes: SinkProcesses, tmp_path: Path, step: str, when: str
) -> None:
    path = tmp_path / "out"
    paused = processes.run(step, when, 2, signal.SIGSTOP)["stopped"]
    assert processes.run()["ended"] == 0
    assert numbers_in(path) == STORED
    files = {file.name: file.read_bytes() for file in finished_files(path)}
    assert processes.ask(**{"continue": paused})["ended"] == FencedError.exit_code
    assert {file.name: file.read_bytes() for file in finished_files(path)} == files
    assert leftovers(path) == []
