"""What a person sees of a real run: on terminals of several sizes, in the same moment, and after Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.mesh.running import called, start
from tests.support.terminal import LIMIT_S, Terminal, open_terminal

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

MILLSTREAM = (sys.executable, "-m", "millstream_runner")


def endless(files: PipelineFiles, function: str = "identity") -> Path:
    """A pipeline that does not end, and drains in a moment."""
    return files.write(
        files.generator(None, rpu=200, duration="100ms") + files.function(function) + files.file_sink("out"),
        ["in => map", "map -> out"],
        more="limits: {bufferMaxLength: 500}",
    )


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(LIMIT_S)


def shows_figures(terminal: Terminal) -> bool:
    """The table of a run that has made progress."""
    rows = [line.split() for line in terminal.shown if line.startswith("out ")]
    return any("running" in line for line in terminal.shown) and any(row[2] not in ("-", "0") for row in rows)


def test_a_run_and_those_who_watch_it_on_terminals(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files, "held")
    with open_terminal(80, 24) as own, open_terminal(120, 30) as second, open_terminal(80, 8) as third:
        run = own.start(*MILLSTREAM, "run", "pipeline.yaml", cwd=tmp_path)
        try:
            own.until(shows_figures)
            assert b"waits for: the broker" in own.written
            watching = second.start(*MILLSTREAM, "status", "--watch", cwd=tmp_path)
            leaving = third.start(*MILLSTREAM, "status", "-w", cwd=tmp_path)
            # A source may be slower than any function on a busy machine: only one that stands still is surely slow.
            (tmp_path / "hold").touch()
            own.until(lambda terminal: any(line.startswith("slow: map") for line in terminal.shown))
            second.until(shows_figures)
            third.until(shows_figures)
            # Ending a look has no effect on the run.
            third.type("\x03")
            assert ended(leaving) == 0
            assert "Traceback" not in third.text
            assert watching.poll() is None
            (tmp_path / "hold").unlink()
            own.type("\x03")
            assert ended(run) == 0
            assert ended(watching) == 0
            own.until(lambda terminal: "data directory:" in terminal.text)
            second.until(lambda terminal: "data directory:" in terminal.text)
        finally:
            _end(run)
    assert "draining: no new records are read" in own.text
    assert "account: BALANCED" in own.text
    # Drawn over, not one below the other: the last table, and the account.
    assert sum(line.startswith("VERTEX") for line in own.all) == 2
    assert sum(line.startswith("VERTEX") for line in second.all) == 1
    assert second.all[0].startswith("p  stopped")
    assert "not running; these figures are" in second.text
    header = next(index for index, line in enumerate(own.all) if line.startswith("VERTEX"))
    assert own.all[header - 1].startswith("p  stopped")
    # Nothing is wrapped, nor is the account, which has more columns than fit.
    account = next(line for line in own.all[header + 1 :] if line.startswith("VERTEX"))
    assert account.split()[-1] == "WRITTEN"
    assert [line.split()[0] for line in own.all[header + 1 : header + 4]] == ["in", "map", "out"]


async def test_a_run_is_watched_as_json_until_it_ends(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        async with start(tmp_path, "status", "--watch", "-o", "json") as watching:
            await watching.until(lambda: watching.out().count("\n") >= 2)
            run.interrupt()
            seen = await watching.ended()
        drained = await run.ended()
    assert (drained.exit_code, seen.exit_code) == (0, 0)
    entries = [json.loads(line) for line in seen.out.splitlines()]
    assert entries[0]["state"] == "running"
    assert entries[-1]["state"] == "stopped"
    assert not entries[-1]["running"]
    for entry in entries:
        by_name = {vertex["vertex"]: vertex for vertex in entry["vertices"]}
        # Of one moment: no vertex has read what was not written.
        assert by_name["in"]["written"] >= by_name["map"]["records"] >= by_name["out"]["records"]
    lines = drained.err.splitlines()
    assert lines
    assert all(len(line) <= 100 for line in lines)
    assert any(line.split()[1] == "stopped:" for line in lines)


@pytest.mark.sweep
async def test_a_runner_that_hangs_is_said_to_be_silent(files: PipelineFiles, tmp_path: Path) -> None:
    endless(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        run.process.send_signal(signal.SIGSTOP)
        try:
            async with start(tmp_path, "status", "--watch") as watching:
                await watching.until(lambda: "old: the runner does not answer" in watching.out())
                watching.interrupt()
                assert (await watching.ended()).exit_code == 0
        finally:
            run.process.send_signal(signal.SIGCONT)
    after = await called(tmp_path, "status")
    assert after.out.startswith("p  interrupted")


def _end(run: subprocess.Popen[bytes]) -> None:
    if run.poll() is None:
        family = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        run.wait()
        psutil.wait_procs(family, 10)
