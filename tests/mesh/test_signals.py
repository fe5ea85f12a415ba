"""Signals to a run that is starting, and two that are one decision."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from millstream.buffers.jetstream.server import PROGRAM_VARIABLE
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import start
from tests.support.sizes import first


@pytest.mark.parametrize("number", first(1, [signal.SIGTERM, signal.SIGINT]))
async def test_a_run_that_is_starting_stops_without_an_error(
    number: signal.Signals, files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_ready = tmp_path / "nats-server"
    never_ready.write_text("#!/bin/sh\nexec sleep 1000\n")
    never_ready.chmod(0o755)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(never_ready))
    path = files.write(files.generator(1) + files.file_sink("out"), ["in -> out"])
    async with start(files.directory, "run", path.name) as run:
        await run.until(lambda: run.json("status.json").get("state") == "starting")
        run.process.send_signal(number)
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "stopped before anything was read" in ended.out


async def test_two_signals_within_a_moment_are_one_decision(files: PipelineFiles) -> None:
    path = files.write(files.generator(None, rpu=300) + files.file_sink("out"), ["in -> out"])
    async with start(files.directory, "run", path.name) as run:
        await run.until(lambda: len(files.rows("out")) > 0)
        # Two of one kind could arrive as one.
        os.kill(run.process.pid, signal.SIGINT)
        os.kill(run.process.pid, signal.SIGTERM)
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "stopped at once" not in ended.out
