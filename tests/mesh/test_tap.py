"""`millstream tap` has no effect on what is delivered, on the account, on trims, on owners: whatever becomes of it."""

from __future__ import annotations

import json
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.spec import resolved
from millstream_runner.local.directory import DataDirectory
from millstream_runner.local.stored import open_run
from tests.mesh.running import command, start

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

IN_ALL = re.compile(r"^tap: ([\d,]+) record\(s\) shown(?:, ([\d,]+) missed: .*?)?, the run has ended$", re.MULTILINE)


def entries(printed: str) -> list[dict[str, int]]:
    """Where the records that were shown lay, and their numbers."""
    whole = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]
    return [{"sequence": one["sequence"], "number": json.loads(one["value"])["number"]} for one in whole]


async def first_sequence(directory: Path) -> int:
    """Of the oldest frame that is still stored."""
    peeked = await command(directory, "peek", "map-out", "--from", "1", "--count", "1", "-o", "json")
    return int(json.loads(peeked.out)["sequence"]) if peeked.out.startswith("{") else 0


@pytest.mark.guarantee("I1", "I2")
@pytest.mark.parametrize("ledger", ["jetstream", "redis"])
async def test_a_tap_has_no_effect_even_if_it_is_stopped_or_killed(
    files: PipelineFiles, tmp_path: Path, ledger: str
) -> None:
    files.write(
        files.generator(10_000_000, rpu=20, duration="100ms") + files.function("identity") + files.file_sink("out"),
        ["in -> map", "map -> out"],
    )
    async with start(tmp_path, "run", "pipeline.yaml", "--ledger", ledger) as run:
        await run.until(lambda: run.records("out") > 0)
        async with (
            start(tmp_path, "tap", "map-out", "-o", "json") as tap,
            start(tmp_path, "tap", "in-map") as killed,
        ):
            await tap.until(lambda: len(entries(tap.out())) > 0)
            await killed.until(lambda: killed.out().count("\n") > 0)
            killed.kill()
            tap.process.send_signal(signal.SIGSTOP)
            last = entries(tap.out())[-1]
            # The pipeline goes on, and what it has read goes, although the tap has not seen it.
            await run.until(lambda: run.records("out") > last["number"] + 300)
            while await first_sequence(tmp_path) <= last["sequence"]:
                assert run.process.returncode is None
            tap.process.send_signal(signal.SIGCONT)
            await tap.until(lambda: entries(tap.out())[-1]["number"] > last["number"] + 300)
            run.interrupt()
            drained = await run.ended()
            seen = await tap.ended()
    assert drained.exit_code == 0, drained.err
    assert "account: BALANCED" in drained.out
    delivered = files.numbers("out")
    count = len(delivered)
    assert delivered == list(range(count))
    assert {line.split()[2] for line in drained.out.splitlines() if line.split()[0] in ("in", "map", "out")} == {
        f"{count:,}"
    }

    assert seen.exit_code == 0, seen.err
    shown = [entry["number"] for entry in entries(seen.out)]
    assert all(later > sooner for sooner, later in pairwise(shown))
    found = IN_ALL.search(seen.err)
    assert found is not None, seen.err
    missed = int((found[2] or "0").replace(",", ""))
    assert int(found[1].replace(",", "")) == len(shown)
    # Nothing is passed over in silence: what was shown and what was missed is all that came after the first.
    assert missed >= 200
    assert "missed here" in seen.err
    assert len(shown) + missed >= count - shown[0]
    assert len(shown) + missed <= count

    directory = DataDirectory(tmp_path / ".millstream/p")
    graph = resolved.load(directory.read_pipeline()).graph
    async with open_run(directory, graph) as view:
        marks = await view.marks()
    # One owner each, from the first to the last record.
    assert {lane.vertex: mark.epoch for lane, mark in marks.items()} == {"in": 1, "map": 1, "out": 1}


async def test_a_tap_ends_by_itself_and_says_what_it_cannot_show(files: PipelineFiles, tmp_path: Path) -> None:
    files.write(files.generator(10_000_000, rpu=50) + files.file_sink("out"), ["in -> out"])
    before = await command(tmp_path, "tap", "in-out")
    assert before.exit_code == 2
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") > 0)
        limited = await command(tmp_path, "tap", "in-out", "--limit", "5")
        assert (limited.exit_code, len(limited.out.splitlines())) == (0, 5)
        assert "tap: 5 record(s) shown" in limited.err
        other = await command(tmp_path, "tap", "in-out", "--key", "nobody", "--duration", "500ms")
        assert (other.exit_code, other.out) == (0, "")
        assert "tap: 0 record(s) shown" in other.err
        assert (await command(tmp_path, "tap", "no-edge")).exit_code == 2
        assert (await command(tmp_path, "tap", "in-out", "--duration", "soon")).exit_code == 2
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
    after = await command(tmp_path, "tap", "in-out")
    assert after.exit_code == 2
    assert "does not run" in after.err
