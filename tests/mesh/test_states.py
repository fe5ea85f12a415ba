"""Functions that remember, as users run them: state, output and progress stay one, whatever is killed or refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.mesh.running import Ended, Running, called, command, start
from tests.support import sizes
from tests.support.sizes import first, sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
USERS = 23
FUNCTIONS = """\
from datetime import timedelta
from pathlib import Path

import millstream_udf as udf


class Total:
    total = udf.value(int, default=0)

    def process(self, record: udf.Record[dict]) -> dict:
        number = record.value["number"]
        self.total += number
        if number % 7 == 3:
            raise udf.DeadLetter("it ends in nothing")
        if number % 7 == 5:
            raise ValueError("it fails each time")
        return {**record.value, "total": self.total}


class Sum(Total):
    def process(self, record: udf.Record[dict]) -> dict:
        self.total += record.value["number"]
        return {**record.value, "total": self.total}


totals = udf.map(Sum)
picky = udf.map(Total)


@udf.map
class Bulky(Sum):
    notes = udf.map_state(int, str)

    def process(self, record: udf.Record[dict]) -> dict:
        self.notes[record.value["number"]] = "x" * 700
        return super().process(record)


@udf.map
class Lazy(Sum):
    notes = udf.map_state(int, int, lazy=True)

    def process(self, record: udf.Record[dict]) -> dict:
        number = record.value["number"]
        while number == 100 and not Path(__file__).with_name("go-on").exists():
            Path(__file__).with_name("reads").touch()
            sum(self.notes.values())
        self.notes[number] = 1
        return {**super().process(record), "notes": sum(self.notes.values())}


@udf.map
class Counted:
    total = udf.counter()

    def process(self, record: udf.Record[dict]) -> dict:
        return record.value


@udf.map
class WithLast(Sum):
    last = udf.value(int)

    def process(self, record: udf.Record[dict]) -> dict:
        row = super().process(record)
        row["last"], self.last = self.last, row["number"]
        return row


@udf.map
class Notes:
    notes = udf.list_state(str)

    def process(self, record: udf.Record[dict]) -> dict:
        self.notes.append("x" * record.value["number"])
        return record.value


@udf.map
class Unseen:
    seen = udf.value(bool, default=False, ttl=timedelta(seconds=10))

    def process(self, record: udf.Record[dict]) -> dict | None:
        was_seen, self.seen = self.seen, True
        return None if was_seen else record.value


@udf.map
def without(record: udf.Record[dict]) -> dict:
    return record.value
"""

Row = Mapping[str, Any]


def totals(
    files: PipelineFiles,
    function: str = "totals",
    *,
    partitions: int = 1,
    follow: bool = False,
    state: str | None = "{}",
    udf: str = "",
    source: str = "",
    edges: Sequence[str] = (),
    is_chained: bool = False,
    more: str = "",
) -> None:
    """A pipeline whose function `states.py:FUNCTION` gets the records of `in.jsonl` by user."""
    (files.directory / "states.py").write_text(FUNCTIONS, encoding="utf-8")
    remembers = "" if state is None else f", state: {state}"
    files.write(
        f"- name: in\n  source: {{file: {{paths: [in.jsonl], format: jsonl, follow: {str(follow).lower()}}}, "
        f"keys: [user]{source}}}\n"
        f"- name: totals\n  partitions: {partitions}\n  udf: {{python: 'states.py:{function}'{remembers}{udf}}}\n"
        + files.file_sink("out", more=f"  partitions: {partitions if is_chained else 1}\n")
        + (files.file_sink("dead") if edges else ""),
        ["in -> totals", f"{{from: totals, to: out, chain: {str(is_chained).lower()}}}", *edges],
        more=more,
    )


def numbered(numbers: Iterable[int]) -> list[Row]:
    return [{"user": f"u{number * number % USERS}", "number": number} for number in numbers]


def give(files: PipelineFiles, rows: Iterable[Row]) -> None:
    with (files.directory / "in.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


async def ran(directory: Path, *options: str) -> Ended:
    ended = await command(directory, "run", "pipeline.yaml", *options)
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out
    return ended


async def refused(directory: Path, *says: str, code: str = "MS-3109") -> None:
    """The run is refused with this code, and its message says this."""
    ended = await command(directory, "run", "pipeline.yaml")
    assert ended.exit_code == (3 if code.startswith("MS-3") else 2), ended.out + ended.err
    assert code in ended.err
    for text in says:
        assert text in ended.err


async def remembered(directory: Path, name: str = "total") -> dict[str, Any]:
    """By key, what `millstream state` shows of one state."""
    ended = await called(directory, "state", "list", "totals", "--count", "0", "-o", "json")
    assert ended.exit_code == 0, ended.err
    entries = [json.loads(line) for line in ended.out.splitlines()]
    found = {entry["key"][0]: entry["value"] for entry in entries if entry["state"] == name}
    assert len(found) == sum(entry["state"] == name for entry in entries)
    return found


def by_user(rows: Iterable[Row], field: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row["user"]].append(row[field])
    return found


async def assert_folded(files: PipelineFiles, rows: Sequence[Row]) -> None:
    """Outputs and state are those of these inputs, each counted once, in order."""
    numbers = by_user(rows, "number")
    written = files.rows("out")
    assert by_user(written, "number") == numbers
    assert by_user(written, "total") == {user: list(accumulate(each)) for user, each in numbers.items()}
    assert await remembered(files.directory) == {user: sum(each) for user, each in numbers.items()}


async def drained(run: Running) -> None:
    run.interrupt()
    ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out


async def processed(files: PipelineFiles, rows: Sequence[Row], *, of: int | None = None) -> None:
    """Run until these rows have been written as well, in all `of` rows; then drain."""
    give(files, rows)
    async with start(files.directory, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == (of or len(rows)))
        await drained(run)


def pid_of(run: Running, name: str) -> int | None:
    """Of a process of the run, or of its function."""
    if name != "function":
        return run.pids().get(name)
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "millstream_udf" in process.cmdline():
                return process.pid
    return None


def other_pid_of(run: Running, name: str, before: int) -> int | None:
    """The same, once it is another one."""
    found = pid_of(run, name)
    return found if found != before else None


VICTIMS = ("totals-0", "function", "broker")


async def survives(files: PipelineFiles, directory: Path, *victims: str, part: int = sized(500, 1500)) -> None:
    """Whatever of a run is killed, its outputs and its state are those of its inputs. `victims`: where not each is."""
    rows = list[Row]()

    def give_more() -> None:
        rows.extend(numbered(range(len(rows), len(rows) + part)))
        give(files, rows[-part:])

    give_more()
    async with start(directory, "run", "pipeline.yaml", "--workers", "2") as run:
        for victim in VICTIMS if sizes.ALL else victims or VICTIMS:
            seen = run.records("out")
            give_more()
            await run.until_more("out", than=seen)
            pid = await run.found(partial(pid_of, run, victim))
            os.kill(pid, signal.SIGKILL)
            await run.found(partial(other_pid_of, run, victim, pid))
        give_more()
        await run.until(lambda: run.records("out") == len(rows))
        await drained(run)
    await assert_folded(files, rows)


def frames_read(directory: Path) -> list[tuple[int, int]]:
    """For each time that a lane resumed with its store: how many frames of its changelog it read, and of how many."""
    logged = [line for path in directory.glob(".millstream/*/logs/*") for line in path.read_text().splitlines()]
    found = [re.search(r"(\d+) of the (\d+) frames of its changelog were read: a store", line) for line in logged]
    return [(int(match[1]), int(match[2])) for match in found if match is not None]


@pytest.mark.guarantee("I1", "I7", "I12")
async def test_totals_are_exact_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    totals(files, partitions=4, follow=True)
    await survives(files, tmp_path, "function", "broker")


@pytest.mark.guarantee("I1", "I7", "I12")
async def test_totals_on_disk_are_exact_whatever_is_killed_and_little_is_read_again(
    files: PipelineFiles, tmp_path: Path
) -> None:
    totals(files, "Bulky", partitions=2, follow=True, state="{store: disk}")
    await survives(files, tmp_path, "totals-0", part=1500)
    resumed = frames_read(tmp_path)
    assert len(resumed) == 2, "both lanes were killed"
    assert all(read < written for read, written in resumed)
    # Of a lane that was closed, nothing is read.
    rows = numbered(range(len(files.rows("out")) + 200))
    await processed(files, rows[-200:-100], of=len(rows) - 100)
    assert [read for read, _ in frames_read(tmp_path)[len(resumed) :]] == [0, 0]
    # The ledger has everything: a store may be removed.
    shutil.rmtree(next(tmp_path.glob(".millstream/*/states")))
    await processed(files, rows[-100:], of=len(rows))
    await assert_folded(files, rows)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I7", "I12")
async def test_what_is_read_lazily_is_exact_whoever_is_killed_while_a_function_reads(
    files: PipelineFiles, tmp_path: Path
) -> None:
    totals(files, "Lazy", follow=True)
    rows = numbered(range(300))
    give(files, rows)
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        for victim in ("function", "totals-0"):
            # Until the test lets it go on, the function does nothing but read.
            await run.until((tmp_path / "reads").exists)
            pid = await run.found(partial(pid_of, run, victim))
            os.kill(pid, signal.SIGKILL)
            await run.found(partial(other_pid_of, run, victim, pid))
            (tmp_path / "reads").unlink()
        await run.until((tmp_path / "reads").exists)
        (tmp_path / "go-on").touch()
        await run.until(lambda: run.records("out") == len(rows))
        await drained(run)
    await assert_folded(files, rows)
    numbers = by_user(rows, "number")
    notes = by_user(files.rows("out"), "notes")
    assert notes == {user: list(range(1, len(each) + 1)) for user, each in numbers.items()}


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I7", "I12")
async def test_totals_in_a_chain_that_ends_in_a_sink_are_exact_whatever_is_killed(
    files: PipelineFiles, tmp_path: Path
) -> None:
    totals(files, partitions=2, follow=True, is_chained=True)
    await survives(files, tmp_path)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I7", "I12")
async def test_totals_on_redis_are_exact_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    totals(files, partitions=4, follow=True, more="interStepBuffer: {redis: {}}")
    await survives(files, tmp_path)


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_the_next_run_goes_on_with_what_is_remembered(files: PipelineFiles, tmp_path: Path) -> None:
    totals(files, partitions=2, follow=True)
    rows = numbered(range(600))
    await processed(files, rows[:300])
    await processed(files, rows[300:], of=600)
    await assert_folded(files, rows)


@pytest.mark.guarantee("I7", "I12")
async def test_a_record_that_fails_leaves_no_change(files: PipelineFiles, tmp_path: Path) -> None:
    totals(
        files,
        "picky",
        udf=", retryStrategy: {backoff: {interval: 1ms, steps: 2}}",
        edges=["{from: totals, to: dead, kind: deadLetter}"],
    )
    rows = numbered(range(300))
    give(files, rows)
    await ran(tmp_path)
    await assert_folded(files, [row for row in rows if row["number"] % 7 not in (3, 5)])
    dead = sorted(json.loads(letter.value)["number"] for letter in files.envelopes("dead"))
    assert dead == [number for number in range(300) if number % 7 in (3, 5)]


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_a_function_that_does_not_fit_is_refused_and_nothing_is_lost(
    files: PipelineFiles, tmp_path: Path
) -> None:
    rows = numbered(range(200))
    totals(files, follow=True)
    await processed(files, rows[:100])
    give(files, rows[100:])
    totals(files, "Counted", follow=True)
    await refused(tmp_path, "the stored values of `total` are a value of json, and the function declares a counter.")
    totals(files, "without", follow=True)
    await refused(tmp_path, "declares no state")
    totals(files, "without", state=None, follow=True)
    await refused(tmp_path, "vertex totals had a state for each key and now has no state", code="MS-2302")
    # Another state may be added, and all that waits is processed.
    totals(files, "WithLast", follow=True)
    await processed(files, (), of=200)
    await assert_folded(files, rows)
    assert (await remembered(tmp_path, "last")).items() <= {
        (user, numbers[-1]) for user, numbers in by_user(rows, "number").items()
    }


@pytest.mark.parametrize(
    ("function", "state", "says"),
    first(
        1,
        [
            ("without", "{}", "its function declares no state"),
            ("totals", None, "its vertex has no state. Write `state: {}`"),
        ],
    ),
)
async def test_a_vertex_and_its_function_agree_on_whether_there_is_a_state(
    files: PipelineFiles, tmp_path: Path, function: str, state: str | None, says: str
) -> None:
    totals(files, function, state=state)
    give(files, numbered(range(3)))
    await refused(tmp_path, says)


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_a_record_whose_state_would_be_too_large_fails_alone(files: PipelineFiles, tmp_path: Path) -> None:
    totals(
        files,
        "Notes",
        state="{maxBytesPerKey: 1Ki}",
        udf=", retryStrategy: {backoff: {interval: 1ms, steps: 1}}",
        edges=["{from: totals, to: dead, kind: deadLetter}"],
    )
    give(files, [{"user": user, "number": number} for number in (10, 5000, 20) for user in ("ada", "bob")])
    await ran(tmp_path)
    assert files.numbers("out") == [10, 10, 20, 20]
    letters = files.envelopes("dead")
    assert [json.loads(letter.value)["number"] for letter in letters] == [5000, 5000]
    assert all("state.maxBytesPerKey" in letter.reason for letter in letters)
    ended = await called(tmp_path, "state", "list", "totals", "-o", "json")
    kept = [(entry["key"], len(entry["value"])) for entry in map(json.loads, ended.out.splitlines())]
    assert kept == [([user], number) for user in ("ada", "bob") for number in (10, 20)]


@pytest.mark.guarantee("I7")
async def test_what_expires_is_forgotten_by_event_time(files: PipelineFiles, tmp_path: Path) -> None:
    totals(files, "Unseen", follow=True, source=", eventTime: {field: at, format: epoch}")
    seconds = [("ada", 100), ("ada", 101), ("bob", 105), ("ada", 109)]
    give(files, [{"user": user, "at": second, "number": second} for user, second in seconds])
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("totals") == len(seconds))
        # The watermark passes what `bob` wrote at 105; `ada` has written again.
        give(files, [{"user": "eve", "at": 117, "number": 117}])
        await run.until(lambda: run.records("totals") == len(seconds) + 1)
        give(files, [{"user": user, "at": 118, "number": 118} for user in ("ada", "bob")])
        await run.until(lambda: run.records("totals") == len(seconds) + 3)
        await drained(run)
    assert sorted((row["user"], row["number"]) for row in files.rows("out")) == [
        ("ada", 100), ("bob", 105), ("bob", 118), ("eve", 117)
    ]  # fmt: skip
    assert await remembered(tmp_path, "seen") == dict.fromkeys(("ada", "bob", "eve"), True)
