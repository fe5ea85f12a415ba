"""What `make servers` takes, and what it does where it can take nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import servers


def test_files_with_other_hashes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jar").write_bytes(b"a")
    hashed = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    (tmp_path / "list").write_text(f"{hashed}  a.jar\n")
    servers.check_hashes(tmp_path / "list", tmp_path / "files")
    (tmp_path / "files" / "b.jar").write_bytes(b"b")
    with pytest.raises(servers.WrongContentsError, match=r"b\.jar"):
        servers.check_hashes(tmp_path / "list", tmp_path / "files")
    (tmp_path / "files" / "b.jar").unlink()
    (tmp_path / "files" / "a.jar").unlink()
    with pytest.raises(servers.WrongContentsError, match="the hash is None"):
        servers.check_hashes(tmp_path / "list", tmp_path / "files")


def test_a_server_that_is_not_available_is_named_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(servers, "CACHE", servers.REPOSITORY / ".cache" / "servers" / "of a test")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["servers.py", "kafka"])
    try:
        assert servers.main() == 0
    finally:
        servers.CACHE.rmdir()
    assert "kafka is not available, and its tests are skipped: java is not installed" in capsys.readouterr().err


def test_a_server_is_fetched_again_when_its_recipe_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, fetched = tmp_path / "recipes" / "own" / "main.go", tmp_path / "cache" / "own" / "built"
    source.parent.mkdir(parents=True)
    monkeypatch.setattr(servers, "REPOSITORY", tmp_path)
    monkeypatch.setattr(servers, "RECIPES", tmp_path / "recipes")
    monkeypatch.setattr(servers, "CACHE", tmp_path / "cache")
    builds: list[str] = []

    def build(directory: Path) -> None:
        builds.append(source.read_text())
        (directory / "built").write_text(source.read_text())

    monkeypatch.setitem(servers.FETCHED, "own", build)
    for text in ("first", "first", "second", "second"):
        source.write_text(text)
        servers.fetch("own")
        assert fetched.read_text() == text
    assert builds == ["first", "second"]
    # One of an earlier time, of which no recipe was noted, stays until its recipe changes.
    (tmp_path / "cache" / ".own.recipe").unlink()
    servers.fetch("own")
    assert builds == ["first", "second"]
    source.write_text("third")
    servers.fetch("own")
    assert fetched.read_text() == "third"
