"""An opening that fails half-way, twice, can be repeated by its owner: at every durable step, before and after it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream import durable
from millstream.errors import DamageError, FencedError, MillstreamError, UserError
from millstream.record import Position
from millstream.spec.models import FallbackSink
from millstream_connectors.file.sink.directory import HIDDEN, LaneDirectory
from millstream_reduce.log.log import open_log
from millstream_runner.local.directory import held, write_text
from millstream_writer.connector import SinkOwner
from tests.contract.sinks.file_target import file_spec, finished_files, numbers_of, sink_owner
from tests.contract.sinks.sink_targets import (
    delta_numbers,
    delta_spec,
    iceberg_numbers,
    iceberg_spec,
    sql_spec,
    sqlite_rows,
)
from tests.contract.sinks.table_lanes import opened, written
from tests.support.sizes import first
from tests.unit.reduce.log.kept_entries import KeptEntries, identity

TWICE = 2


class Failing:
    """A disk that is full at one point, as often as asked."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.at = ""
        self.left = 0

    def __call__(self, point: str, vertex: str) -> None:
        self.points.append(point)
        if point == self.at and self.left:
            self.left -= 1
            raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    def heard(self) -> Sequence[str]:
        """The points since the last call, each once."""
        found, self.points = list(dict.fromkeys(self.points)), []
        return found

    def fail_at(self, point: str) -> None:
        self.at, self.left = point, TWICE


@pytest.fixture
def failing() -> Iterator[Failing]:
    listener = Failing()
    durable.listen(listener)
    yield listener
    durable.listen(None)


class Kind(NamedTuple):
    """A sink with a position on a local disk."""

    spec: Callable[[Path], FallbackSink]
    numbers: Callable[[Path], list[int]]


def taken_numbers(directory: Path) -> list[int]:
    """The records of a file sink, whose user moves each file away as soon as it is visible: then only the notes of the
    sink say how far it is."""
    aside = directory / "aside"
    aside.mkdir(exist_ok=True)
    for file in finished_files(directory / "out") if (directory / "out").exists() else ():
        file.rename(aside / file.name)
    return sorted(number for file in aside.iterdir() for number in numbers_of(file.name, file.read_bytes()))


def rows_of(directory: Path) -> list[int]:
    return [row[0] for row in sqlite_rows(directory / "shop.db", "SELECT n FROM numbers ORDER BY n")]


def sqlite_spec(directory: Path) -> FallbackSink:
    sqlite_rows(directory / "shop.db", "CREATE TABLE IF NOT EXISTS numbers (n INTEGER PRIMARY KEY, text TEXT)")
    return sql_spec(f"sqlite:///{directory / 'shop.db'}", "insert")


KINDS = {
    "file": Kind(lambda directory: file_spec(directory / "out", "jsonl"), taken_numbers),
    "sqlite": Kind(sqlite_spec, rows_of),
    "delta": Kind(
        lambda directory: delta_spec(str(directory / "table"), commitEvery="1h"),
        lambda directory: delta_numbers(directory / "table"),
    ),
    "iceberg": Kind(lambda directory: iceberg_spec(directory, commitEvery="1h"), iceberg_numbers),
}


async def fails(spec: FallbackSink, owner: SinkOwner) -> None:
    """An opening that a full disk makes fail, and nothing else."""
    try:
        async with opened(spec, owner):
            pass
    except (UserError, FencedError, DamageError):
        raise
    except (MillstreamError, OSError):
        return


@pytest.mark.guarantee("I9")
@pytest.mark.parametrize("kind", first(3, KINDS))
async def test_a_new_target_is_opened_after_two_failures(tmp_path: Path, kind: str, failing: Failing) -> None:
    first = tmp_path / "first"
    first.mkdir()
    async with opened(KINDS[kind].spec(first), sink_owner(1)):
        points = failing.heard()
    assert points
    for number, point in enumerate(points):
        directory = tmp_path / str(number)
        directory.mkdir()
        spec = KINDS[kind].spec(directory)
        owner = sink_owner(1)
        failing.fail_at(point)
        for _ in range(TWICE):
            await fails(spec, owner)
        failing.left = 0
        async with opened(spec, owner) as lane:
            await written(lane, 1)
        assert KINDS[kind].numbers(directory) == [*range(10, 20)], point


@pytest.mark.guarantee("I9")
@pytest.mark.parametrize("kind", first(3, KINDS))
async def test_a_lane_is_taken_over_after_two_failures(tmp_path: Path, kind: str, failing: Failing) -> None:
    spec, epoch = KINDS[kind].spec(tmp_path), 2
    for number in (1, epoch):
        async with opened(spec, sink_owner(number)) as lane:
            points = failing.heard()
            await written(lane, number)
    for point in points:
        assert KINDS[kind].numbers(tmp_path) == [*range(10, 10 * epoch + 10)], point
        epoch += 1
        owner = sink_owner(epoch)
        failing.fail_at(point)
        for _ in range(TWICE):
            await fails(spec, owner)
        failing.left = 0
        async with opened(spec, owner) as lane:
            assert lane.durable == Position(epoch - 1), point
            await written(lane, epoch)
    assert KINDS[kind].numbers(tmp_path) == [*range(10, 10 * epoch + 10)]


@pytest.mark.guarantee("I9")
async def test_a_log_of_windows_is_opened_after_two_failures(tmp_path: Path, failing: Failing) -> None:
    async with open_log(tmp_path / "first" / "log", identity(), KeptEntries()):
        points = failing.heard()
    for number, point in enumerate(points):
        failing.fail_at(point)
        for _ in range(TWICE):
            with suppress(MillstreamError):
                async with open_log(tmp_path / str(number) / "log", identity(), KeptEntries()):
                    pass
        failing.left = 0
        async with open_log(tmp_path / str(number) / "log", identity(), KeptEntries()):
            pass


def test_a_data_directory_is_opened_after_two_failures(tmp_path: Path, failing: Failing) -> None:
    def use(root: Path) -> None:
        with held(root) as directory:
            directory.make()
            write_text(directory.pipeline, "text")

    use(tmp_path / "first" / "data")
    for number, point in enumerate(failing.heard()):
        root = tmp_path / str(number) / "data"
        failing.fail_at(point)
        for _ in range(TWICE):
            with suppress(MillstreamError):
                use(root)
        failing.left = 0
        use(root)


def test_a_directory_is_durable_although_its_creator_was_cut_short(tmp_path: Path, failing: Failing) -> None:
    """What exists may not have been synced."""
    LaneDirectory(tmp_path / "out", sink_owner(1)).open()
    failing.heard()
    LaneDirectory(tmp_path / "out", sink_owner(2)).open()
    assert "file_sink.directory.sync:after" in failing.heard()


@pytest.mark.parametrize("left", ["out.in-out.0.2", "out.in-out.0.3"])
def test_a_directory_that_earlier_versions_could_not_open_again(tmp_path: Path, left: str) -> None:
    """A full disk had left two directories of one owner, each with a part of the last note."""
    directory = LaneDirectory(tmp_path / "out", sink_owner(1))
    directory.open()
    file = directory.begin("jsonl")
    directory.append(file, b"1\n")
    directory.finish(file, Position(0), Position(7), "jsonl", "frame")
    directory.close()
    (name,) = finished_files(tmp_path / "out")
    name.unlink()
    (run,) = (tmp_path / "out" / HIDDEN).iterdir()
    (run / "out.in-out.0.1").rename(run / "out.in-out.0.1.over")
    for path in (run / left, run / f"{left}.over"):
        path.mkdir()
        (path / f"={name.name}.note").write_text("fr")
    found = LaneDirectory(tmp_path / "out", sink_owner(3))
    found.open()
    assert found.finished() == Position(7)
    noted = found.noted
    assert noted is not None
    assert noted.frame == "frame"
    found.close()
