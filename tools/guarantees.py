"""Which tests hold which invariant: what `tests/guarantees.toml` lists and what the tests themselves say."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MANIFEST = REPOSITORY / "tests" / "guarantees.toml"

Holders = Mapping[str, frozenset[str]]
"""Invariant to the node ids of its tests, `tests/mesh/test_x.py::test_y`, without parameters."""


def listed() -> Holders:
    """What the manifest says."""
    return {invariant: frozenset(entry["tests"]) for invariant, entry in tomllib.loads(MANIFEST.read_text()).items()}


def marked() -> Holders:
    """What `@pytest.mark.guarantee(...)` says, on functions, classes and whole modules."""
    found: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        text = path.read_text()
        # To read all tests takes ten seconds, and half of them hold no invariant.
        marks = marks_of(path.relative_to(REPOSITORY).as_posix(), text) if "guarantee" in text else ()
        for node_id, invariants in marks:
            for invariant in invariants:
                found.setdefault(invariant, set()).add(node_id)
    return {invariant: frozenset(node_ids) for invariant, node_ids in found.items()}


def marks_of(path: str, source: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Node id and invariants of every test of a file; no invariants where it has no mark."""
    tree = ast.parse(source)
    yield from _marks_of_body(path, tree.body, _module_marks(tree))


def _marks_of_body(
    prefix: str, body: list[ast.stmt], inherited: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{prefix}::{node.name}", inherited | _invariants(node.decorator_list)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            marks = inherited | _invariants(node.decorator_list)
            yield from _marks_of_body(f"{prefix}::{node.name}", node.body, marks)


def _module_marks(tree: ast.Module) -> frozenset[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets):
            marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            return _invariants(marks)
    return frozenset()


def _invariants(marks: list[ast.expr]) -> frozenset[str]:
    return frozenset(
        ast.literal_eval(argument)
        for mark in marks
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.guarantee"
        for argument in mark.args
    )


def swept() -> frozenset[str]:
    """Node ids of the tests that only `make test-all` runs, whatever their parameters."""
    sources = {path: path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")}
    return frozenset(
        f"{path.relative_to(REPOSITORY).as_posix()}::{node.name}"
        for path, source in sources.items()
        if "pytest.mark.sweep" in source
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(ast.unparse(mark) == "pytest.mark.sweep" for mark in node.decorator_list)
    )


def differences(by_manifest: Holders, by_mark: Holders) -> list[str]:
    """One line per test that only one of the two sides names."""
    faults = []
    for invariant in sorted({*by_manifest, *by_mark}):
        if invariant not in by_manifest:
            faults.append(f"{invariant}: no such invariant, but marked by {', '.join(sorted(by_mark[invariant]))}")
            continue
        names, marks = by_manifest[invariant], by_mark.get(invariant, frozenset())
        faults += [f"{invariant}: {node_id} is listed, but no test there carries the mark" for node_id in names - marks]
        faults += [f"{invariant}: {node_id} carries the mark, but is not listed" for node_id in marks - names]
    return sorted(faults)
