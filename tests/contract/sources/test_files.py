"""Files that end: what they may not do while they are read, and what is said about it."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import DamageError, InfrastructureError
from millstream.spec.connectors import Place
from millstream_connectors.file.connector import SOURCE
from millstream_connectors.file.settings import FileSource
from millstream_reader.source import SourceBatch
from tests.contract.sources.lanes import open_lane, read_to_end, records_of, values
from tests.support.errors import raises

SPEC = {"file": {"paths": ["*.txt"]}}


def write(folder: Path, name: str, lines: int) -> None:
    (folder / name).write_bytes(b"".join(b"%b %d\n" % (name.encode(), index) for index in range(lines)))


async def position_in(folder: Path, records: int) -> bytes:
    async with open_lane(SPEC, base_dir=folder) as lane:
        return (await lane.read(records, 1 << 20, 1.0)).position


@pytest.mark.parametrize("paths", [["a.txt", "no.txt"], ["*.csv"]])
async def test_no_file_is_the_users_to_correct(tmp_path: Path, paths: list[str]) -> None:
    write(tmp_path, "a.txt", 1)
    with raises(codes.SOURCE_FILES_MISSING):
        async with open_lane({"file": {"paths": paths}}, base_dir=tmp_path):
            pass


async def test_globs_go_deep_and_files_come_in_the_order_of_their_names_once(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/10.txt", "a.txt", "c/d/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "dir.txt").mkdir()
    spec = {"file": {"paths": ["**/*.txt", "./a.txt", str(tmp_path / "a.txt")]}}
    async with open_lane(spec, base_dir=tmp_path) as lane:
        records, _, _ = await read_to_end(lane)
    assert values(records) == [b"a.txt", b"a.txt", b"b/10.txt", b"b/2.txt", b"c/d/e.txt"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda path: path.unlink(), "a.txt changed while it was being read: it no longer exists"),
        (lambda path: os.truncate(path, 20), "it has 20 bytes, but 80 were already read"),
        (lambda path: path.write_bytes(b"x" * 1000), "its first bytes have changed"),
    ],
    ids=["gone", "shorter", "another"],
)
async def test_a_file_that_changed_between_two_runs_is_named(tmp_path: Path, change: object, fault: str) -> None:
    write(tmp_path, "a.txt", 100)
    position = await position_in(tmp_path, 10)
    assert callable(change)
    change(tmp_path / "a.txt")
    with pytest.raises(DamageError, match=fault):
        async with open_lane(SPEC, position, base_dir=tmp_path):
            pass


async def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", 10)
    async with open_lane(SPEC, base_dir=tmp_path) as lane:
        await lane.read(3, 1 << 20, 1.0)
        os.truncate(tmp_path / "a.txt", 30)
        with pytest.raises(DamageError, match=r"a\.txt changed while it was being read: it has 30 bytes, but 80"):
            await read_to_end(lane)


async def test_a_file_that_goes_before_its_turn_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", 2)
    write(tmp_path, "b.txt", 2)
    async with open_lane(SPEC, base_dir=tmp_path) as lane:
        await lane.read(1, 1 << 20, 1.0)
        (tmp_path / "b.txt").unlink()
        with pytest.raises(DamageError, match=r"b\.txt changed while it was being read: it no longer exists"):
            await read_to_end(lane)


async def test_a_finished_file_may_go_and_grow(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        write(tmp_path, name, 3)
    batches: list[SourceBatch] = []
    async with open_lane(SPEC, base_dir=tmp_path) as lane:
        while len(records_of(batches)) < 7:
            batches.append(await lane.read(1, 1 << 20, 1.0))
    (tmp_path / "a.txt").unlink()
    with (tmp_path / "b.txt").open("a") as file:
        file.write("later\n")
    async with open_lane(SPEC, batches[-1].position, base_dir=tmp_path) as lane:
        assert values((await read_to_end(lane))[0]) == [b"c.txt 1", b"c.txt 2"]


async def test_files_that_come_too_late_for_their_place_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    write(tmp_path, "m.txt", 20)
    position = await position_in(tmp_path, 5)
    write(tmp_path, "a.txt", 1)
    write(tmp_path, "z.txt", 1)
    async with open_lane(SPEC, position, base_dir=tmp_path) as lane:
        records, _, _ = await read_to_end(lane)
    assert values(records)[-1] == b"z.txt 0"
    assert len(records) == 16
    assert "1 files that sort before m.txt appeared after the run had passed their place" in caplog.text


async def test_a_file_that_may_not_be_read_is_for_the_environment(tmp_path: Path) -> None:
    # A directory in place of the file: the one refusal that also root gets.
    write(tmp_path, "a.txt", 2)
    write(tmp_path, "b.txt", 2)
    async with open_lane(SPEC, base_dir=tmp_path) as lane:
        await lane.read(1, 1 << 20, 1.0)
        (tmp_path / "b.txt").unlink()
        (tmp_path / "b.txt").mkdir()
        with pytest.raises(InfrastructureError, match="cannot be read: Is a directory"):
            await read_to_end(lane)


def open_below(directory: Path) -> list[str]:
    """The files there that this process has open."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(os.readlink(descriptor))
    return [target for target in targets if target.startswith(str(directory))]


async def test_a_lane_that_is_given_up_leaves_no_file_and_no_thread(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", 10)
    # Other tests' files and threads may end meanwhile.
    before = set(threading.enumerate())

    async def follow() -> None:
        async with open_lane({"file": {"paths": ["*"], "follow": True}}, base_dir=tmp_path) as lane:
            while True:
                await lane.read(10, 1000, 10.0)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follow(), 0.05)
    assert open_below(tmp_path) == []
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("name", ["m.txt", "m.txt.gz"])
async def test_lines_that_are_appended_to_files_that_were_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.WARNING)
    spec = {"file": {"paths": ["*.txt*"]}}
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(b"one\n"))
    (tmp_path / "n.txt").write_bytes(b"two\n")
    async with open_lane(spec, base_dir=tmp_path) as lane:
        records, _, batches = await read_to_end(lane)
    assert values(records) == [b"one", b"two"]
    async with open_lane(spec, batches[-1].position, base_dir=tmp_path) as lane:
        assert (await read_to_end(lane))[0] == []
    assert caplog.text == ""
    with (tmp_path / name).open("ab") as file:
        file.write(pack(b"more\n"))
    async with open_lane(spec, batches[-1].position, base_dir=tmp_path) as lane:
        assert (await read_to_end(lane))[0] == []
    assert "more now, which are not read" in caplog.text
    assert "use `follow`" in caplog.text


async def test_a_directory_with_characters_of_patterns_in_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "a[b]*?c"
    directory.mkdir()
    (directory / "in.txt").write_text("one\n")
    settings = FileSource.model_validate({"paths": ["*.txt"]})
    assert list(SOURCE.local_findings(settings, Place((), (), directory, 1))) == []
    async with open_lane({"file": {"paths": ["*.txt"]}}, base_dir=directory) as lane:
        assert values((await read_to_end(lane))[0]) == [b"one"]
