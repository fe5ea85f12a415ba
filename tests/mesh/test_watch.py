"""`millstream run --watch`: functions that change while the pipeline runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from millstream.limits import DRAIN_TIMEOUT_S
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, start

FUNCTION = """\
import json
import helper

def versioned(value):
    row = json.loads(value)
    return json.dumps({"number": row["number"], "version": %d, "helper": helper.VERSION})
"""


def pipeline(files: PipelineFiles) -> Path:
    (files.directory / "helper.py").write_text("VERSION = 0\n")
    (files.directory / "versions.py").write_text(FUNCTION % 0)
    return files.write(
        files.generator(None, rpu=300)
        + "- name: map\n  udf: {python: 'versions.py:versioned'}\n"
        + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )


def versions(files: PipelineFiles) -> list[int]:
    return [row["version"] for row in files.rows("out")]


def replace(path: Path, text: str) -> None:
    """As editors save: by another file that takes the name."""
    other = path.with_name(f".{path.name}.swp")
    other.write_text(text)
    os.replace(other, path)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I4")
async def test_each_record_counts_once_over_many_changes(files: PipelineFiles) -> None:
    path = pipeline(files)
    last = 8
    async with start(files.directory, "run", path.name, "--watch") as run:
        for version in range(1, last + 1):
            if version % 2:
                replace(files.directory / "versions.py", FUNCTION % version)
            else:
                # Two files at once, one of them in two steps.
                (files.directory / "helper.py").write_text("VERSION = ")
                (files.directory / "helper.py").write_text(f"VERSION = {version}\n")
                (files.directory / "versions.py").write_text(FUNCTION % version)
            await run.until(lambda version=version: version in versions(files))  # type: ignore[misc]
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    rows = files.rows("out")
    assert sorted(row["number"] for row in rows) == list(range(len(rows)))
    # Old code has a beginning of the lane, new code the rest: each change is at one mark.
    assert [row["version"] for row in rows] == sorted(row["version"] for row in rows)
    assert rows[-1]["helper"] == last
    assert "started again" not in ended.err, "a change is not a failure"
    assert "warning" not in ended.err


@pytest.mark.sweep
async def test_what_cannot_be_imported_is_waited_for(files: PipelineFiles) -> None:
    path = pipeline(files)
    function = files.directory / "versions.py"
    async with start(files.directory, "run", path.name, "--watch") as run:
        await run.until(lambda: 0 in versions(files))
        function.write_text("import json\nimport missing_helper\n")
        await run.until(lambda: "missing_helper" in run.err())
        assert "The pipeline waits" in run.err()
        before = await run.all_pids("broker", "in-0", "out-0")
        # The module that is missing comes; the function is still not there.
        (files.directory / "missing_helper.py").write_text("")
        await run.until(lambda: "versions.py has no versioned" in run.err())
        replace(function, FUNCTION % 1)
        await run.until(lambda: 1 in versions(files))
        assert run.pids() == before, "no process but the function's was started again"
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert ended.err.count("No module named 'missing_helper'") == 1
    numbers = [row["number"] for row in files.rows("out")]
    assert sorted(numbers) == list(range(len(numbers)))


async def test_an_exception_is_waited_for_as_well(files: PipelineFiles) -> None:
    path = pipeline(files)
    function, helper = files.directory / "versions.py", files.directory / "helper.py"
    async with start(files.directory, "run", path.name, "--watch") as run:
        await run.until(lambda: 0 in versions(files))
        before = await run.all_pids("broker", "in-0", "out-0")
        replace(function, (FUNCTION % 1).replace("helper.VERSION", "helper.VERSIONS"))
        await run.until(lambda: "has no attribute 'VERSIONS'" in run.err())
        await run.until(lambda: _state(run, "map") == "waiting for a change")
        # The fix is in another file than the exception.
        helper.write_text("VERSION = VERSIONS = 2\n")
        await run.until(lambda: any(row["helper"] == 2 for row in files.rows("out")))
        replace(function, (FUNCTION % 3).replace("    return", "    undefined\n    return"))
        await run.until(lambda: run.err().count("The pipeline waits") == 2)
        assert run.pids() == before, "no process but the function's was started again"
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    numbers = [row["number"] for row in files.rows("out")]
    assert sorted(numbers) == list(range(len(numbers)))


@pytest.mark.sweep
async def test_a_function_that_was_never_right_is_waited_for_and_ctrl_c_ends_it(files: PipelineFiles) -> None:
    path = pipeline(files)
    (files.directory / "versions.py").write_text("versioned = undefined\n")
    async with start(files.directory, "run", path.name, "--watch") as run:
        await run.until(lambda: "NameError" in run.err())
        await run.until(lambda: _state(run, "map") == "waiting for a change")
        begun_s = time.monotonic()
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert ended.err.count("NameError") == 1
    # It has not come to the deadline of a drain.
    assert time.monotonic() - begun_s < DRAIN_TIMEOUT_S


def _state(run: Running, vertex: str) -> str:
    return str(run.json("status.json").get("states", {}).get(vertex, ""))


@pytest.mark.sweep
async def test_without_it_a_change_is_told_of_once(files: PipelineFiles) -> None:
    path = pipeline(files)
    async with start(files.directory, "run", path.name) as run:
        await run.until(lambda: 0 in versions(files))
        (files.directory / "versions.py").write_text(FUNCTION % 1)
        await run.until(lambda: "versions.py changed" in run.err())
        path.write_text(path.read_text() + "\n# A comment.\n")
        await run.until(lambda: "pipeline.yaml changed" in run.err())
        path.write_text(path.read_text() + "\nnothing: known\n")
        await run.until(lambda: "it has 1 problem: see `millstream validate pipeline.yaml`" in run.err())
        run.interrupt()
        ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert ended.err.count("versions.py changed") == 1
    assert "millstream run --watch" in ended.err
    assert set(versions(files)) == {0}
