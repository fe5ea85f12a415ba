"""Who may write into a file sink's directory, and what an owner that lost it can still do."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import FencedError
from millstream.record import LaneId, Position
from millstream_connectors.file.sink.directory import HIDDEN, LaneDirectory, UnfinishedFile
from millstream_connectors.file.sink.names import FinishedName
from millstream_connectors.opening_sinks import open_sink
from millstream_writer.connector import SinkOwner
from tests.contract.sinks.file_target import (
    file_spec,
    finished_files,
    leftovers,
    numbers_in,
    sink_owner,
    value_of,
)
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame


def owner(epoch: int, **changes: object) -> SinkOwner:
    return replace(sink_owner(epoch), **changes)  # type: ignore[arg-type]


_OPENED: list[LaneDirectory] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """A test that opens a directory, or tries to, has to close it: each holds a file open."""
    yield
    while _OPENED:
        _OPENED.pop().close()


def opened(path: Path, by: SinkOwner) -> LaneDirectory:
    directory = LaneDirectory(path, by)
    _OPENED.append(directory)
    directory.open()
    return directory


def begun(directory: LaneDirectory, data: bytes = b"1\n") -> UnfinishedFile:
    file = directory.begin("jsonl")
    assert directory.append(file, data) == len(data)
    return file


def test_the_path_is_made_with_its_parents_and_a_finished_file_says_how_far_the_lane_is(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    directory = opened(path, owner(1))
    assert directory.finished() is None
    file = begun(directory)
    assert finished_files(path) == []
    directory.finish(file, Position(0), Position(4, 2), "jsonl")
    assert [file.read_bytes() for file in finished_files(path)] == [b"1\n"]
    assert opened(path, owner(2)).finished() == Position(4, 2)


@pytest.mark.guarantee("I1")
def test_an_owner_that_was_replaced_can_neither_begin_nor_finish_a_file(tmp_path: Path) -> None:
    old = opened(tmp_path, owner(1))
    file = begun(old)
    new = opened(tmp_path, owner(2))
    with pytest.raises(FencedError):
        old.finish(file, Position(0), Position(1), "jsonl")
    with pytest.raises(FencedError):
        old.begin("jsonl")
    old.discard(file)
    new.finish(begun(new), Position(0), Position(1), "jsonl")
    assert len(finished_files(tmp_path)) == 1
    assert leftovers(tmp_path) == []


@pytest.mark.guarantee("I1")
def test_an_owner_that_comes_late_withdraws_and_does_not_disturb_the_newer_one(tmp_path: Path) -> None:
    new = opened(tmp_path, owner(7))
    file = begun(new)
    with raises(codes.OUTPUT_TAKEN_OVER, match="epoch 7"):
        opened(tmp_path, owner(6))
    new.finish(file, Position(0), Position(1), "jsonl")
    # Also when the newer one has come and gone without a file.
    new.finish(begun(new), Position(1), Position(2), "jsonl")
    with pytest.raises(FencedError):
        opened(tmp_path, owner(5))
    assert opened(tmp_path, owner(8)).finished() == Position(2)


@pytest.mark.guarantee("I1")
def test_of_owners_that_open_at_once_only_the_newest_can_write(tmp_path: Path) -> None:
    epochs = range(1, 7)
    with ThreadPoolExecutor(len(epochs)) as threads:
        for attempt in range(25):
            path, start = tmp_path / str(attempt), threading.Barrier(len(epochs))
            openings = [threads.submit(_open_and_begin, path, owner(epoch), start) for epoch in epochs]
            begun_files = [opening.result(timeout=10) for opening in openings]
            writers = [epoch for epoch, got in zip(epochs, begun_files, strict=True) if got and _finishes(*got, epoch)]
            assert writers == [max(epochs)]
            assert len(finished_files(path)) == 1


def _open_and_begin(path: Path, by: SinkOwner, start: threading.Barrier) -> tuple[LaneDirectory, UnfinishedFile] | None:
    start.wait(timeout=10)
    try:
        directory = opened(path, by)
        return directory, begun(directory)
    except FencedError:
        return None


def _finishes(directory: LaneDirectory, file: UnfinishedFile, epoch: int) -> bool:
    try:
        directory.finish(file, Position(0), Position(epoch), "jsonl")
    except FencedError:
        directory.discard(file)
        return False
    return True


def test_lanes_share_a_directory_and_leave_each_other_alone(tmp_path: Path) -> None:
    one = opened(tmp_path, owner(3, lane=LaneId("out", "in-out", 1)))
    ten = opened(tmp_path, owner(1, lane=LaneId("out", "in-out", 10)))
    file = begun(one)
    other = opened(tmp_path, owner(9, lane=LaneId("out", "in-out", 2)))
    other.finish(begun(other), Position(0), Position(8), "jsonl")
    one.finish(file, Position(0), Position(1), "jsonl")
    ten.finish(begun(ten), Position(0), Position(5), "jsonl")
    assert [d.finished() for d in (one, ten, other)] == [Position(1), Position(5), Position(8)]


OTHERS = [owner(1, ledger_id="second"), owner(1, pipeline="q")]


@pytest.mark.parametrize("other", OTHERS)
def test_positions_of_another_run_are_not_taken_for_ours(tmp_path: Path, other: SinkOwner) -> None:
    directory = opened(tmp_path, owner(1))
    directory.finish(begun(directory), Position(0), Position(9), "jsonl")
    directory.close()
    with raises(codes.OUTPUTS_OF_EARLIER_RUN) as raised:
        opened(tmp_path, other)
    (file,) = finished_files(tmp_path)
    assert file.name in str(raised.value)
    # Once they have been moved away, the directory is free, and the run before is fenced.
    file.unlink()
    assert opened(tmp_path, other).finished() is None
    with pytest.raises(FencedError):
        directory.begin("jsonl")


def _everything(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("has_finished", [True, False])
def test_a_run_that_is_refused_leaves_nothing_and_does_not_disturb_the_one_before(
    tmp_path: Path, other: SinkOwner, has_finished: bool
) -> None:
    directory = opened(tmp_path, owner(1))
    if has_finished:
        directory.finish(begun(directory), Position(0), Position(9), "jsonl")
    unfinished = begun(directory)
    before = _everything(tmp_path)
    for _ in range(2):
        with raises(codes.OUTPUT_IN_USE, match=r"another run is writing to|holds files of another pipeline"):
            opened(tmp_path, other)
    assert _everything(tmp_path) == before
    directory.finish(unfinished, Position(9), Position(12), "jsonl")
    directory.close()
    assert opened(tmp_path, owner(2)).finished() == Position(12)


def test_an_empty_directory_of_a_run_that_never_wrote_does_no_harm(tmp_path: Path) -> None:
    directory = opened(tmp_path, owner(1))
    directory.finish(begun(directory), Position(0), Position(9), "jsonl")
    directory.close()
    left = tmp_path / ".millstream" / "p.out.0badcafe"
    left.mkdir()
    assert opened(tmp_path, owner(2)).finished() == Position(9)
    assert not left.exists()


def test_files_of_which_nothing_says_who_wrote_them_are_refused(tmp_path: Path) -> None:
    directory = opened(tmp_path, owner(1))
    directory.finish(begun(directory), Position(0), Position(9), "jsonl")
    directory.close()
    shutil.rmtree(tmp_path / ".millstream")
    before = _everything(tmp_path)
    with raises(codes.OUTPUTS_OF_EARLIER_RUN):
        opened(tmp_path, owner(2))
    assert _everything(tmp_path) == before


@pytest.mark.guarantee("I1")
def test_a_lane_knows_how_far_it_is_when_its_files_are_taken_at_once(tmp_path: Path) -> None:
    directory = opened(tmp_path, owner(1))
    for number in range(2):
        directory.finish(begun(directory), Position(number), Position(number + 1), "jsonl")
    for file in finished_files(tmp_path):
        file.unlink()
    # Over more than one owner, of which one finishes nothing and one is killed before a rename.
    second = opened(tmp_path, owner(2))
    assert second.finished() == Position(2)
    unfinished = begun(second).path
    name = FinishedName("out.in-out.0", Position(2), Position(5), 2, "jsonl")
    unfinished.with_name(f"{unfinished.name}={name}").touch()
    third = opened(tmp_path, owner(3))
    assert third.finished() == Position(2)
    third.finish(begun(third), Position(2), Position(4), "jsonl")
    finished_files(tmp_path)[0].unlink()
    assert opened(tmp_path, owner(4)).finished() == Position(4)


def test_two_vertices_of_a_pipeline_may_share_a_directory(tmp_path: Path) -> None:
    one = opened(tmp_path, owner(1))
    one.finish(begun(one), Position(0), Position(9), "jsonl")
    two = opened(tmp_path, owner(1, lane=LaneId("in-out", "out", 0), ledger_id="another"))
    assert two.finished() is None
    two.finish(begun(two), Position(0), Position(2), "jsonl")
    assert one.finished() == Position(9)


def test_files_that_hold_the_same_records_stop_the_lane(tmp_path: Path) -> None:
    directory = opened(tmp_path, owner(1))
    for end in (Position(3), Position(5)):
        directory.finish(begun(directory), Position(0), end, "jsonl")
    with raises(codes.SINK_FILES_OVERLAP):
        opened(tmp_path, owner(2)).finished()


def test_files_moved_away_are_reported_and_the_lane_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = opened(tmp_path, owner(1))
    for number in range(3):
        directory.finish(begun(directory), Position(number), Position(number + 1), "jsonl")
    finished_files(tmp_path)[1].unlink()
    with caplog.at_level(logging.WARNING):
        assert opened(tmp_path, owner(2)).finished() == Position(3)
    assert "moved away" in caplog.text


def test_a_path_that_cannot_be_a_directory_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with raises(codes.SINK_PATH):
            opened(path, owner(1))


def test_a_directory_that_vanishes_is_not_taken_for_a_newer_owner(tmp_path: Path) -> None:
    path = tmp_path / "out"
    directory = opened(path, owner(1))
    path.rename(tmp_path / "elsewhere")
    with raises(codes.CANNOT_WRITE, match="No such file"):
        directory.begin("jsonl")


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet"])
async def test_an_open_sink_that_is_held_while_another_opens_is_fenced(tmp_path: Path, file_format: str) -> None:
    spec = file_spec(tmp_path, file_format)
    async with open_sink(spec, sink_owner(1)) as old:
        await old.write([sink_frame([value_of(n) for n in range(10)], 1)], Position(1))
        async with open_sink(spec, sink_owner(2)) as new:
            assert new.durable == Position(0)
            await new.write([sink_frame([value_of(n) for n in range(10)], 1)], Position(1))
            with pytest.raises(FencedError):
                await old.flush()
            await new.flush()
            assert new.durable == Position(1)
            assert old.durable == Position(0)
        with pytest.raises(FencedError):
            async with open_sink(spec, sink_owner(1)):
                pass
    assert numbers_in(tmp_path) == list(range(10))
    assert leftovers(tmp_path) == []


# The directory may belong to another user, who can put links in place of what is in it.


def planted(path: Path) -> tuple[Path, Path]:
    """The directory of the lane's owner, and one with a file that no link may lead to."""
    victim = path.parent / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    (run,) = (path / HIDDEN).iterdir()
    return run / "out.in-out.0.1", victim


def test_a_link_in_place_of_a_note_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out"
    directory = opened(path, owner(1))
    file = begun(directory)
    own, victim = planted(path)
    name = FinishedName("out.in-out.0", Position(0), Position(9), 1, "jsonl")
    note = own / f"0.jsonl={name}.note"
    note.symlink_to(victim / "file")

    directory.finish(file, Position(0), Position(9), "jsonl", "frame")

    assert (victim / "file").read_text() == "precious"
    assert (note.is_symlink(), note.read_text()) == (False, "frame")


def test_a_link_in_place_of_an_owners_directory_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    directory = opened(path, owner(1))
    file = begun(directory)
    own, victim = planted(path)
    own.rename(own.with_name("moved"))
    own.symlink_to(victim)

    for refused in (
        lambda: directory.begin("jsonl"),
        lambda: directory.finish(file, Position(0), Position(9), "jsonl"),
    ):
        with raises(codes.SINK_PATH):
            refused()
    directory.discard(file)
    assert {one.name: one.read_text() for one in victim.iterdir()} == {"file": "precious"}


@pytest.mark.parametrize("swapped", ["run", "hidden"])
def test_a_link_in_place_of_the_directory_of_a_run_is_not_followed(tmp_path: Path, swapped: str) -> None:
    path = tmp_path / "out"
    directory = opened(path, owner(1))
    begun(directory)
    own, victim = planted(path)
    (victim / own.parent.name / own.name).mkdir(parents=True)
    place, target = (own.parent, victim / own.parent.name) if swapped == "run" else (path / HIDDEN, victim)
    place.rename(tmp_path / "moved")
    place.symlink_to(target)
    before = sorted(victim.rglob("*"))

    with pytest.raises(FencedError):
        directory.begin("jsonl")
    directory.close()
    with raises(codes.SINK_PATH):
        opened(path, owner(2))
    assert sorted(victim.rglob("*")) == before


def test_a_link_in_place_of_a_former_owners_note_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    directory = opened(path, owner(1))
    directory.finish(begun(directory), Position(0), Position(9), "jsonl", "frame")
    own, victim = planted(path)
    (note,) = own.iterdir()
    note.unlink()
    note.symlink_to(victim / "file")
    directory.close()

    with raises(codes.SINK_PATH):
        opened(path, owner(2))
