"""`millstream tap` has no effect on what is delivered, on the account, on trims, on owners: whatever becomes of it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.plan import resolved
from millstream.record import BufferId
from millstream_runner.cli.main import main
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.stored import open_run
from tests.mesh.running import Ended, start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

IN_ALL = re.compile(r"^tap: ([\d,]+) records? shown(?:, ([\d,]+) missed: .*?)?, the run has ended$", re.MULTILINE)


def numbers(printed: str) -> list[int]:
    """Of the records that were shown."""
    whole = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(one["value"])["number"] for one in whole]


def missed(seen: Ended) -> int:
    """Records that a tap says it has missed, up to the end of the run."""
    assert seen.exit_code == 0, seen.err
    found = IN_ALL.search(seen.err)
    assert found is not None, seen.err
    assert int(found[1].replace(",", "")) == len(numbers(seen.out))
    return int((found[2] or "0").replace(",", ""))


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ledger", ["jetstream", pytest.param("redis", marks=pytest.mark.sweep)])
async def test_a_tap_has_no_effect_even_if_it_is_stopped_or_killed(
    files: PipelineFiles, tmp_path: Path, ledger: str
) -> None:
    files.write(
        files.generator(None, rpu=20, duration="200ms") + files.function("identity") + files.file_sink("out"),
        ["in => map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml", "--ledger", ledger) as run:
        await run.until(lambda: run.records("out") > 0)
        async with (
            start(tmp_path, "tap", "map-out", "-o", "json") as tap,
            start(tmp_path, "tap", "in-map") as killed,
        ):
            await tap.until(lambda: tap.out().count("\n") > 200)
            await killed.until(lambda: killed.out().count("\n") > 0)
            killed.kill()
            tap.process.send_signal(signal.SIGSTOP)
            last = numbers(tap.out())[-1]
            # The pipeline goes on, and ends, although one that looks stands still.
            await run.until(lambda: run.records("out") > last + 200)
            run.interrupt()
            drained = await run.ended()
            tap.process.send_signal(signal.SIGCONT)
            seen = await tap.ended()
    assert drained.exit_code == 0, drained.err
    assert "account: BALANCED" in drained.out
    delivered = files.numbers("out")
    count = len(delivered)
    assert delivered == list(range(count))
    assert {line.split()[2] for line in drained.out.splitlines() if line.split()[0] in ("in", "map", "out")} == {
        f"{count:,}"
    }

    shown = numbers(seen.out)
    assert all(later > sooner for sooner, later in pairwise(shown))
    # Nothing is skipped silently: what was shown and what was missed is all that came after the tap began.
    assert count - shown[0] <= len(shown) + missed(seen) <= count
    gaps = sum(later != sooner + 1 for sooner, later in pairwise(shown))
    assert gaps <= seen.err.count("missed here")

    directory = DataDirectory(tmp_path / ".millstream/p")
    plan = resolved.load(directory.read_pipeline()).plan
    async with open_run(directory, plan) as view:
        marks = await view.marks()
        buffer = BufferId("map-out", 0)
        left = await (await view.ledger_of(buffer)).peek(buffer, 0, 10)
    # One owner each, from the first to the last record, and what was read is gone: one frame at most holds a mark.
    assert {lane.vertex: mark.epoch for lane, mark in marks.items()} == {"in": 1, "map": 1, "out": 1}
    assert len(left) <= 1


@pytest.mark.sweep
@pytest.mark.timeout(900)
async def test_a_tap_ends_by_itself_and_says_what_it_cannot_show(
    files: PipelineFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.write(files.generator(None, rpu=50) + files.file_sink("out"), ["in -> out"])
    data = tmp_path / ".millstream/p"

    async def tap(*arguments: str, of: Sequence[str] = ("--data-dir", str(data))) -> Ended:
        exit_code = await asyncio.to_thread(main, ["tap", *arguments, *of])
        return Ended(exit_code, *capsys.readouterr())

    assert (await tap("in-out")).exit_code == 2
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        limited = await tap("in-out", "--limit", "5")
        assert (limited.exit_code, len(limited.out.splitlines())) == (0, 5)
        assert "tap: 5 records shown" in limited.err
        # Over its broker, as where the pipeline runs on another machine.
        runtime = DataDirectory(run.data).read_runtime()
        assert runtime is not None
        access = str(DataDirectory(run.data).broker_access)
        of = ("--broker", runtime.broker_url, "--broker-access", access, "--file", str(file))
        elsewhere = await tap("in-out", "--limit", "5", of=of)
        assert (elsewhere.exit_code, len(elsewhere.out.splitlines())) == (0, 5), elsewhere.err
        other = await tap("in-out", "--key", "other", "--duration", "500ms")
        assert (other.exit_code, other.out) == (0, "")
        assert "tap: 0 records shown" in other.err
        assert (await tap("no-edge")).exit_code == 2
        assert (await tap("in-out", "--duration", "soon")).exit_code == 2
        async with start(tmp_path, "tap", "in-out") as interrupted:
            await interrupted.until(lambda: interrupted.out() != "")
            interrupted.interrupt()
            left = await interrupted.ended()
        assert left.exit_code == 0
        assert "Traceback" not in left.err
        actions = [json.loads(line)["action"] for line in (run.data / "audit.jsonl").read_text().splitlines()]
        assert actions.count("tap") == 3
        run.interrupt()
        assert (await run.ended()).exit_code == 0
    after = await tap("in-out")
    assert after.exit_code == 2
    assert "is not running" in after.err
