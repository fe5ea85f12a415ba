"""`millstream run --report`: of runs that end, are stopped, fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import command, start
from tests.unit.pictures.test_report import ALLOWED, Page

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles


def read(path: Path) -> tuple[Page, str]:
    page = Page(path.read_text(encoding="utf-8"))
    assert page.tags <= ALLOWED
    return page, "\n".join(text.strip() for text in page.texts if text.strip())


async def test_the_report_of_a_run_that_ends(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(2_000, rpu=1_000) + files.function("picky") + files.file_sink("out") + files.file_sink("bad"),
        ["in -> map", "map -> out", "{from: map, to: bad, kind: deadLetter}"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml", "--report", "report.html")
    assert ended.exit_code == 0, ended.err
    assert "report: report.html" in ended.err
    page, text = read(tmp_path / "report.html")
    assert "done: everything has been processed" in text
    assert "BALANCED" in text
    assert {"rates-title", "waiting-title", "delay-title", "graph-title"} <= {
        value for name, value in page.attributes if name == "id"
    }
    # One in ten is bad for the function, one in ten is hopeless.
    assert "400" in text.split("\n")
    assert "hopeless" in text
    assert '"number":' in text
    assert "millstream" in text
    assert "--report" in text
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.sweep
async def test_the_report_of_a_run_that_is_stopped_or_fails(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(
        files.generator(None, rpu=500) + files.function("identity") + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml", "--report", "report.html") as run:
        await run.until(lambda: run.records("out") > 0)
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    assert "stopped" in read(tmp_path / "report.html")[1]
    (tmp_path / "report.html").write_text("an older report")
    async with start(tmp_path, "run", "pipeline.yaml", "--report", "report.html") as run:
        await run.until(lambda: run.json("status.json")["state"] == "running")
        # The broker does not answer, so the drain cannot end.
        os.kill(await run.pid("broker"), signal.SIGSTOP)
        await run.interrupt_twice()
        assert (await run.ended()).exit_code == 130
    text = read(tmp_path / "report.html")[1]
    assert "stopped at once" in text
    assert "The account could not be read" in text
    files.write(
        files.generator(1_000, rpu=0) + files.function("picky") + files.file_sink("out"), ["in -> map", "map -> out"]
    )
    failed = await command(tmp_path, "run", "pipeline.yaml", "--fresh", "--move-outputs", "--report", "report.html")
    assert failed.exit_code == 3
    text = read(tmp_path / "report.html")[1]
    assert "stopped by the failure" in text
    # Whichever of the records that it refuses came first.
    assert "number 1 is bad" in text or "hopeless" in text


@pytest.mark.sweep
async def test_where_no_report_can_be_is_said_before_anything_runs(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(files.generator(10) + files.file_sink("out"), ["in -> out"])
    for place in ("no/such/directory/report.html", "."):
        refused = await command(tmp_path, "run", "pipeline.yaml", "--report", place)
        assert refused.exit_code == 2, refused.err
        assert "--report" in refused.err
    assert not (tmp_path / ".millstream").exists()
