"""Modules that the code starts as processes can be started: a package that moves takes their names with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("millstream", "services", "connectors", "examples", "benchmarks", "tools", "tests")
OURS = ("millstream", "tests")


def started() -> Iterator[tuple[str, str]]:
    """File and module of each `-m MODULE` in a list, a tuple or a call."""
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            # To parse all files would take seconds.
            for node in ast.walk(ast.parse(text)) if '"-m"' in text else ():
                items = node.elts if isinstance(node, ast.List | ast.Tuple) else getattr(node, "args", None)
                if not isinstance(items, list):
                    continue
                values = [item.value if isinstance(item, ast.Constant) else None for item in items]
                for before, value in pairwise(values):
                    if before == "-m" and isinstance(value, str) and value.startswith(OURS):
                        yield str(path.relative_to(REPOSITORY)), value


@pytest.mark.slow
def test_each_can_be_started() -> None:
    found = sorted(set(started()))
    assert ("examples/flights/demo.py", "millstream_runner") in found
    for path, module in found:
        spec = find_spec(module)
        assert spec is not None, f"{path} starts {module}, which is not there"
        assert spec.submodule_search_locations is None or find_spec(f"{module}.__main__") is not None, (
            f"{path} starts the package {module}, which has no __main__"
        )
