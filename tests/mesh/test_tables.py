"""Tables that a function reads: every partition has all of their records, and whatever is killed, no record sees a
version before the one that is committed."""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.mesh.running import called, start
from tests.mesh.test_states import drained, other_pid_of, pid_of
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
KEYS = 11
FUNCTIONS = """\
import json

import millstream_udf as udf


@udf.map
def priced(record: udf.Record) -> udf.Message:
    row = json.loads(record.value)
    return udf.Message("" if row["price"] is None else json.dumps(row["price"]), keys=[row["key"]])


@udf.map
class Enrich:
    prices = udf.table(int)
    count = udf.value(int, default=0)

    def process(self, record: udf.Record[dict], context: udf.Context) -> dict:
        self.count += 1
        row = {**record.value, "partition": context.partition, "prices": dict(self.prices)}
        return {**row, "count": self.count}


@udf.map
def plain(record: udf.Record[dict], context: udf.Context) -> dict:
    return {**record.value, "partition": context.partition, "prices": dict(context.tables["prices"])}
"""


def write(files: PipelineFiles, *, function: str = "Enrich", state: str = ", state: {}", partitions: int = 2) -> None:
    (files.directory / "tables.py").write_text(FUNCTIONS, encoding="utf-8")
    follow = "format: jsonl, follow: true"
    files.write(
        f"- name: in\n  source: {{file: {{paths: [in.jsonl], {follow}}}, keys: [user]}}\n"
        f"- name: changes\n  source: {{file: {{paths: [changes.jsonl], {follow}}}}}\n"
        "- name: prices\n  udf: {python: 'tables.py:priced'}\n"
        f"- name: enrich\n  partitions: {partitions}\n"
        f"  udf: {{python: 'tables.py:{function}', tables: {{prices: {{waitFor: 5}}}}{state}}}\n"
        + files.file_sink("out")
        + files.file_sink("again"),
        ["changes -> prices", "in -> enrich", "prices -> enrich", "enrich -> out", "enrich -> again"],
    )


class Inputs:
    """The files of the two sources, which grow."""

    def __init__(self, files: PipelineFiles) -> None:
        self.files = files
        self.numbers = 0
        self.versions: list[Mapping[str, int]] = [{}]
        """The table after so many changes."""

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        with (self.files.directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def change(self, changes: int) -> None:
        rows: list[dict[str, Any]] = []
        for number in range(len(self.versions), len(self.versions) + changes):
            row = {"key": f"k{number * number % KEYS}", "price": number if number % 4 else None}
            table = {key: price for key, price in self.versions[-1].items() if key != row["key"]}
            self.versions.append(table if row["price"] is None else {**table, str(row["key"]): number})
            rows.append(row)
        self._append("changes", rows)

    def give(self, records: int) -> None:
        numbers = range(self.numbers, self.numbers + records)
        self._append("in", [{"number": number, "user": f"u{number % 17}"} for number in numbers])
        self.numbers += records

    def check(self) -> None:
        """Each record was put out once, both sinks agree, and what it saw is a version of the table, never an older
        one than a record of its partition before."""
        rows, again = ({row["number"]: row for row in self.files.rows(sink)} for sink in ("out", "again"))
        assert len(rows) == len(self.files.rows("out")) == self.numbers
        assert rows == again
        version: defaultdict[int, int] = defaultdict(int)
        for row in self.files.rows("out"):
            at = version[row["partition"]]
            while self.versions[at] != row["prices"]:
                at += 1
            version[row["partition"]] = at
            # Nothing is put out with less than was to be waited for.
            assert at >= 3


async def table_of(directory: Path) -> list[Mapping[str, int]]:
    """The table of each partition, as it is committed."""
    ended = await called(directory, "state", "list", "enrich", "--count", "0", "-o", "json")
    assert ended.exit_code == 0, ended.err
    found: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for entry in map(json.loads, ended.out.splitlines()):
        if entry["state"] == "table prices of prices-enrich":
            found[entry["partition"]][entry["key"][0]] = entry["value"]
    return [table for _, table in sorted(found.items())]


@pytest.mark.guarantee("I1", "I7", "I12")
async def test_records_see_the_committed_version_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    inputs = Inputs(files)
    write(files)
    inputs.give(200)
    # In the end, the table has the five rows for which a new partition waits.
    inputs.change(sized(30, 20))
    async with start(tmp_path, "run", "pipeline.yaml", "--workers", "2") as run:
        await run.until_more("out", than=0)
        for victim in ("enrich-0", "broker", "function")[: sized(2, 3)]:
            seen = run.records("out")
            inputs.change(30)
            inputs.give(300)
            await run.until_more("out", than=seen)
            pid = await run.found(partial(pid_of, run, victim))
            os.kill(pid, signal.SIGKILL)
            inputs.change(30)
            await run.found(partial(other_pid_of, run, victim, pid))
        inputs.give(200)
        await run.until(lambda: run.records("out") == run.records("again") == inputs.numbers)
        await drained(run)
    inputs.check()
    assert await table_of(tmp_path) == [inputs.versions[-1]] * 2
    # Another number of partitions, and a function without a state of its own.
    write(files, partitions=3)
    inputs.give(100)
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == run.records("again") == inputs.numbers)
        await drained(run)
    assert await table_of(tmp_path) == [inputs.versions[-1]] * 3
    last = [row for row in files.rows("out") if row["number"] >= inputs.numbers - 100]
    assert {row["partition"] for row in last} == {0, 1, 2}
    assert all(row["prices"] == inputs.versions[-1] for row in last)
