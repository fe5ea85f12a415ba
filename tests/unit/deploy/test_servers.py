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
