"""Timers, as users run them: each fires exactly once, with its time, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.mesh.running import called, command, start
from tests.mesh.test_states import drained, give, other_pid_of, pid_of, ran
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
USERS = 40
FUNCTION = """\
from datetime import timedelta

import millstream_udf as udf


@udf.map
class Reminding:
    orders = udf.counter()

    def process(self, record: udf.Record[dict]) -> None:
        self.orders += 1
        number = record.value["number"]
        udf.timer(f"order {number}", after=timedelta(seconds=20))
        udf.timer("idle", after=timedelta(days=1))
        if number % 9 == 0:
            udf.timer("clock", at=1, clock="processing")

    def on_timer(self, timer: udf.Timer) -> dict:
        self.orders += 1
        return {"user": timer.keys[0], "timer": timer.name, "at": timer.at_us // 1_000_000, "orders": self.orders.value}


@udf.map
class Refusing(Reminding):
    def on_timer(self, timer: udf.Timer) -> None:
        raise udf.DeadLetter("not now")


@udf.map
class Without:
    orders = udf.counter()

    def process(self, record: udf.Record[dict]) -> dict:
        return record.value
"""


def reminders(
    files: PipelineFiles,
    *,
    function: str = "Reminding",
    udf: str = "",
    partitions: int = 1,
    follow: bool = True,
    is_chained: bool = False,
    state: str = ", state: {}",
) -> None:
    """A pipeline whose function sets timers for the records of `in.jsonl`, by user. `udf`: in place of the function in
    Python."""
    (files.directory / "timers.py").write_text(FUNCTION, encoding="utf-8")
    in_python = f"python: 'timers.py:{function}'{state}"
    files.write(
        f"- name: in\n  source: {{file: {{paths: [in.jsonl], format: jsonl, follow: {str(follow).lower()}}}, "
        "keys: [user], eventTime: {field: at, format: epoch}}\n"
        f"- name: remind\n  partitions: {partitions}\n"
        f"  udf: {{{udf or in_python}}}\n"
        + files.file_sink("out", more=f"  partitions: {partitions if is_chained else 1}\n")
        + files.file_sink("dead"),
        [
            "in -> remind",
            f"{{from: remind, to: out, chain: {str(is_chained).lower()}}}",
            "{from: remind, to: dead, kind: deadLetter}",
        ],
    )


def ordered(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"user": f"u{number * number % USERS}", "number": number, "at": 1000 + number // 5}
        for number in range(first, first + count)
    ]


def fired(files: PipelineFiles) -> Counter[tuple[str, int]]:
    """How often each timer of an order has fired, by name and second."""
    return Counter((row["timer"], row["at"]) for row in files.rows("out") if row["timer"].startswith("order"))


async def set_timers(directory: Path) -> list[dict[str, Any]]:
    ended = await called(directory, "state", "list", "remind", "--count", "0", "-o", "json")
    assert ended.exit_code == 0, ended.err
    return [entry for entry in map(json.loads, ended.out.splitlines()) if entry["kind"] == "timer"]


async def survives(files: PipelineFiles, directory: Path) -> None:
    part, rows = sized(600, 1200), list[dict[str, Any]]()

    def give_more() -> None:
        rows.extend(ordered(len(rows), part))
        give(files, rows[-part:])

    give_more()
    async with start(directory, "run", "pipeline.yaml", "--workers", "2") as run:
        for victim in ("remind-0", "function", "broker", "remind-0")[: sized(2, 4)]:
            seen = run.records("out")
            give_more()
            await run.until_more("out", than=seen)
            pid = await run.found(partial(pid_of, run, victim))
            os.kill(pid, signal.SIGKILL)
            await run.found(partial(other_pid_of, run, victim, pid))
        # Those of the last 20 seconds and of idle users are still set, and the others have fired.
        last = rows[-1]["at"]
        due = [row for row in rows if row["at"] + 20 <= last]
        clocks = len({row["number"] for row in rows if row["number"] % 9 == 0})
        await run.until(lambda: len([row for row in files.rows("out") if row["timer"] != "clock"]) >= len(due))
        await drained(run)
    counts = fired(files)
    assert set(counts.values()) == {1}
    wanted = {(f"order {row['number']}", row["at"] + 20) for row in due}
    assert counts.keys() == wanted
    timers = await set_timers(directory)
    waiting = {(one["item"], one["value"]["at_us"] // 1_000_000) for one in timers if one["item"].startswith("order")}
    assert waiting == {(f"order {row['number']}", row["at"] + 20) for row in rows} - wanted
    latest = {row["user"]: row["at"] for row in rows}
    idle = {one["key"][0]: one["value"]["at_us"] // 1_000_000 - 86_400 for one in timers if one["item"] == "idle"}
    assert idle == latest
    # Each has fired, but one that was set again before it fired is one.
    assert 0 < sum(row["timer"] == "clock" for row in files.rows("out")) <= clocks
    for user in latest:
        numbers = [row["orders"] for row in files.rows("out") if row["user"] == user]
        assert sorted(set(numbers)) == sorted(numbers)


@pytest.mark.guarantee("I1", "I5", "I7", "I12")
async def test_timers_fire_exactly_once_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    reminders(files, partitions=3)
    await survives(files, tmp_path)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I5", "I7", "I12")
async def test_timers_in_a_chain_that_ends_in_a_sink_fire_exactly_once_whatever_is_killed(
    files: PipelineFiles, tmp_path: Path
) -> None:
    reminders(files, partitions=2, is_chained=True)
    await survives(files, tmp_path)


async def test_at_the_end_of_the_input_all_fire(files: PipelineFiles, tmp_path: Path) -> None:
    reminders(files, follow=False)
    give(files, ordered(1, 6))
    ended = await ran(tmp_path)
    assert "remind: 12 timers fired" in ended.out
    rows = files.rows("out")
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert Counter(row["timer"].split()[0] for row in rows) == {"order": 6, "idle": 6}
    assert await set_timers(tmp_path) == []


@pytest.mark.guarantee("I2")
async def test_a_timer_that_is_given_up_is_a_dead_letter(files: PipelineFiles, tmp_path: Path) -> None:
    reminders(files, function="Refusing", follow=False)
    give(files, ordered(1, 1))
    ended = await ran(tmp_path)
    assert "remind: 2 timers fired" in ended.out
    letters = files.envelopes("dead")
    assert [(letter.reason, json.loads(letter.value)["timer"], letter.keys) for letter in letters] == [
        ("not now", "order 1", ("u1",)),
        ("not now", "idle", ("u1",)),
    ]


@pytest.mark.sweep
async def test_a_vertex_without_state_and_a_function_without_on_timer_are_refused(
    files: PipelineFiles, tmp_path: Path
) -> None:
    reminders(files, state="")
    give(files, ordered(1, 40))
    ended = await called(tmp_path, "validate", "pipeline.yaml", "--import")
    assert "MS-3109" in ended.out + ended.err
    assert "`state: {}`" in ended.out + ended.err
    reminders(files)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("remind") == 40)
        await drained(run)
    listed = await called(tmp_path, "state", "list", "remind", "--prefix", "u1")
    assert "u1  timer idle at 1970-01-02 00:16:47.000 (event time)" in listed.out
    reminders(files, function="Without")
    ended = await command(tmp_path, "run", "pipeline.yaml")
    assert ended.exit_code != 0
    assert "the function has no `on_timer`, and" in ended.err
