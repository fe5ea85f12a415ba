"""The files that a function is made of, and whether they have changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from millstream.udf.sources import SourceFiles


@pytest.fixture
def files(tmp_path: Path) -> SourceFiles:
    (tmp_path / "f.py").write_text("a")
    (tmp_path / "helper.py").write_text("a")
    listed = tmp_path / "listed"
    listed.write_text(f"{tmp_path / 'f.py'}\n{tmp_path / 'helper.py'}\n")
    sources = SourceFiles(listed, ["python", "-m", "millstream_udf", "f.py:process"], tmp_path)
    sources.begin()
    return sources


def test_a_change_of_what_was_imported(files: SourceFiles, tmp_path: Path) -> None:
    assert files.changed() == []
    (tmp_path / "helper.py").write_text("b")
    assert files.changed() == [tmp_path / "helper.py"]
    assert files.changed() == [tmp_path / "helper.py"], "until there is a new process"
    files.begin()
    assert files.changed() == []
    assert files.name([tmp_path / "helper.py"]) == "helper.py"


def test_a_file_that_takes_the_name(files: SourceFiles, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("b")
    os.replace(tmp_path / "other", tmp_path / "f.py")
    assert files.changed() == [tmp_path / "f.py"]


def test_the_same_contents_are_no_change_but_ask_for_another_try(files: SourceFiles, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("a")
    os.replace(tmp_path / "other", tmp_path / "f.py")
    assert files.written() == [tmp_path / "f.py"]
    assert files.changed() == []


def test_a_file_that_goes_and_comes(files: SourceFiles, tmp_path: Path) -> None:
    (tmp_path / "f.py").unlink()
    assert files.is_missing_one()
    assert files.changed() == [tmp_path / "f.py"]
    files.begin()
    assert files.changed() == []
    (tmp_path / "f.py").write_text("a")
    assert files.changed() == [tmp_path / "f.py"]


def test_a_module_that_was_missing(files: SourceFiles, tmp_path: Path) -> None:
    assert files.written() == []
    (tmp_path / "missing.py").write_text("a")
    assert files.written() == [tmp_path / "missing.py"]
    assert files.changed() == [], "nothing has imported it"


def test_what_is_imported_later_and_was_changed_since_the_start(files: SourceFiles, tmp_path: Path) -> None:
    early, late = tmp_path / "early.py", tmp_path / "late.py"
    early.write_text("a")
    os.utime(early, ns=(0, 0))
    late.write_text("a")
    os.utime(late, ns=(2**62, 2**62))
    files.listed.write_text(f"{early}\n{late}\n")
    assert files.changed() == [late]
    files.begin()
    # Once: a clock that is wrong must not restart the function again and again.
    assert files.changed() == []


def test_other_files_are_nothing_to_it(files: SourceFiles, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "unrelated.py").write_text("x")
    assert files.changed() == []


def test_a_program_that_is_built_anew(tmp_path: Path) -> None:
    program = tmp_path / "words"
    program.write_bytes(b"one")
    program.chmod(0o755)
    files = SourceFiles(tmp_path / "listed", ["./words"], tmp_path)
    files.begin()
    program.write_bytes(b"two")
    assert files.changed() == [program]


@pytest.mark.parametrize("word", ["x" * 5000, "import this\n" * 500, "a\0b", "", "/", ":"])
def test_words_of_a_command_that_are_not_files(tmp_path: Path, word: str) -> None:
    files = SourceFiles(tmp_path / "listed", ["python", "-c", word, f"{word}.py:f"], tmp_path)
    files.begin()
    assert files.changed() == []


def test_interpreters_and_what_lies_elsewhere_are_left_out(tmp_path: Path) -> None:
    own = tmp_path / "venv" / "bin"
    own.mkdir(parents=True)
    (own / "python").symlink_to(sys.executable)
    files = SourceFiles(tmp_path / "listed", [str(own / "python"), "/bin/sh", "-c", "x"], tmp_path)
    files.begin()
    assert files.state() == ([], frozenset())


@pytest.mark.timeout(20)
def test_a_function_cannot_have_anything_read_by_naming_it(files: SourceFiles, tmp_path: Path) -> None:
    """A pipe, a device and a path that is not one, in the list and in its place: it may be hostile."""
    os.mkfifo(tmp_path / "pipe.py")
    named = [tmp_path / "pipe.py", "/dev/zero", tmp_path, "a\0b", "x" * 5000, tmp_path / "f.py"]
    files.listed.write_text("".join(f"{path}\n" for path in named))
    assert files.changed() == []
    files.begin()
    assert files.changed() == []
    (tmp_path / "f.py").write_text("b")
    assert files.changed() == [tmp_path / "f.py"]
    assert tmp_path / "f.py" in files.written()
    files.listed.unlink()
    os.mkfifo(files.listed)
    assert files.changed() == [tmp_path / "f.py"]
