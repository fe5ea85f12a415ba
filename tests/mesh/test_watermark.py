"""A watermark that was driven away is set back by a command, which says what it costs and may be killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.running import command, start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


async def test_the_command_says_what_it_costs_and_may_be_killed(
    files: PipelineFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(
        files.generator(1_000_000, rpu=200, start="9000-01-01T00:00:00Z")
        + "- name: map\n  udf: {builtin: {name: cat}}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    asked = ("watermark", "pipeline.yaml")
    told = await command(tmp_path, *asked)
    assert (told.exit_code, told.out.count("watermark 9000-01-01T")) == (0, 3), told.out + told.err
    costs = await command(tmp_path, *asked, "--set-back", "now")
    assert costs.exit_code == 0
    assert "3 lanes would be set back" in costs.out
    assert "nothing was changed" in costs.out
    assert (await command(tmp_path, *asked)).out == told.out
    doing = (*asked, "--set-back", "2024-01-31T08:00:00Z", "--accept-loss")
    for point in ("ledger.commit:before@map", "watermark.forget:before@out"):
        with monkeypatch.context() as patched:
            patched.setenv(CRASH_AT, point)
            assert (await command(tmp_path, *doing)).exit_code < 0, f"{point} was not reached"
    done = await command(tmp_path, *doing)
    assert "lanes were set back" in done.out, done.out + done.err
    assert "set-back" in (await command(tmp_path, "audit", "--data-dir", ".millstream/p")).out
    told = await command(tmp_path, *asked)
    assert told.out.count("watermark 2024-01-31T08:00:00.000000Z") == 3
    assert "nothing was changed" in (await command(tmp_path, *doing)).out
    for wrong in (("--accept-loss",), ("--set-back", "soon")):
        assert (await command(tmp_path, *asked, *wrong)).exit_code == 2
