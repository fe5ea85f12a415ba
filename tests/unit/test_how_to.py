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
from tests.support.page_files import Command, PageFile, differs, steps_of, write

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted((REPOSITORY / "docs" / "how-to").glob("*.md"))
FILES = [(page, step) for page in PAGES for step in steps_of(page.read_text()) if isinstance(step, PageFile)]


def test_there_are_pages_with_files() -> None:
    names = {page.stem for page in PAGES}
    assert {"dead-letters", "testing", "from-numaflow"} <= names
    assert any(file.name.endswith(".yaml") for _, file in FILES)
    assert any(Path(file.name).name.startswith("test_") for _, file in FILES)


@pytest.mark.parametrize(("page", "file"), FILES, ids=lambda one: getattr(one, "stem", None) or one.name)
def test_each_file_can_be_used(page: Path, file: PageFile, tmp_path: Path) -> None:
    """A pipeline is one, Python compiles, JSON lines are JSON."""
    match Path(file.name).suffix:
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
            raise AssertionError(f"{page.name}:{file.line}: nothing checks files like {other}")


def test_functions_that_pipelines_name_are_in_the_page() -> None:
    """A reader who copies the files of a page has all that its pipelines need."""
    for page in PAGES:
        files = {file.name: file for path, file in FILES if path == page}
        for file in files.values():
            if not file.name.endswith(".yaml"):
                continue
            for vertex in vertices_of(file):
                for place in (vertex.get("udf"), (vertex.get("source") or {}).get("transformer")):
                    if not place or not place.get("python"):
                        continue
                    module, _, function = place["python"].partition(":")
                    name = str(Path(place.get("workingDir", "."), module))
                    assert name in files, f"{page.name}:{file.line}: {name} is not on the page"
                    defined = {getattr(node, "name", "") for node in ast.parse(files[name].text).body}
                    assert function in defined, f"{page.name}:{files[name].line}: no function {function}"


def vertices_of(file: PageFile) -> list[dict[str, Any]]:
    vertices: list[dict[str, Any]] = YAML(typ="safe").load(file.text)["spec"]["vertices"]
    return vertices


@pytest.mark.process
@pytest.mark.slow
def test_the_tests_on_the_pages_pass(tmp_path: Path) -> None:
    """Those of functions; what runs a pipeline is for `tests/mesh/test_how_to.py`."""
    folders = []
    for page, file in FILES:
        if not file.peer:
            folders.append(write(file, tmp_path / page.stem).parent)
    tests = sorted({
        path for folder in folders for path in folder.glob("test_*.py") if path.name != "test_pipeline.py"
    })  # fmt: skip
    assert len(tests) >= 4
    for test in tests:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", test.name],
            cwd=test.parent,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{test}: {done.stdout}{done.stderr}"


def test_output_that_a_page_does_not_show_is_found() -> None:
    page = "```console\n$ first\none\n...\nlast …\n$ second\n```\n```sh\nnot run\n```\n"
    first, second = steps_of(page)
    assert isinstance(first, Command)
    assert isinstance(second, Command)
    assert (first.text, first.output, first.line) == ("first", ("one", "...", "last …"), 2)
    assert second.output == ()
    for printed in ("one\nlast words\n", "one \ntwo\nthree\nlast one\n"):
        assert not differs(first, printed), printed
    for printed in ("", "one\n", "one\nlast\n", "zero\none\nlast one\n", "one\nlast one\nmore\n"):
        assert differs(first, printed), printed
    assert not differs(second, "")
    assert differs(second, "a word\n")
