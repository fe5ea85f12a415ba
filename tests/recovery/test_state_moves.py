"""The partitions of a vertex that remembers change, and whoever changes them is killed: each record counts once, and
what is remembered for a key is where its records are."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from millstream.frame import partition_of
from millstream.plan import resolved
from millstream_runner.local.directory import read_json
from millstream_runner.local.stored_states import stored_states
from millstream_runner.local.view import open_view
from tests.mesh.changing import Changing, open_changer, open_changing
from tests.mesh.conftest import PipelineFiles
from tests.mesh.reducing import running, until
from tests.support import sizes

RECORDS, USERS = 60, 17
PARTITIONS = (2, 5, 3)
"""Of the versions of the pipeline, again and again."""
FUNCTION = """\
import millstream_udf as udf


@udf.map
class Total:
    seen = udf.map_state(str, int)
    total = udf.value(int, default=0)

    def process(self, record: udf.Record[dict]) -> dict:
        number = record.value["number"]
        self.total += number
        self.seen[str(number % 3)] = number
        return {**record.value, "total": self.total}
"""


class Rescaling:
    """A pipeline whose function remembers totals, in another number of partitions with each version."""

    def __init__(self, files: PipelineFiles, changing: Changing, *, is_chained: bool = False) -> None:
        self.files = files
        self.changing = changing
        self.is_chained = is_chained
        self.given = 0
        (files.directory / "total.py").write_text(FUNCTION, encoding="utf-8")

    def path(self, version: int) -> Path:
        partitions = PARTITIONS[version % len(PARTITIONS)]
        chained = f"  partitions: {partitions if self.is_chained else 1}\n"
        following = ["total", "pass", "out"] if self.is_chained else ["total", "out"]
        return self.files.write(
            "- name: in\n  source: {file: {paths: [in.jsonl], format: jsonl, follow: true}, keys: [user]}\n"
            f"- name: total\n  partitions: {partitions}\n  udf: {{python: 'total.py:Total', state: {{}}}}\n"
            + (f"- name: pass\n{chained}  udf: {{builtin: {{name: cat}}}}\n" if self.is_chained else "")
            + self.files.file_sink("out", more=chained),
            [
                "in -> total",
                *(f"{{from: {a}, to: {b}, chain: {str(self.is_chained).lower()}}}" for a, b in pairwise(following)),
            ],
        )

    async def run(self, version: int) -> None:
        """Change to a version, give it records, wait for them at the sink, and drain."""
        run = await self.changing.run_of(self.path(version))
        with (self.files.directory / "in.jsonl").open("a") as file:
            for number in range(self.given, self.given + RECORDS):
                file.write(json.dumps({"number": number, "user": f"u{number * number % USERS}"}) + "\n")
        self.given += RECORDS
        async with running(run) as task:

            async def written() -> bool:
                return len(self.files.rows("out")) >= self.given

            await until(written, task)
        await self.changing.note(run)
        await self.check()

    async def check(self) -> None:
        numbers: dict[str, list[int]] = defaultdict(list)
        totals: dict[str, list[int]] = defaultdict(list)
        for number in range(self.given):
            numbers[f"u{number * number % USERS}"].append(number)
        for row in self.files.rows("out"):
            totals[row["user"]].append(row["total"])
        assert {user: sorted(each) for user, each in totals.items()} == {
            user: sorted(accumulate(each)) for user, each in numbers.items()
        }
        wanted = {(user, "total", ""): str(sum(each)) for user, each in numbers.items()}
        for user, each in numbers.items():
            wanted |= {(user, "seen", f'"{number % 3}"'): str(number) for number in each}
        plan = resolved.load(self.changing.directory.read_pipeline()).plan
        found: dict[tuple[str, str, str], str] = {}
        async with open_view(plan, self.changing.server.access) as view:
            async for lane in stored_states(view, plan, "total"):
                for entry in lane.entries():
                    name = entry.key[0], entry.state.name, entry.item.decode()
                    assert name not in found
                    found[name] = entry.value.decode()
                    home = partition_of([entry.key[0].encode()], plan.vertex("total").partitions)
                    assert home == lane.lane.partition
            summary = await view.summary()
        assert found == wanted
        assert summary.balanced, summary.differences
        accounts = {one.vertex: one.account for one in summary.vertices}
        assert {accounts[vertex].inputs for vertex in ("total", "out")} == {self.given}
        assert accounts["total"].outputs == self.given


def is_shape_of(changing: Changing, version: int) -> bool:
    shape = read_json(changing.directory.shape)
    assert shape is not None
    return bool(shape["vertices"]["total"]["partitions"] == PARTITIONS[version % len(PARTITIONS)])


POINTS = (
    "data.name:after#1",
    "ledger.commit:before#4",
    "lane.count_in:after#1",
    "lane.clear:after#1",
)
"""That are tried; with `make test-all`, all that there are."""


@pytest.mark.timeout(2400)
@pytest.mark.guarantee("I1", "I2", "I7", "I8", "I12")
@pytest.mark.parametrize("is_chained", [False, pytest.param(True, marks=pytest.mark.sweep)])
async def test_killed_anywhere_while_its_partitions_change_a_vertex_remembers_everything(
    tmp_path: Path, is_chained: bool
) -> None:
    async with open_changing(tmp_path) as changing, open_changer() as changer:
        story = Rescaling(PipelineFiles(tmp_path), changing, is_chained=is_chained)
        reached: dict[str, int] = {}
        for version in range(sizes.sized(len(PARTITIONS) + 2, 2 * len(PARTITIONS))):
            if version:
                changed = await changer.change(changing, story.path(version))
                assert changed["ended"] == 0
                for point, times in changed["reached"].items():
                    reached[point] = max(times, reached.get(point, 0))
            await story.run(version)
        points = [f"{point}#{time}" for point, times in sorted(reached.items()) for time in range(1, times + 1)]
        assert set(POINTS) <= set(points)
        for point in points if sizes.ALL else POINTS:
            # Until there is a change that reaches it: some are only those to more partitions, others to fewer.
            killed = 0
            for _ in range(len(PARTITIONS)):
                version += 1
                ended = (await changer.change(changing, story.path(version), point))["ended"]
                killed += ended == -signal.SIGKILL
                if killed and version % 2 and is_shape_of(changing, version):
                    # Another version may follow, before the killed one has run.
                    version += 1
                await story.run(version)
                if killed:
                    break
            assert killed, point
