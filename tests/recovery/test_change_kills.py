"""The runner is killed in the middle of a change, at every durable step of it: the pipeline is the old one or the new
one, and each record comes once."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import UserError
from millstream.nats.connection import open_connection
from millstream.plan import resolved
from millstream_runner.local.directory import read_json
from millstream_runner.local.view import open_view
from tests.mesh.changing import Changing, open_changer, open_changing
from tests.mesh.conftest import PipelineFiles
from tests.mesh.reducing import assert_balanced, running, until
from tests.support import sizes
from tests.support.errors import raises

RECORDS = 10
"""That come between two changes."""
SOURCE = "- name: in\n  source: {file: {paths: ['in*.jsonl'], format: jsonl, follow: true}, keys: [k]}\n"


class Story:
    """A pipeline with a map of another name after each change, and the records that it was given."""

    def __init__(self, files: PipelineFiles, changing: Changing) -> None:
        self.files = files
        self.changing = changing
        self.given = 0

    def path(self, version: int) -> Path:
        """The pipeline's file: the map has two lanes, the sink one more with every third change."""
        sink = self.files.file_sink("out", more=f"  partitions: {1 + version // 3}\n")
        text = SOURCE + f"- name: map{version}\n  udf: {{builtin: {{name: cat}}}}\n  partitions: 2\n" + sink
        return self.files.write(text, [f"in -> map{version}", f"map{version} -> out"])

    async def run(self, version: int) -> None:
        """Change to it, give it records, wait for them at the sink, and drain."""
        run = await self.changing.run_of(self.path(version))
        rows = range(self.given, self.given + RECORDS)
        with (self.files.directory / "in.jsonl").open("a") as file:
            file.writelines(json.dumps({"number": n, "k": str(n)}) + "\n" for n in rows)
        self.given = rows.stop
        async with running(run) as task:

            async def written() -> bool:
                return len(self.files.numbers("out")) >= self.given

            await until(written, task)
        await assert_balanced(run)
        assert sorted(self.files.numbers("out")) == list(range(self.given))
        await self.changing.note(run)

    async def check_kept(self, *versions: int) -> None:
        """The broker keeps vertices of these versions and no others."""
        async with open_connection(self.changing.server.access) as connection:
            streams = await connection.api("STREAM.NAMES", {})
        kept = {name.removeprefix("KV_").removeprefix("p-").removesuffix("-OT") for name in streams["streams"]}
        assert kept == {"in", "out", *(f"map{version}" for version in versions)}
        assert set(read_json(self.changing.directory.ledgers) or {}) <= kept


def is_shape_of(changing: Changing, version: int) -> bool:
    shape = read_json(changing.directory.shape)
    assert shape is not None
    return f"map{version}" in shape["vertices"]


OLD = {"data.write:before#1", "data.write:after#1", "data.name:before#1"}
"""Up to here, where the new shape gets its name, the pipeline is the old one."""


def some(points: list[str], *chosen: str) -> list[str]:
    """The points that are tried: `chosen`, one of each phase; with `make test-all`, all."""
    assert set(chosen) <= set(points)
    return points if sizes.ALL else list(chosen)


def points_of(reached: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{point}#{time}" for point, times in sorted(reached) for time in range(1, times + 1)]


@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I6", "I8")
async def test_killed_anywhere_in_a_change_the_old_pipeline_or_the_new_one_goes_on(tmp_path: Path) -> None:
    old_went_on = 0
    async with open_changing(tmp_path) as changing, open_changer() as changer:
        story = Story(PipelineFiles(tmp_path), changing)
        await story.run(0)
        first = await changer.change(changing, story.path(1))
        assert first["ended"] == 0
        points = points_of(first["reached"].items())
        assert set(points) > OLD
        points = some(points, "data.name:before#1", "data.name:after#2", "ledger.delete:after#1")
        await story.run(1)
        version = 1
        for point in points:
            killed = await changer.change(changing, story.path(version + 1), point)
            assert killed["ended"] == -signal.SIGKILL, point
            if is_shape_of(changing, version):
                await story.run(version)
                old_went_on += 1
            else:
                with pytest.raises(UserError, match=f"a vertex called map{version} was removed earlier"):
                    await story.run(version)
                # A third one may follow the second, which has never run.
                version += points.index(point) % 2
            await story.run(version + 1)
            await story.check_kept(version + 1)
            version += 1
    assert old_went_on == len(OLD & set(points))


class Evolution(Story):
    """A pipeline of which versions 3n have a chain of two maps, 3n + 1 the same maps apart, and 3n + 2 only the second.
    The next ones have maps of other names."""

    def path(self, version: int) -> Path:
        number, stage = divmod(version, 3)
        first, second = f"first{number}", f"second{number}"
        maps = f"- name: {second}\n  udf: {{builtin: {{name: cat}}}}\n  partitions: {1 if stage == 0 else 2}\n"
        edges = [f"{{from: in, to: {second}}}", f"{{from: {second}, to: out}}"]
        if stage < 2:
            maps += f"- name: {first}\n  udf: {{builtin: {{name: cat}}}}\n"
            edges[0] = f"{{from: in, to: {first}, chain: false}}"
            edges.append(f"{{from: {first}, to: {second}}}")
        return self.files.write(SOURCE + maps + self.files.file_sink("out"), edges)

    async def run(self, version: int) -> None:
        await super().run(version)
        resolved_now = resolved.load(self.changing.directory.read_pipeline())
        async with open_view(resolved_now.plan, self.changing.server.access) as view:
            found = await view.summary()
        assert found.balanced, found.differences
        assert {one.vertex: one.account.inputs for one in found.vertices}["out"] == self.given

    def has_chain(self, number: int) -> bool:
        edges = (read_json(self.changing.directory.shape) or {})["edges"]
        return "chained" in edges[f"first{number}-second{number}"]


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I6", "I8")
async def test_killed_anywhere_while_a_chain_is_separated_or_a_vertex_in_the_middle_is_removed(tmp_path: Path) -> None:
    old_went_on = 0
    async with open_changing(tmp_path) as changing, open_changer() as changer:
        story = Evolution(PipelineFiles(tmp_path), changing)
        await story.run(0)
        apart = await changer.change(changing, story.path(1))
        await story.run(1)
        removed = await changer.change(changing, story.path(2))
        await story.run(2)
        assert apart["ended"] == removed["ended"] == 0
        into_two, out_of_it = (points_of(one["reached"].items()) for one in (apart, removed))
        assert set(into_two) > OLD
        into_two = some(into_two, "data.name:before#1", "chain.divide:after#1")
        out_of_it = some(out_of_it, "data.name:after#2", "lane.take_in:after#1")
        for number, (one, other) in enumerate(zip_longest(into_two, out_of_it), start=1):
            await story.run(3 * number)
            if one is not None:
                assert (await changer.change(changing, story.path(3 * number + 1), one))["ended"] == -signal.SIGKILL
                if story.has_chain(number):
                    await story.run(3 * number)
                    old_went_on += 1
            await story.run(3 * number + 1)
            if other is not None:
                assert (await changer.change(changing, story.path(3 * number + 2), other))["ended"] == -signal.SIGKILL
            await story.run(3 * number + 2)
    assert old_went_on == len(OLD & set(into_two))


class Beginning(Story):
    """A pipeline whose map remembers nothing in version 0, and something in version 1."""

    def path(self, version: int) -> Path:
        (self.files.directory / "count.py").write_text(COUNTING if version else PASSING)
        state = ", state: {}" if version else ""
        text = f"- name: count\n  udf: {{python: 'count.py:f'{state}}}\n  partitions: 2\n"
        return self.files.write(SOURCE + text + self.files.file_sink("out"), ["in -> count", "count -> out"])


PASSING = """\
import millstream_udf as udf


@udf.map
def f(value: bytes) -> bytes:
    return value
"""
COUNTING = """\
import millstream_udf as udf


@udf.map
def f(value: bytes, state: udf.State) -> bytes:
    state.incr_counter("seen")
    return value
"""


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.guarantee("I1", "I2", "I6")
async def test_killed_anywhere_while_a_map_begins_to_remember(tmp_path: Path) -> None:
    async with open_changer() as changer:

        async def killed_at(point: str | None, directory: Path) -> list[str]:
            """Returns the points of the change."""
            directory.mkdir()
            async with open_changing(directory) as changing:
                story = Beginning(PipelineFiles(directory), changing)
                await story.run(0)
                changed = await changer.change(changing, story.path(1), *([point] if point else []))
                assert changed["ended"] == (-signal.SIGKILL if point else 0)
                await story.run(1)
            return points_of(changed["reached"].items())

        points = await killed_at(None, tmp_path / "whole")
        for number, point in enumerate(some(points, "lane.gather:before#1", "lane.gather:after#1")):
            await killed_at(point, tmp_path / f"killed{number}")


@pytest.mark.sweep
@pytest.mark.guarantee("I8")
async def test_a_pipeline_killed_before_its_first_run_may_be_another_one(tmp_path: Path) -> None:
    async with open_changing(tmp_path) as changing, open_changer() as changer:
        story = Story(PipelineFiles(tmp_path), changing)
        first = await changer.change(changing, story.path(0))
        for point in points_of(first["reached"].items()):
            changing.directory.clear()
            assert (await changer.change(changing, story.path(0), point))["ended"] == -signal.SIGKILL, point
            assert (await changer.change(changing, story.path(1)))["ended"] == 0, point
            assert is_shape_of(changing, 1)
        # What a run with --fresh leaves that is killed while it removes the data of another one.
        changing.directory.pipeline.unlink()
        with raises(codes.SHAPE_UNREADABLE):
            await changing.run_of(story.path(2))
        await story.run(1)
