"""A function in a strict sandbox, its vertex and the broker are killed again and again: each record counts once.

One that a signal has stopped is replaced as soon as any other process, whichever of its two processes that was.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from millstream import health
from millstream.sandbox import Confinement, refusal
from millstream.udf.function import open_local_function
from millstream.udf.sidecar import SidecarSpec, python_command
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, start, until_gone
from tests.small_disk import give_up

FED = 1000
"""Records for each kill: two seconds of work, so that it falls into the middle."""
CANNOT = refusal(strict=True, network=False, limits=frozenset({"memory"}))


@pytest.fixture(autouse=True)
def _can_be_held() -> None:
    """A fault of ours looks like a system that cannot: in CI it has to be one that can."""
    if CANNOT is not None:
        give_up(f"there is no sandbox here: {CANNOT}")


def of_sandbox(run: Running, inner: bool) -> psutil.Process | None:
    """The process that waits outside, or the function; None while there is none."""
    try:
        (outer,) = psutil.Process(run.pids()["map-0"]).children()
        (function,) = outer.children()
    except (KeyError, ValueError, psutil.NoSuchProcess):
        return None
    return function if inner else outer


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I8", "I9")
async def test_kills_of_a_sandbox_and_of_what_is_around_it_lose_and_repeat_nothing(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    files = PipelineFiles(tmp_path)
    (tmp_path / "functions.py").rename(code / "functions.py")
    held = ", workingDir: code, sandbox: strict, limits: {memory: 2Gi, files: 256}"
    files.write(
        files.fed_source() + files.function("slow", more=held) + files.file_sink("out"),
        ["in => map", "map -> out"],
        more="limits: {bufferMaxLength: 4000}",
    )
    killed: list[int] = []
    files.feed(range(FED))
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        for round_, victim in enumerate(("function", "outside", "map-0", "function", "broker", "outside"), 1):
            before = run.records("out")
            files.feed(range(round_ * FED, (round_ + 1) * FED))
            await run.until(lambda before=before: run.records("out") > before)  # type: ignore[misc]
            await run.until(lambda: of_sandbox(run, inner=True) is not None)
            family = [of_sandbox(run, inner=True), of_sandbox(run, inner=False)]
            if victim in ("function", "outside"):
                process = of_sandbox(run, inner=victim == "function")
            else:
                process = psutil.Process(run.pids()[victim])
            assert process is not None
            process.kill()
            if victim != "broker":
                # Both of a sandbox go, whichever it was, and with the vertex too.
                gone = [one.pid for one in family if one is not None]
                await until_gone(gone)
                killed += gone
        await run.until(lambda: run.records("out") == 7 * FED)
        run.interrupt()
        ended = await run.ended()

    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    assert len(set(killed)) == len(killed) == 10
    assert files.numbers("out") == list(range(7 * FED))


@pytest.mark.guarantee("I9")
async def test_a_function_that_is_stopped_in_its_sandbox_is_replaced_before_one_that_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "HUNG_AFTER_S", 1.0)
    (tmp_path / "functions.py").write_text("def identity(value):\n    return value\n")
    command = python_command("functions.py:identity")
    spec = SidecarSpec(command, "udf", "p", "map", cwd=tmp_path, held=Confinement(strict=True), hung_after_s=600)
    async with asyncio.timeout(60), open_local_function(spec, log=lambda *_: None) as sidecar:
        outer = psutil.Process(sidecar.statistics().pid)
        (function,) = outer.children()
        function.suspend()
        while not (sidecar.statistics().restarts and sidecar.statistics().running):  # noqa: ASYNC110  # a process
            await asyncio.sleep(0.05)
        assert sidecar.statistics().pid != outer.pid
    assert "was stopped by a signal, and did not answer" in caplog.text
