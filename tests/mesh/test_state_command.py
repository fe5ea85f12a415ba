"""`millstream state`: what functions remember is shown, taken elsewhere, and changed, as users do it."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Ended, called, command, start
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.running import Running

pytestmark = pytest.mark.timeout(300)
FUNCTION = """\
import millstream_udf as udf


@udf.map
class Total:
    total = udf.value(int, default=0)
    seen = udf.map_state(str, int)
    note = udf.value(bytes)

    def process(self, record: udf.Record[dict]) -> dict:
        number = record.value["number"]
        self.total += number
        self.seen[str(number % 2)] = number
        return {**record.value, "total": self.total}
"""
Row = dict[str, Any]


def pipeline(directory: Path, *, partitions: int = 2, state: str = "{}") -> PipelineFiles:
    files = PipelineFiles(directory)
    (directory / "total.py").write_text(FUNCTION, encoding="utf-8")
    files.write(
        "- name: in\n  source: {file: {paths: [in.jsonl], format: jsonl, follow: true}, keys: [user]}\n"
        f"- name: total\n  partitions: {partitions}\n  udf: {{python: 'total.py:Total', state: {state}}}\n"
        + files.file_sink("out"),
        ["in -> total", "{from: total, to: out, chain: false}"],
    )
    return files


def give(files: PipelineFiles, numbers: Iterable[int]) -> list[Row]:
    rows = [{"user": f"u{number % 7}", "number": number} for number in numbers]
    with (files.directory / "in.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


async def processed(files: PipelineFiles, records: int) -> None:
    """Run until so many records have been written, then drain."""
    async with start(files.directory, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") >= records)
        await drained(run)


async def drained(run: Running) -> None:
    run.interrupt()
    ended = await run.ended()
    assert ended.exit_code == 0, ended.err
    assert "account: BALANCED" in ended.out


async def state(directory: Path, *words: str, exit_code: int = 0) -> Ended:
    ended = await called(directory, "state", *words)
    assert ended.exit_code == exit_code, ended.out + ended.err
    return ended


def rows_in(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines()]


async def entries(directory: Path, *words: str) -> dict[tuple[str, str, str], Any]:
    """Value by key, state and item."""
    shown = await state(directory, "list", "pipeline.yaml", "total", "--count", "0", "-o", "json", *words)
    return {(row["key"][0], row["state"], row.get("item", "")): row["value"] for row in rows_in(shown.out)}


def folded(rows: Sequence[Row]) -> Mapping[str, list[int]]:
    """The totals of each user, one after the other."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        numbers[row["user"]].append(row["number"])
    return {user: list(accumulate(each)) for user, each in numbers.items()}


@pytest.mark.guarantee("I7", "I12")
@pytest.mark.parametrize("suffix", ["jsonl", pytest.param("parquet", marks=pytest.mark.sweep)])
async def test_a_pipeline_goes_on_with_what_another_one_has_remembered(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "other").mkdir()
    first, other = pipeline(tmp_path / "first"), pipeline(tmp_path / "other", partitions=3)
    rows = give(first, range(40))
    await processed(first, 40)
    file = str(tmp_path / f"total.{suffix}")
    said = await state(first.directory, "export", "total", "--to", file)
    assert said.out == f"21 entries exported to {file}\n"
    said = await state(other.directory, "import", "pipeline.yaml", "total", "--from", file, "-o", "json")
    assert {name: json.loads(said.out)[name] for name in ("changed", "unchanged")} == {"changed": 21, "unchanged": 0}
    assert await entries(other.directory) == await entries(first.directory)
    rows += give(other, range(40, 60))
    await processed(other, 20)
    totals = folded(rows)
    written = folded([{**row, "number": 0} for row in rows[40:]])
    assert {row["total"] for row in other.rows("out")} == {
        total for user in written for total in totals[user][-len(written[user]) :]
    }
    found = await entries(other.directory, "--name", "total")
    assert found == {(user, "total", ""): each[-1] for user, each in totals.items()}


@pytest.mark.guarantee("I7")
async def test_an_import_that_is_killed_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, file = pipeline(tmp_path), tmp_path / "many.jsonl"
    given = {f"user {number}": json.dumps(number).rjust(4000) for number in range(1200)}
    with file.open("w", encoding="utf-8") as lines:
        for user, note in given.items():
            lines.write(json.dumps({"key": [user], "state": "note", "value": note}) + "\n")
    words = ("state", "import", "pipeline.yaml", "total", "--from", str(file))
    for time in (1, 2, 3)[: sized(1, 3)]:
        with monkeypatch.context() as environment:
            environment.setenv(CRASH_AT, f"ledger.commit:after#{time}@total")
            assert (await command(tmp_path, *words)).exit_code == -signal.SIGKILL
        found = await entries(tmp_path)
        assert time > 1 or 0 < len(found) < len(given)
        assert {name[0]: value for name, value in found.items()}.items() <= given.items()
    said = await command(tmp_path, *words, "-o", "json")
    done = json.loads(said.out)
    assert done["changed"] + done["unchanged"] == len(given)
    assert done["unchanged"] == len(found)
    assert {name[0]: value for name, value in (await entries(tmp_path)).items()} == given
    rows = give(files, range(10))
    await processed(files, len(rows))
    assert len(await entries(tmp_path, "--name", "note")) == len(given)


@pytest.mark.guarantee("I7")
async def test_state_is_changed_between_two_runs(tmp_path: Path) -> None:
    files = pipeline(tmp_path)
    rows = give(files, range(21))
    await processed(files, 21)
    before = await entries(tmp_path)
    said = await state(tmp_path, "edit", "total", "--key", "u1", "--name", "total", "--value", "1000")
    assert said.out.startswith("1 entry set in total/")
    await state(tmp_path, "edit", "total", "--key", "u2", "--name", "seen", "--item", '"x"', "--value", "5")
    said = await state(tmp_path, "delete", "total", "--key", "u3")
    assert said.out.startswith("3 entries deleted in ")
    assert (await state(tmp_path, "delete", "total", "--key", "u3")).out == "0 entries deleted\n"
    wanted = before | {("u1", "total", ""): 1000, ("u2", "seen", "x"): 5}
    wanted = {name: value for name, value in wanted.items() if name[0] != "u3"}
    assert await entries(tmp_path) == wanted
    await state(tmp_path, "delete", "total", exit_code=2)
    rows = give(files, range(21, 28))
    await processed(files, 28)
    last = {row["user"]: row["total"] for row in files.rows("out") if row["number"] >= 21}
    assert last == {row["user"]: row["number"] + wanted.get((row["user"], "total", ""), 0) for row in rows}
    audit = await command(tmp_path, "audit", "-o", "json")
    assert [one["action"] for one in rows_in(audit.out) if one["action"] in ("edit", "delete")] == [
        *("edit", "edit", "delete", "delete")
    ]


@pytest.mark.guarantee("I7", "I12")
async def test_state_is_changed_while_the_pipeline_runs_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pipeline(tmp_path, state="{maxBytesPerKey: 1Ki}")
    edit = ("edit", "total", "--key", "u1", "--name", "total")
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        give(files, range(7))
        await run.until(lambda: run.records("out") >= 7)
        # The command dies before it has handed its change over, and after that.
        for time, expected in (("before", 1), ("after", 100)):
            with monkeypatch.context() as environment:
                environment.setenv(CRASH_AT, f"ledger.commit:{time}@total")
                killed = await command(tmp_path, "state", *edit, "--value", "100", "--if", "1")
            assert killed.exit_code == -signal.SIGKILL
            said = await state(tmp_path, *edit, "--value", str(expected), "--if", str(expected), "-o", "json")
            assert json.loads(said.out)["unchanged"] == 1, said.err
        # A worker dies while the lane is asked.
        pid = await run.pid("total-0")
        os.kill(pid, signal.SIGKILL)
        said = await state(tmp_path, *edit, "--value", "200", "--if", "100", "-o", "json")
        assert json.loads(said.out)["commits"][0].keys() == {"lane", "epoch", "sequence"}, said.err
        await run.until_replaced("total-0", pid)
        for words, why in (
            (("--value", "9", "--if", "100"), "has another value"),
            (("--value", "9" * 2000), "state.maxBytesPerKey"),
        ):
            refused = await state(tmp_path, *edit, *words, exit_code=2)
            assert "MS-2309" in refused.err
            assert why in refused.err
        await state(tmp_path, "delete", "total", "--key", "u2")
        give(files, [8, 9])
        await run.until(lambda: run.records("out") >= 9)
        await drained(run)
    assert {row["user"]: row["total"] for row in files.rows("out") if row["number"] in (8, 9)} == {"u1": 208, "u2": 9}
    audit = [one for one in rows_in((await command(tmp_path, "audit", "-o", "json")).out) if "made" in one]
    assert [one["made"][0] for one in audit] == [
        {"key": ["u1"], "state": "total", "before": 100, "after": 200},
        {"key": ["u2"], "state": "total", "before": 2, "after": None},
    ]


async def test_what_cannot_be_imported_is_named_and_nothing_is(tmp_path: Path) -> None:
    pipeline(tmp_path, state="{maxBytesPerKey: 1Ki}")
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"key": ["a"], "state": "total", "value": 1}\n'
        '{"key": ["a"], "state": "totals", "value": 1}\n'
        '\n{"key": ["a"], "state": "seen", "kind": "value", "value": 1}\n'
        '{"key": ["a"], "state": "total", "value": 2}\n'
    )
    words = ("import", "pipeline.yaml", "total", "--from", str(file))
    said = (await state(tmp_path, *words, exit_code=2)).err
    assert "MS-2309" in said
    assert "nothing was changed, because 3 entries cannot be stored" in said
    for place, what in (
        (2, "`state` is 'totals', and the function declares note, seen, total"),
        (4, "`seen` is a map of the function, and not a value"),
        (5, f"{file}:1 is about the same entry"),
    ):
        assert f"{file}:{place}: {what}" in said
    file.write_text(
        '{"key": ["b"], "state": "total", "value": 1}\n'
        + json.dumps({"key": ["a"], "state": "note", "value": "x" * 2000})
        + "\n"
    )
    said = (await state(tmp_path, *words, exit_code=2)).err
    assert "the state of its key would have 2,017 bytes; at most 1,024 are allowed (`state.maxBytesPerKey`)" in said
    assert await entries(tmp_path) == {}


@pytest.mark.guarantee("I12")
async def test_what_changes_is_shown_as_it_is_committed(tmp_path: Path) -> None:
    files = pipeline(tmp_path)
    rows = give(files, range(3))
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") >= 3)
        words = ("state", "watch", "total", "--name", "total", "-o", "json")
        async with start(tmp_path, *words) as watch, start(tmp_path, *words, "--key", "u1") as other:
            # A watch begins at some time: when it has shown one, it shows all that follow.
            number = 3
            while not (watch.out() and other.out()):
                number += 1
                rows += give(files, [number])
                await run.until(lambda: run.records("out") >= len(rows))  # noqa: B023
            shown = len(rows_in(watch.out()))
            rows += give(files, range(1000, 1050))
            last = {user: totals[-1] for user, totals in folded(rows).items()}
            await watch.until(lambda: seen(watch).items() >= last.items())
            assert len(rows_in(watch.out())) > shown
            other.interrupt()
            assert (await other.ended()).exit_code == 0
            assert {row["key"][0] for row in rows_in(other.out())} == {"u1"}
            await drained(run)
            ended = await watch.ended()
    assert ended.exit_code == 0
    for row in rows_in(ended.out):
        assert row["value"] in folded(rows)[row["key"][0]]


def seen(watch: Running) -> dict[str, int]:
    """The last total of each user that was shown."""
    lines = watch.out().split("\n")[:-1]
    return {row["key"][0]: row["value"] for row in map(json.loads, lines)}


async def test_pages_have_whole_keys(tmp_path: Path) -> None:
    files = pipeline(tmp_path)
    give(files, range(21))
    await processed(files, 21)
    every = [row["key"][0] for row in rows_in((await state(tmp_path, "list", "total", "-o", "json")).out)]
    assert every == sorted(every)
    pages, after = list[str](), tuple[str, ...]()
    while page := rows_in((await state(tmp_path, "list", "total", "--count", "4", *after, "-o", "json")).out):
        pages += [row["key"][0] for row in page]
        after = ("--after", pages[-1])
    assert pages == every
    said = await state(tmp_path, "list", "total", "--count", "1", "--prefix", "u")
    assert said.out.splitlines()[-1].startswith("3 entries of 2 lanes, which have ")
    assert said.out.splitlines()[-1].endswith("; 18 more follow (`--after=u0`)")
    one = await state(tmp_path, "get", "total", "--key", "u6", "--name", "seen")
    assert one.out.splitlines()[:2] == ["u6  seen[0] = 20", "u6  seen[1] = 13"]
