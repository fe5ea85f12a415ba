"""The how-tos: every file a page has its reader write is what it says, and the tests in it pass."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millstream.spec.loading import load
from tests.support.how_to import OF_OTHERS, PAGES, files_of, write
from tools.follow import Block

FILES = [file for page in PAGES for file in files_of(page)]


def test_there_are_pages_with_files() -> None:
    names = {page.stem for page in PAGES}
    assert {"dead-letters", "testing", "from-numaflow"} <= names
    assert any(file.title.endswith(".yaml") for file in FILES)
    assert any(Path(file.title).name.startswith("test_") for file in FILES)
    assert {file.title for file in FILES} >= OF_OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.page.stem}-{file.title}-{file.line}")
def test_each_file_can_be_used(file: Block, tmp_path: Path) -> None:
    """A pipeline is one, Python compiles, JSON lines are JSON."""
    match Path(file.title).suffix:
        case ".yaml" if file.title.endswith(".case.yaml"):
            assert set(YAML(typ="safe", pure=True).load(file.text)) == {"inputs", "outputs"}
        case ".yaml":
            load(write(file, tmp_path))
        case ".py":
            tree = ast.parse(file.text)
            assert not [node for node in ast.walk(tree) if isinstance(node, ast.Pass)], "not complete"
        case ".jsonl":
            assert [json.loads(line) for line in file.text.splitlines()]
        case ".txt" | ".log":
            assert file.text.strip()
        case other:
            raise AssertionError(f"{file}: nothing checks files like {other}")


def test_functions_that_pipelines_name_are_in_the_page() -> None:
    """A reader who copies the files of a page has all that its pipelines need."""
    for page in PAGES:
        files = {file.title: file for file in files_of(page)}
        for file in files.values():
            if not file.title.endswith(".yaml") or file.title.endswith(".case.yaml"):
                continue
            for vertex in vertices_of(file):
                for place in (vertex.get("udf"), (vertex.get("source") or {}).get("transformer")):
                    if not place or not place.get("python"):
                        continue
                    module, _, function = place["python"].partition(":")
                    name = str(Path(place.get("workingDir", "."), module))
                    assert name in files, f"{file}: {name} is not on the page"
                    defined = {getattr(node, "name", "") for node in ast.parse(files[name].text).body}
                    assert function in defined, f"{files[name]}: no function {function}"


def vertices_of(file: Block) -> list[dict[str, Any]]:
    vertices: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(file.text)["spec"]["vertices"]
    return vertices


@pytest.mark.process
@pytest.mark.slow
def test_the_tests_on_the_pages_pass(tmp_path: Path) -> None:
    """Those of functions; pipelines are for `tests/mesh/test_how_to.py`."""
    written = [write(file, tmp_path / file.page.stem) for file in FILES if file.title not in OF_OTHERS]
    tests = sorted({path for path in written if path.name.startswith("test_")})
    assert len({test.name for test in tests}) == len(tests) >= 4, (
        "they run in one process, so each needs a name of its own"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--import-mode=prepend",
            *map(str, tests),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
