"""The data directory: one runner at a time, files replaced whole, refusals that say what to do."""

import os
import re
from pathlib import Path

import pytest

from millstream.errors import DamageError, EnvironmentFault, UserError
from millstream.local.directory import (
    DataDirectory,
    ProcessIdentity,
    RunningProcess,
    Runtime,
    find_directory,
    held,
    read_json,
    write_json,
)
from millstream.local.processes import end_stale, identify, is_alive

RUNTIME = Runtime(
    "small", ProcessIdentity(1, 2.5), 4222, 8222, (RunningProcess("map-0", ProcessIdentity(3, 4.5), 9000),)
)


def test_a_second_runner_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path / "data"):
        with (
            pytest.raises(EnvironmentFault, match=rf"in use by process {os.getpid()};.*--data-dir"),
            held(tmp_path / "data"),
        ):
            pass
        with held(tmp_path / "other"):
            pass
    with held(tmp_path / "data"):
        pass


def test_a_directory_that_cannot_be_made_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot use the data directory"), held(tmp_path / "file" / "data"):
        pass


def test_fresh_removes_what_a_run_keeps_and_nothing_else(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.broker.mkdir()
    (directory.broker / "store").write_text("data")
    directory.write_runtime(RUNTIME)
    (tmp_path / "mine.txt").write_text("keep")
    directory.clear()
    directory.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_runtime_survives_the_way_through_its_file(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert directory.read_runtime() is None
    directory.write_runtime(RUNTIME)
    assert directory.read_runtime() == RUNTIME


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pipeline": "x"}'])
def test_a_damaged_runtime_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "runtime.json").write_text(text)
    with pytest.raises(DamageError, match=re.escape(f"{tmp_path / 'runtime.json'}")):
        DataDirectory(tmp_path).read_runtime()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"a": 1})
    os.symlink("/dev/full", tmp_path / "status.json.tmp")
    with pytest.raises(EnvironmentFault, match="disk is full"):
        write_json(path, {"a": "x" * 100_000})
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_commands_find_the_only_run_and_ask_when_there_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no pipeline has run here"):
        find_directory(None, None)
    for name in ("one", "two"):
        (tmp_path / ".millstream" / name).mkdir(parents=True)
    DataDirectory(tmp_path / ".millstream/one").write_runtime(RUNTIME)
    assert find_directory(None, None).root == Path(".millstream/one")
    with pytest.raises(UserError, match=r"no run of pipeline 'two'.*there are: one"):
        find_directory(None, "two")
    DataDirectory(tmp_path / ".millstream/two").write_runtime(RUNTIME)
    with pytest.raises(UserError, match=r"several pipelines have run here \(one, two\)"):
        find_directory(None, None)
    assert find_directory(None, "two").root == Path(".millstream/two")
    assert find_directory(tmp_path / ".millstream/two", None).root == tmp_path / ".millstream/two"
    with pytest.raises(UserError, match="not the data directory of a pipeline"):
        find_directory(tmp_path, None)


def test_a_process_is_told_apart_from_a_later_one_with_its_id() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert is_alive(own)
    stranger = ProcessIdentity(own.pid, own.created - 100)
    assert not is_alive(stranger)
    # Were it not told apart, this would be the end of the test run.
    assert end_stale([stranger]) == []
