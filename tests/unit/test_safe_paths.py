"""Each process that we start with `python -m` is started with `-P`: it must not import from the user's folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_USERS = {"services/runner/millstream_runner/cli/test.py"}
"""Starts the tests of users, which import from their folder."""


@pytest.mark.slow
def test_no_module_of_ours_is_started_without_a_safe_path() -> None:
    found = 0
    patterns = ("millstream/**/*.py", "services/*/millstream_*/**/*.py", "connectors/**/*.py")
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        if str(path.relative_to(ROOT)) in OF_USERS:
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if '"-m"' in text else ():
            if not isinstance(node, ast.List | ast.Tuple):
                continue
            words = [ast.unparse(element) for element in node.elts]
            if "sys.executable" in words and "'-m'" in words:
                found += 1
                assert "'-P'" in words, f"{path}:{node.lineno}"
    assert found
