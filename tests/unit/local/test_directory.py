"""The data directory: one runner at a time, files replaced whole, refusals that say what to do."""

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from millstream import codes
from millstream.errors import InfrastructureError
from millstream_runner.local.directory import (
    DataDirectory,
    ProcessIdentity,
    RunningProcess,
    Runtime,
    find_directory,
    held,
    read_json,
    write_json,
    write_text,
)
from millstream_runner.local.processes import end_stale, identify, is_alive
from tests.small_disk import open_small_disk
from tests.support.errors import raises

RUNTIME = Runtime(
    "small",
    ProcessIdentity(1, 2.5),
    4222,
    "nats://127.0.0.1:4222",
    (RunningProcess("map-0", ProcessIdentity(3, 4.5), 9000),),
)


def test_a_second_runner_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path / "data"):
        with (
            pytest.raises(InfrastructureError, match=rf"in use by process {os.getpid()};.*--data-dir"),
            held(tmp_path / "data"),
        ):
            pass
        with held(tmp_path / "other"):
            pass
    with held(tmp_path / "data"):
        pass


def test_a_directory_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(codes.CANNOT_WRITE), held(tmp_path / "file" / "data"):
        pass


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_what_a_run_keeps_is_its_owners_alone_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    really_open = os.open

    def watched(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = really_open(path, flags, mode, dir_fd=dir_fd)
        opened.append((Path(path).name, os.fstat(descriptor).st_mode & 0o077 if flags & os.O_CREAT else 0))
        return descriptor

    root = tmp_path / "a" / "data"
    # As an earlier version, or a killed process, may have left it.
    root.mkdir(parents=True, mode=0o700)
    (root / "pipeline.json.tmp").touch(mode=0o666)
    monkeypatch.setattr(os, "open", watched)
    with held(root) as directory, held(tmp_path / "b" / "other"):
        directory.make()
        write_text(directory.pipeline, "secret")
        write_json(directory.runtime, asdict(RUNTIME))
    assert ("pipeline.json.tmp", 0) in opened
    assert [name for name, others in opened if others] == []
    made = [*root.rglob("*"), tmp_path / "b", tmp_path / "b" / "other"]
    assert {path.name for path in made} >= {"lock", "broker", "windows", "logs", "pipeline.json", "runtime.json"}
    assert [path for path in made if path.stat().st_mode & 0o077] == []


def test_a_durable_file_has_a_durable_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, list[str]]] = []
    really_sync = os.fsync

    def watched(descriptor: int) -> None:
        really_sync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []))

    monkeypatch.setattr(os, "fsync", watched)
    with held(tmp_path / "a" / "data") as directory:
        # A process that ended in between may have created the first one, so its name is synced, too.
        assert [name for name, _ in synced] == [tmp_path.parent.name, tmp_path.name, "a"]
        assert synced[1:] == [(tmp_path.name, ["a"]), ("a", ["data"])]
        synced.clear()
        write_text(directory.pipeline, "text")
        assert synced == [("pipeline.json.tmp", []), ("data", ["lock", "pipeline.json"])]


def test_fresh_removes_what_a_run_keeps_and_nothing_else(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.broker.mkdir()
    (directory.broker / "store").write_text("data")
    write_json(directory.runtime, asdict(RUNTIME))
    (tmp_path / "mine.txt").write_text("keep")
    directory.clear()
    directory.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_runtime_survives_the_way_through_its_file(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert directory.read_runtime() is None
    write_json(directory.runtime, asdict(RUNTIME))
    assert directory.read_runtime() == RUNTIME


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pipeline": "x"}'])
def test_a_damaged_runtime_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "runtime.json").write_text(text)
    with raises(codes.RUN_FILE_UNREADABLE, match=re.escape(f"{tmp_path / 'runtime.json'}")):
        DataDirectory(tmp_path).read_runtime()


@pytest.mark.process
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    with open_small_disk(tmp_path / "disk", 64 * 1024) as disk:
        path = disk / "status.json"
        write_json(path, {"a": 1})
        with pytest.raises(InfrastructureError, match="disk is full"):
            write_json(path, {"a": "x" * 100_000})
        assert read_json(path) == {"a": 1}
        assert [entry.name for entry in disk.iterdir()] == ["status.json"]


def test_commands_find_the_only_run_and_ask_when_there_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises(codes.NO_SUCH_RUN):
        find_directory(None, None)
    for name in ("one", "two"):
        (tmp_path / ".millstream" / name).mkdir(parents=True)
    write_json(DataDirectory(tmp_path / ".millstream/one").runtime, asdict(RUNTIME))
    assert find_directory(None, None).root == Path(".millstream/one")
    with raises(codes.NO_SUCH_RUN, match=r"no run of pipeline 'two'.*there are: one"):
        find_directory(None, "two")
    write_json(DataDirectory(tmp_path / ".millstream/two").runtime, asdict(RUNTIME))
    with raises(codes.NO_SUCH_RUN, match=r"several pipelines have run here \(one, two\)"):
        find_directory(None, None)
    assert find_directory(None, "two").root == Path(".millstream/two")
    assert find_directory(tmp_path / ".millstream/two", None).root == tmp_path / ".millstream/two"
    with raises(codes.NO_SUCH_RUN):
        find_directory(tmp_path, None)


def test_a_process_is_told_apart_from_a_later_one_with_its_id() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    stranger = ProcessIdentity(own.pid, own.created - 100)
    assert not is_alive(stranger)
    # Were it not told apart, this would be the end of the test run.
    assert end_stale([stranger]) == []
