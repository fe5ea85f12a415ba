"""Functions in Go that remember: exact whatever is killed, and with the same state as a function in Python."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.mesh.running import Running, called, command, start
from tests.mesh.test_states import give as give_rows
from tests.mesh.test_timers import fired, ordered, reminders, set_timers
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
EXAMPLES = Path(__file__).parents[2] / "examples" / "udf-go"
USERS = 23
PART = 1500
PYTHON = """\
import millstream_udf as udf


@udf.map
class Totals:
    total = udf.value(int, default=0)

    def process(self, record: udf.Record[dict]) -> dict:
        self.total += record.value["number"]
        return {**record.value, "total": self.total}
"""


@pytest.fixture
def program(go_programs: Path) -> Path:
    """The program whose function `totals` adds up the numbers of a user."""
    return go_programs / "conformance"


def pipeline(
    files: PipelineFiles, udf: str, *, partitions: int = 2, follow: bool = True, has_dead: bool = False
) -> None:
    (files.directory / "states.py").write_text(PYTHON, encoding="utf-8")
    files.write(
        f"- name: in\n  source: {{file: {{paths: [in.jsonl], format: jsonl, follow: {str(follow).lower()}}}, "
        "keys: [user]}\n"
        f"- name: totals\n  partitions: {partitions}\n  udf: {{{udf}}}\n"
        + files.file_sink("out")
        + (files.file_sink("dead") if has_dead else ""),
        ["in -> totals", "totals -> out", *(["{from: totals, to: dead, kind: deadLetter}"] if has_dead else [])],
    )


def in_go(program: Path, function: str = "totals", *, state: str = ", state: {}") -> str:
    return f"command: [{json.dumps(str(program))}, {function}]{state}"


def give(files: PipelineFiles, rows: list[dict[str, Any]], count: int) -> None:
    """Add so many rows to the input, and to `rows`."""
    first = len(rows)
    rows += [{"user": f"u{number * number % USERS}", "number": number} for number in range(first, first + count)]
    with (files.directory / "in.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows[first:])


async def assert_folded(files: PipelineFiles, rows: Sequence[dict[str, Any]]) -> None:
    """Outputs and state are those of these inputs, each counted once, in order."""
    numbers, totals = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for row in rows:
        numbers[row["user"]].append(row["number"])
    for row in files.rows("out"):
        totals[row["user"]].append(row["total"])
    assert totals == {user: list(accumulate(each)) for user, each in numbers.items()}
    ended = await called(files.directory, "state", "list", "totals", "--count", "0", "-o", "json")
    assert ended.exit_code == 0, ended.err
    entries = [json.loads(line) for line in ended.out.splitlines()]
    assert {entry["key"][0]: entry["value"] for entry in entries} == {user: sum(each) for user, each in numbers.items()}
    assert len(entries) == len(numbers)


async def drained(run: Running) -> None:
    run.interrupt()
    ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out


def pid_of(run: Running, name: str, program: Path) -> int | None:
    """Of a process of the run, or of a function."""
    if name != "function":
        return run.pids().get(name)
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if str(program) in process.cmdline():
                return process.pid
    return None


def other_pid_of(run: Running, name: str, program: Path, before: int) -> int | None:
    """The same, once it is another one."""
    found = pid_of(run, name, program)
    return found if found != before else None


@pytest.mark.guarantee("I1", "I7", "I12")
async def test_totals_in_go_are_exact_whatever_is_killed(files: PipelineFiles, program: Path, tmp_path: Path) -> None:
    pipeline(files, in_go(program, state=", state: {}, concurrency: 8"), partitions=4)
    rows: list[dict[str, Any]] = []
    give(files, rows, PART)
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        for victim in ("function", "totals-0", "function")[: sized(2, 3)]:
            seen = run.records("out")
            give(files, rows, PART)
            await run.until_more("out", than=seen)
            pid = await run.found(partial(pid_of, run, victim, program))
            os.kill(pid, signal.SIGKILL)
            await run.found(partial(other_pid_of, run, victim, program, pid))
        give(files, rows, PART)
        await run.until(lambda: run.records("out") == len(rows))
        await drained(run)
    await assert_folded(files, rows)


@pytest.mark.guarantee("I7")
async def test_a_state_belongs_to_no_language(files: PipelineFiles, program: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for udf in ("python: 'states.py:Totals', state: {}", in_go(program), "python: 'states.py:Totals', state: {}")[
        : sized(2, 3)
    ]:
        pipeline(files, udf)
        give(files, rows, 100)
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await run.until(lambda: run.records("out") == len(rows))
            await drained(run)
        await assert_folded(files, rows)


def has_reminded(run: Running, files: PipelineFiles, records: int) -> bool:
    """Whether it has so many records, and all timers have fired but those of the last 20 seconds: of 100 records."""
    return run.records("remind") == records and len(fired(files)) >= records - 100


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_timers_belong_to_no_language(files: PipelineFiles, program: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for udf in (in_go(program, "reminding"), "", in_go(program, "reminding")):
        reminders(files, udf=udf)
        rows += ordered(len(rows), 100)
        give_rows(files, rows[-100:])
        async with start(tmp_path, "run", "pipeline.yaml") as run:
            await run.until(partial(has_reminded, run, files, len(rows)))
            await drained(run)
    counts, still_set = fired(files), await set_timers(tmp_path)
    assert set(counts.values()) == {1}
    waiting = {
        (one["item"], one["value"]["at_us"] // 1_000_000) for one in still_set if one["item"].startswith("order")
    }
    wanted = [(f"order {row['number']}", row["at"] + 20) for row in rows]
    assert counts.keys() == set(wanted[:-100])
    assert waiting == set(wanted[-100:])
    idle = {one["key"][0]: one["value"]["at_us"] // 1_000_000 - 86_400 for one in still_set if one["item"] == "idle"}
    assert idle == {row["user"]: row["at"] for row in rows}


@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.sweep), 8])
async def test_a_record_that_fails_in_go_leaves_no_change(
    files: PipelineFiles, program: Path, tmp_path: Path, concurrency: int
) -> None:
    more = f"concurrency: {concurrency}, retryStrategy: {{backoff: {{interval: 1ms, steps: 2}}}}"
    pipeline(files, in_go(program, "picky", state=f", state: {{}}, {more}"), follow=False, has_dead=True)
    rows: list[dict[str, Any]] = []
    give(files, rows, 300)
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code == 0, ended.err
    await assert_folded(files, [row for row in rows if row["number"] % 7 not in (3, 5)])
    dead = sorted(json.loads(letter.value)["number"] for letter in files.envelopes("dead"))
    assert dead == [number for number in range(300) if number % 7 in (3, 5)]


@pytest.mark.parametrize(
    ("function", "state", "says"),
    [
        ("totals", ", state: {}", None),
        ("totals", "", ("MS-3109", "`conformance` remembers `total`, and its vertex has no state")),
        pytest.param(
            "named",
            ", state: {}",
            ("MS-3109", "the vertex has `state`, and `conformance` declares none"),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "write",
            "",
            ("MS-2608", "`conformance` is a sink, and the vertex needs a map"),
            marks=pytest.mark.sweep,
        ),
    ],
)
async def test_validate_knows_the_states_of_a_program(
    files: PipelineFiles, program: Path, tmp_path: Path, function: str, state: str, says: tuple[str, str] | None
) -> None:
    (tmp_path / "in.jsonl").touch()
    pipeline(files, in_go(program, function, state=state))
    ended = await called(tmp_path, "validate", "pipeline.yaml", "--import", "-o", "json")
    found = json.loads(ended.out)
    assert [(one["code"], one["what"]) for one in found["problems"]] == ([says] if says else [])
    if not says:
        assert found["functions"] == [
            {"vertex": "totals", "role": "udf", "function": "conformance", "takes": "", "gives": ""}
        ]
