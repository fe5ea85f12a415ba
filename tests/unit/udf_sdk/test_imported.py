"""Which files of the user's a function was made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream_udf import imported
from millstream_udf.loading import LoadError, load


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(imported.LIST_VARIABLE, str(tmp_path / "listed"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path / "listed"


def test_what_was_imported_without_python_and_packages(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "imported_helper.py").write_text("import json\nimport google.protobuf\n")
    (tmp_path / "imported_f.py").write_text("import imported_helper\ndef process(value): return value\n")
    load("imported_f.py:process", str(tmp_path))
    own = {Path(file) for file in imported.own_files()}
    assert {tmp_path / "imported_f.py", tmp_path / "imported_helper.py"} <= own
    assert not [file for file in own if "site-packages" in file.parts or file.name == "decoder.py"]
    assert not [file for file in own if file.parent == Path(imported.__file__).parent]


def test_what_cannot_be_imported_is_listed(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "imported_broken.py").write_text("def (\n")
    (tmp_path / "imported_g.py").write_text("import imported_broken\n")
    with pytest.raises(SyntaxError) as raised:
        load("imported_g.py:process", str(tmp_path))
    imported.list_failed(raised.value)
    assert {str(tmp_path / "imported_g.py"), str(tmp_path / "imported_broken.py")} <= set(
        listed.read_text().split("\n")
    )


def test_nothing_is_written_where_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(imported.LIST_VARIABLE, raising=False)
    imported.keep_listed()
    imported.list_failed(LoadError("no"))
    assert not list(tmp_path.iterdir())
