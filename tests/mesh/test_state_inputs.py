"""Functions that remember and read several edges: the edge of a record is known, and all edges share the state."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.mesh.running import called, start
from tests.mesh.test_states import drained, other_pid_of, pid_of, refused
from tests.support.sizes import sized

if TYPE_CHECKING:
    from tests.mesh.conftest import PipelineFiles

pytestmark = pytest.mark.timeout(300)
FUNCTIONS = """\
import millstream_udf as udf


@udf.map
class Sums:
    sums = udf.map_state(str, int)

    def process(self, record: udf.Record[dict]) -> dict:
        edge = record.edge
        if record.value["number"] == 13:
            raise udf.DeadLetter("unlucky")
        self.sums[edge] = self.sums.get(edge, 0) + record.value["number"]
        return {**record.value, "edge": edge, "sum": self.sums[edge], "all": sum(self.sums.values())}


@udf.map
def plain(record: udf.Record[dict], context: udf.Context) -> dict:
    assert context.edge == record.edge
    return {**record.value, "edge": record.edge}


@udf.map
def marked(record: udf.Record[dict]) -> dict:
    return {**record.value, "then": record.edge}
"""
USERS = 17
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Given records by the vertex that reads them."""


def write(
    files: PipelineFiles,
    sources: Iterable[str] = ("left", "right"),
    *,
    function: str = "Sums",
    state: str = ", state: {}",
    partitions: int = 1,
    edges: Sequence[str] = (),
    more: str = "",
    vertices: str = "",
) -> None:
    """A pipeline whose vertex `sums` reads an edge from each of the sources, by user."""
    (files.directory / "inputs.py").write_text(FUNCTIONS, encoding="utf-8")
    read = "".join(
        f"- name: {name}\n  source: {{file: {{paths: [{name}.jsonl], format: jsonl, follow: true}}, keys: [user]}}\n"
        for name in sources
    )
    files.write(
        read
        + f"- name: sums\n  partitions: {partitions}\n  udf: {{python: 'inputs.py:{function}'{state}}}\n"
        + files.file_sink("out")
        + vertices,
        [*(f"{{from: {name}, to: sums, chain: false}}" for name in sources), *(edges or ["sums -> out"])],
        more=more,
    )


def give(files: PipelineFiles, rows: Rows) -> None:
    for name, some in rows.items():
        with (files.directory / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in some)


def numbered(numbers: range) -> list[dict[str, Any]]:
    return [{"user": f"u{number * number % USERS}", "number": number} for number in numbers if number != 13]


async def remembered(directory: Path) -> dict[tuple[str, str], int]:
    """The sums, by user and edge, as `millstream state` shows them."""
    ended = await called(directory, "state", "list", "sums", "--count", "0", "-o", "json")
    assert ended.exit_code == 0, ended.err
    entries = [json.loads(line) for line in ended.out.splitlines()]
    return {(entry["key"][0], entry["item"]): entry["value"] for entry in entries}


async def assert_folded(files: PipelineFiles, given: Rows, *, edges: Mapping[str, str] | None = None) -> None:
    """Outputs and state are those of these records, each once, and of each edge in order. `edges`: their names."""
    names = edges or {name: f"{name}-sums" for name in given}
    numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for name, rows in given.items():
        for row in rows:
            numbers[row["user"], names[name]].append(row["number"])
    written: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    totals: Counter[str] = Counter()
    for row in files.rows("out"):
        written[row["user"], row["edge"]].append((row["number"], row["sum"]))
        # Whatever the order between the edges, the state was that of all records before.
        totals[row["user"]] += row["number"]
        assert row["all"] == totals[row["user"]]
    assert written == {at: list(zip(each, accumulate(each), strict=True)) for at, each in numbers.items()}
    assert await remembered(files.directory) == {at: sum(each) for at, each in numbers.items()}


async def survives(files: PipelineFiles, directory: Path) -> None:
    """Whatever of a run is killed, its outputs and its state are those of its inputs."""
    given: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}

    def give_more() -> None:
        for name, part in (("left", 900), ("right", 400)):
            rows = numbered(range(len(given[name]), len(given[name]) + part))
            given[name] += rows
            give(files, {name: rows})

    give_more()
    async with start(directory, "run", "pipeline.yaml", "--workers", "2") as run:
        for victim in ("sums-0", "function", "broker")[: sized(2, 3)]:
            seen = run.records("out")
            give_more()
            await run.until_more("out", than=seen)
            pid = await run.found(partial(pid_of, run, victim))
            os.kill(pid, signal.SIGKILL)
            await run.found(partial(other_pid_of, run, victim, pid))
        give_more()
        await run.until(lambda: run.records("out") == sum(map(len, given.values())))
        await drained(run)
    await assert_folded(files, given)


@pytest.mark.guarantee("I1", "I4", "I7", "I12")
async def test_sums_over_two_edges_are_exact_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    write(files, partitions=3)
    await survives(files, tmp_path)


@pytest.mark.sweep
@pytest.mark.guarantee("I1", "I7", "I12")
async def test_sums_over_two_edges_on_redis_are_exact_whatever_is_killed(files: PipelineFiles, tmp_path: Path) -> None:
    write(files, partitions=2, more="interStepBuffer: {redis: {}}")
    await survives(files, tmp_path)


async def processed(files: PipelineFiles, given: Rows, *, of: int) -> None:
    """Run until these records have been written as well, in all `of`; then drain."""
    give(files, given)
    async with start(files.directory, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == of)
        await drained(run)


@pytest.mark.sweep
@pytest.mark.guarantee("I7")
async def test_edges_come_and_go_and_what_is_remembered_stays(files: PipelineFiles, tmp_path: Path) -> None:
    rows = numbered(range(14, 400))
    write(files, ["left"], function="plain", state="")
    await processed(files, {"left": rows[:50]}, of=50)
    plain = files.rows("out")
    assert [(row["number"], row["edge"]) for row in plain] == [(row["number"], "left-sums") for row in rows[:50]]
    # It remembers from now on, and goes on where it was.
    write(files, ["left"])
    await processed(files, {"left": rows[50:100]}, of=100)
    write(files, ["left", "right"])
    await processed(files, {"left": rows[100:200], "right": rows[200:300]}, of=300)
    left, right = [*rows[50:200]], rows[200:300]
    give(files, {"left": rows[300:301]})
    # A source that is removed loses its place, and says so; its edge has to be empty.
    write(files, ["right"])
    await refused(tmp_path, "its position would be forgotten", code="MS-2302")
    write(files, ["left", "right"])
    await processed(files, {}, of=301)
    write(files, ["right"])
    give(files, {"right": rows[301:320]})
    async with start(tmp_path, "run", "pipeline.yaml", "--forget", "left") as run:
        await run.until(lambda: run.records("out") == 320)
        await drained(run)
    for path in (tmp_path / "out").rglob("*.jsonl"):
        kept = [line for line in path.read_text().splitlines() if "sum" in json.loads(line)]
        path.write_text("".join(f"{line}\n" for line in kept))
    await assert_folded(files, {"left": [*left, rows[300]], "right": [*right, *rows[301:320]]})


@pytest.mark.sweep
async def test_a_dead_letter_names_the_edge_by_which_it_came_and_goes_back_there(
    files: PipelineFiles, tmp_path: Path
) -> None:
    edges = ["sums -> out", "{from: sums, to: dead, kind: deadLetter}"]
    write(files, edges=edges, vertices=files.file_sink("dead"))
    give(files, {"left": [{"user": "ada", "number": 1}], "right": [{"user": "ada", "number": 13}]})
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: (run.records("out"), run.records("dead")) == (1, 1))
        await drained(run)
    (letter,) = files.envelopes("dead")
    assert letter.position.startswith("sums/right-sums/0/")
    (tmp_path / "inputs.py").write_text(FUNCTIONS.replace("== 13", "== 14"), encoding="utf-8")
    ended = await called(tmp_path, "deadletters", "replay", "pipeline.yaml")
    assert ended.exit_code == 0, ended.out + ended.err
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == 2)
        await drained(run)
    await assert_folded(files, {"left": [{"user": "ada", "number": 1}], "right": [{"user": "ada", "number": 13}]})


async def test_every_function_knows_the_edge(files: PipelineFiles, tmp_path: Path) -> None:
    more = "- name: then\n  udf: {python: 'inputs.py:marked'}\n"
    edges = ["{from: sums, to: then, chain: true}", "{from: then, to: out, name: last}"]
    write(files, function="plain", state="", edges=edges, vertices=more)
    give(files, {"left": [{"user": "ada", "number": 1}], "right": [{"user": "bob", "number": 2}]})
    async with start(tmp_path, "run", "pipeline.yaml") as run:
        await run.until(lambda: run.records("out") == 2)
        await drained(run)
    assert sorted((row["number"], row["edge"], row["then"]) for row in files.rows("out")) == [
        (1, "left-sums", "sums-then"),
        (2, "right-sums", "sums-then"),
    ]
