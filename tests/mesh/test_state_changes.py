"""What is remembered outlives changes of the function and of the pipeline around it, or the change is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mesh.running import command, start
from tests.mesh.test_states import (
    Row,
    assert_folded,
    by_user,
    drained,
    give,
    numbered,
    ran,
    refused,
    remembered,
    totals,
)

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
EXPIRING = """\
from datetime import timedelta

import millstream_udf as udf


class Seen:
    def process(self, record: udf.Record[dict]) -> dict | None:
        was_seen, self.seen = self.seen, True
        return None if was_seen else record.value


@udf.map
class Kept(Seen):
    seen = udf.value(bool, default=False)


@udf.map
class Expiring(Seen):
    seen = udf.value(bool, default=False, ttl=timedelta(seconds=10))
"""
VERSIONS = """\
import millstream_udf as udf


class Counting:
    def process(self, record: udf.Record[dict]) -> dict:
        profile = self.profile
        profile["total"] = profile.get("total", 0) + record.value["number"]
        return {**record.value, "total": profile["total"]}


@udf.map
class First(Counting):
    profile = udf.value(dict, default={})


@udf.map
class Second(Counting):
    profile = udf.value(dict, default={}, version=2)


@udf.map
class Migrating(Counting):
    profile = udf.value(dict, default={}, version=2, migrate={1: lambda old: {**old, "migrated": True}})
"""


def at(rows: Iterable[tuple[str, int]]) -> list[Row]:
    return [{"user": user, "at": second, "number": second} for user, second in rows]


async def processed(files: PipelineFiles, rows: Sequence[Row], *, of: int) -> None:
    """Run until these rows have passed the function as well, `of` in all; then drain."""
    give(files, rows)
    async with start(files.directory, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("totals") == of)
        await drained(run)


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_expiry_is_switched_on_over_what_never_expired(files: PipelineFiles, tmp_path: Path) -> None:
    def pipeline(function: str) -> None:
        totals(files, function, follow=True, source=", eventTime: {field: at, format: epoch}")
        (tmp_path / "states.py").write_text(EXPIRING)

    pipeline("Kept")
    await processed(files, at([("ada", 100), ("bob", 101)]), of=2)
    pipeline("Expiring")
    # From now on what `ada` writes expires; what `bob` wrote before never does.
    await processed(files, at([("ada", 110), ("eve", 130)]), of=4)
    await processed(files, at([("eve", 131), ("ada", 132), ("bob", 133)]), of=7)
    assert [(row["user"], row["at"]) for row in files.rows("out")] == [
        ("ada", 100), ("bob", 101), ("eve", 130), ("ada", 132)
    ]  # fmt: skip
    # And off again: what is written from now on stays.
    pipeline("Kept")
    await processed(files, at([("eve", 134), ("ada", 135)]), of=9)
    await processed(files, at([("bob", 500), ("eve", 900), ("ada", 901)]), of=12)
    assert len(files.rows("out")) == 4


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_a_new_version_reads_what_the_old_one_wrote_and_there_is_no_way_back(
    files: PipelineFiles, tmp_path: Path
) -> None:
    def pipeline(function: str) -> None:
        totals(files, function, partitions=2, follow=True)
        (tmp_path / "states.py").write_text(VERSIONS)

    rows = numbered(range(200))
    pipeline("First")
    await processed(files, rows[:100], of=100)
    pipeline("Second")
    await refused(tmp_path, "`profile`", "version 1", "migrate={1: ...}")
    pipeline("Migrating")
    await processed(files, rows[100:], of=200)
    pipeline("First")
    await refused(tmp_path, "`profile`", "version 2")
    numbers = by_user(rows, "number")
    assert by_user(files.rows("out"), "total") == {user: list(accumulate(each)) for user, each in numbers.items()}
    profiles = await remembered(tmp_path, "profile")
    later = {row["user"] for row in rows[100:]} & {row["user"] for row in rows[:100]}
    assert {user for user, profile in profiles.items() if profile.get("migrated")} == later


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_a_key_with_ten_mebibytes_is_refused_and_others_go_on(files: PipelineFiles, tmp_path: Path) -> None:
    totals(
        files,
        "Notes",
        udf=", retryStrategy: {backoff: {interval: 1ms, steps: 1}}",
        edges=["{from: totals, to: dead, kind: deadLetter}"],
    )
    give(files, [{"user": user, "number": number} for number in (10, 10 << 20, 20) for user in ("ada", "bob")])
    await ran(tmp_path)
    assert files.numbers("out") == [10, 10, 20, 20]
    letters = files.envelopes("dead")
    assert [json.loads(letter.value)["user"] for letter in letters] == ["ada", "bob"]
    assert all("state.maxBytesPerKey" in letter.reason for letter in letters), letters[0].reason
    totals(files, "Notes", state="{maxBytesPerKey: 10Mi}")
    ended = await command(tmp_path, "validate", "pipeline.yaml")
    assert ended.exit_code == 2
    assert "maxBytesPerKey" in ended.err + ended.out


@pytest.mark.sweep
@pytest.mark.guarantee("I4", "I7")
async def test_one_key_has_all_records(files: PipelineFiles, tmp_path: Path) -> None:
    rows = [{"user": "ada", "number": number} for number in range(20_000)]
    totals(files, partitions=4)
    give(files, rows)
    await ran(tmp_path)
    await assert_folded(files, rows)


@pytest.mark.sweep
@pytest.mark.guarantee("I7", "I12")
async def test_a_function_that_leaves_its_chain_goes_on_with_what_it_remembers(
    files: PipelineFiles, tmp_path: Path
) -> None:
    def pipeline(*, is_chained: bool) -> None:
        totals(files, follow=True)
        chain = str(is_chained).lower()
        files.write(
            "- name: in\n  source: {file: {paths: [in.jsonl], format: jsonl, follow: true}, keys: [user]}\n"
            "- name: totals\n  udf: {python: 'states.py:totals', state: {}}\n"
            "- name: shape\n  udf: {builtin: {name: cat}}\n" + files.file_sink("out"),
            [
                "in -> totals",
                f"{{from: totals, to: shape, chain: {chain}}}",
                "{from: shape, to: out, chain: false}",
            ],
        )

    rows = numbered(range(400))
    pipeline(is_chained=True)
    await processed(files, rows[:200], of=200)
    pipeline(is_chained=False)
    await processed(files, rows[200:], of=400)
    await assert_folded(files, rows)
