"""A function that answers badly, on purpose or by mistake: nothing of it is stored, and only its records suffer."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Running, command, start
from tests.security.bad_answers import BAD, RECORDS, SPOILS

PROGRAM = Path(__file__).with_name("bad_answers.py")
ROLLING = "rolling: {maxAge: 200ms}"
DEAD = "{from: %s, to: dead, kind: deadLetter}"
MEMORY_BYTES_MAX = 500 << 20
"""Of a vertex that is sent an answer of 40 MiB: the answer a few times over, not a quarter of a KiB for each output."""

GOOD = [f"good {number}" for number in range(200)]


def program(kind: str) -> str:
    return f"command: [{json.dumps(sys.executable)}, {json.dumps(str(PROGRAM))}, {kind}]"


def lines_source(directory: Path, lines: list[str]) -> str:
    (directory / "in.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return "- name: in\n  source: {file: {paths: [in.txt], format: lines}}\n"


def lines_sink(name: str) -> str:
    return f"- name: {name}\n  sink: {{file: {{path: {name}, format: lines, {ROLLING}}}}}\n"


def lines_of(directory: Path) -> list[str]:
    return [line for file in sorted(directory.glob("*")) if file.is_file() for line in file.read_text().splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    return PipelineFiles(tmp_path)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I10")
async def test_an_answer_that_cannot_be_read_stops_the_vertex_and_the_next_run_goes_on(
    files: PipelineFiles, tmp_path: Path
) -> None:
    lines = [*GOOD[:20], f"{BAD.decode()}offsets", *GOOD[20:40]]
    files.write(
        lines_source(tmp_path, lines)
        + f"- name: evil\n  udf: {{{program('map')}, retryStrategy: {{backoff: {{interval: 1ms, steps: 2}}}}}}\n"
        + "- name: pass\n  udf: {builtin: {name: cat, kwargs: {}}}\n"
        + lines_sink("out"),
        ["in -> evil", "evil -> pass", "pass -> out"],
    )
    stopped = await command(tmp_path, "run", "pipeline.yaml")
    assert stopped.exit_code == 3, stopped.err
    for part in (
        "p/evil/in-evil.0: the function failed on record evil/in-evil/0/",
        "breaks its protocol: its answer to call",
        "does not fit: values: offsets fall at place",
        "does not fit: values: offsets do not begin at 0 and end at 7",
        "bad:offsets",
    ):
        assert part in stopped.err
    assert "defect" not in stopped.err
    (tmp_path / "fixed").touch()
    resumed = await command(tmp_path, "run", "pipeline.yaml")
    assert resumed.exit_code == 0, resumed.err
    assert "BALANCED" in resumed.out + resumed.err
    assert lines_of(tmp_path / "out") == lines


async def _peak(running: Running, name: str) -> int:
    """The most memory that a process of the run has had, as long as the run lives."""
    peak = 0
    while running.process.returncode is None:
        pid = running.pids().get(name)
        if pid is not None:
            with suppress(psutil.NoSuchProcess):
                peak = max(peak, psutil.Process(pid).memory_info().rss)
        await asyncio.sleep(0.02)
    return peak


@pytest.mark.guarantee("I1")
async def test_only_the_records_that_are_answered_badly_are_given_up(files: PipelineFiles, tmp_path: Path) -> None:
    bad = [f"{BAD.decode()}{how}" for how in SPOILS]
    lines = list(GOOD)
    for place, line in enumerate(bad):
        lines.insert(7 + 19 * place, line)
    files.write(
        lines_source(tmp_path, lines)
        + f"- name: evil\n  udf: {{{program('map')}, retryStrategy: {{backoff: {{interval: 1ms, steps: 1}}}}}}\n"
        + lines_sink("out")
        + "- name: dead\n  sink: {file: {path: dead, format: jsonl, rolling: {maxAge: 200ms}}}\n",
        ["in -> evil", "evil -> out", DEAD % "evil"],
    )
    async with start(tmp_path, "run", "pipeline.yaml") as running:
        peak = asyncio.create_task(_peak(running, "evil-0"))
        ended = await running.ended()
        peak_bytes = await peak
    assert ended.exit_code == 0, ended.err
    assert "BALANCED" in ended.out + ended.err
    assert lines_of(tmp_path / "out") == GOOD
    dead = files.envelopes("dead")
    assert Counter(one.value.decode() for one in dead) == Counter(bad)
    assert all("does not fit: " in one.reason and one.vertex == "evil" for one in dead)
    (many,) = (one.reason for one in dead if one.value == BAD + b"many")
    assert "5,000,000 outputs; at most 500,000 are allowed per call (`outputsMax`)" in many
    assert 0 < peak_bytes < MEMORY_BYTES_MAX


@pytest.mark.sweep
@pytest.mark.guarantee("I1")
async def test_a_source_and_a_sink_that_answer_badly(files: PipelineFiles, tmp_path: Path) -> None:
    retry = "retryStrategy: {backoff: {interval: 1ms, steps: 1}, onFailure: drop}"
    files.write(
        f"- name: in\n  source: {{udsource: {{{program('source')}}}}}\n"
        f"- name: taken-by\n  sink: {{udsink: {{{program('sink')}}}, {retry}}}\n" + lines_sink("out"),
        ["in -> taken-by", "in -> out"],
    )
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    expected = [f"{BAD.decode()}sink" if number == 23 else str(number) for number in range(RECORDS)]
    assert lines_of(tmp_path / "out") == expected
    assert "the source function failed; next attempt" in ended.err
    assert "its batch does not fit: values: offsets do not begin at 0" in ended.err
    taken = set((tmp_path / "taken").read_text().splitlines())
    assert taken < set(expected)
    assert f"{BAD.decode()}sink" not in taken
