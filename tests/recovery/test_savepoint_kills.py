"""A pipeline goes on from a savepoint, in another data directory and with other partitions, and whoever takes the
savepoint or begins with it is killed: each record counts once, in what is remembered and in what was written."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from itertools import accumulate
from pathlib import Path

import pytest

from millstream.durable import CRASH_AT
from tests.mesh.conftest import PipelineFiles
from tests.mesh.running import Ended, command, start
from tests.recovery.test_state_moves import FUNCTION

RECORDS, USERS = 60, 17
pytestmark = pytest.mark.timeout(600)

TAKING = (
    "savepoint.name:before",
    "savepoint.begin:before",
    "savepoint.begin:after",
    "savepoint.file:after#1",
    "savepoint.file.sync:after#2",
    "savepoint.manifest.sync:before",
    "savepoint.sync:after#3",
    "savepoint.name:after",
    "savepoint.name.sync:before",
)
RESTORING = (
    "savepoint.mark:after#3@total",
    "data.clear:before#1",
    "savepoint.mark:before#1@in",
    "savepoint.mark:before#1@total",
    "savepoint.mark:after#1@out",
    "savepoint.restored:before",
)


class Story:
    """A pipeline with totals, whose input grows."""

    def __init__(self, directory: Path) -> None:
        self.files = PipelineFiles(directory)
        self.directory = directory
        self.given = 0
        (directory / "total.py").write_text(FUNCTION, encoding="utf-8")

    def write(self, partitions: int, *, chained: bool) -> None:
        more = f"  partitions: {partitions}\n" if chained else ""
        self.files.write(
            "- name: in\n  source: {file: {paths: [in.jsonl], format: jsonl, follow: true}, keys: [user]}\n"
            f"- name: total\n  partitions: {partitions}\n  udf: {{python: 'total.py:Total', state: {{}}}}\n"
            + self.files.file_sink("out", more=more),
            ["in -> total", f"{{from: total, to: out, chain: {str(chained).lower()}}}"],
        )

    def give(self) -> None:
        with (self.directory / "in.jsonl").open("a") as file:
            for number in range(self.given, self.given + RECORDS):
                file.write(json.dumps({"number": number, "user": f"u{number * number % USERS}"}) + "\n")
        self.given += RECORDS

    async def run(self, *options: str) -> None:
        """Run until everything is written, drain, and check."""
        async with start(self.directory, "run", "pipeline.yaml", "--workers", "1", *options) as running:
            await running.until(lambda: len(self.files.rows("out")) >= self.given)
            running.interrupt()
            ended = await running.ended()
        assert ended.exit_code == 0, ended.err
        self.check()

    def check(self) -> None:
        numbers: dict[str, list[int]] = defaultdict(list)
        totals: dict[str, list[int]] = defaultdict(list)
        for number in range(self.given):
            numbers[f"u{number * number % USERS}"].append(number)
        for row in self.files.rows("out"):
            totals[row["user"]].append(row["total"])
        assert {user: sorted(each) for user, each in totals.items()} == {
            user: list(accumulate(each)) for user, each in numbers.items()
        }


async def killed(monkeypatch: pytest.MonkeyPatch, point: str, directory: Path, *arguments: str) -> None:
    """Run a command that dies at a point."""
    monkeypatch.setenv(CRASH_AT, point)
    ended = await command(directory, *arguments)
    monkeypatch.delenv(CRASH_AT)
    assert ended.exit_code == -signal.SIGKILL, (point, ended.err)


def refused(ended: Ended, code: str) -> None:
    assert (ended.exit_code, f"error[{code}]" in ended.err) == (2, True), ended.err


@pytest.mark.guarantee("I1", "I7", "I8", "I12")
@pytest.mark.parametrize(
    ("taking", "restoring", "chained"),
    [
        (TAKING[:1], RESTORING[:1], True),
        pytest.param(TAKING[1:], RESTORING[1:], False, marks=pytest.mark.sweep),
    ],
)
async def test_totals_go_on_from_a_savepoint_whoever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taking: tuple[str, ...], restoring: tuple[str, ...], chained: bool
) -> None:
    story = Story(tmp_path)
    story.write(2, chained=not chained)
    story.give()
    await story.run()
    savepoints = tmp_path / ".millstream" / "p" / "savepoints"
    for number, point in enumerate(taking):
        name = f"s{number}"
        await killed(monkeypatch, point, tmp_path, "savepoint", name)
        if not (savepoints / name).exists():
            taken = await command(tmp_path, "savepoint", name)
            assert taken.exit_code == 0, taken.err
        assert sorted(path.name for path in savepoints.iterdir()) == [f"s{one}" for one in range(number + 1)]
    story.write(5, chained=chained)
    story.give()
    begin = ("--data-dir", "new", "--from-savepoint", f"s{len(taking) - 1}")
    for point in restoring:
        await killed(monkeypatch, point, tmp_path, "run", "pipeline.yaml", *begin)
        refused(await command(tmp_path, "run", "pipeline.yaml", "--data-dir", "new"), "MS-2312")
    await story.run(*begin)
    if chained:
        return
    # And as any other run from there.
    refused(await command(tmp_path, "run", "pipeline.yaml", *begin), "MS-2311")
    story.give()
    await story.run("--data-dir", "new")
