"""Kinds of vertex: nothing but a kind's own module compares them, and a pipeline loads those that it names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.spec.connectors import SourceKind
from millstream.spec.kinds import KINDS, VertexKind
from millstream.spec.values import SpecModel
from millstream_worker.kind import RunnableKind
from tools.style import nodes_below

REPOSITORY = Path(__file__).parents[2]
NAMES = {"source", "map", "reduce", "sink"}
VIEWS = {"source", "udf", "sink"}
"""Of a vertex, for code that is about one kind: who asks whether there is one compares kinds."""
ALLOWED = {
    "services/runner/millstream_runner/chaos/oracle": "it shares nothing but formats with what it judges",
    "services/runner/millstream_runner/cli/completing.py": "it reads files as they are written, without models",
    "services/runner/millstream_runner/cli/bench.py": "`map` and `reduce` are benchmarks there",
    "connectors/millstream_connectors/shared/formats/avro": "`map` is a type of Avro there",
}


def comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each comparison with the name of a kind, and of each question whether a vertex is of one."""
    for node in nodes_below(tree):
        if isinstance(node, ast.Compare):
            parts = [part for side in (node.left, *node.comparators) for part in (side, *getattr(side, "elts", ()))]
            named = any(isinstance(part, ast.Constant) and part.value in NAMES for part in parts)
            views = isinstance(node.left, ast.Attribute) and node.left.attr in VIEWS
            absent = any(isinstance(part, ast.Constant) and part.value is None for part in node.comparators)
            if named or (views and absent):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Match) and ast.unparse(node.subject).endswith(".kind"):
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            if NAMES.intersection(value for value in values if isinstance(value, str)):
                yield node.lineno, f"match {ast.unparse(node.subject)}"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("vertex.kind == 'source'", 1),
        ("kind in ('sink', 'reduce')", 1),
        ("vertex.udf is not None", 1),
        ("match step.kind:\n    case 'map':\n        pass", 1),
        ("edge.kind == 'deadLetter' and vertex.group_by is None", 0),
    ],
)
def test_a_comparison_is_seen(text: str, count: int) -> None:
    assert len(list(comparisons(ast.parse(text)))) == count


@pytest.mark.slow
def test_no_kind_of_vertex_is_compared() -> None:
    paths = [
        path
        for folder in ("millstream", "services", "connectors")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    ]
    names = {path: path.relative_to(REPOSITORY).as_posix() for path in paths}
    ours = [path for path in paths if not names[path].startswith((*ALLOWED, "services/udf_sdk"))]
    found = [
        f"{names[path]}:{line}: {text}" for path in ours for line, text in comparisons(ast.parse(path.read_text()))
    ]
    assert len(ours) > 100
    assert found == []


def every_kind() -> dict[str, VertexKind[SpecModel]]:
    given: tuple[list[str], ...] = ([], ["groupBy"], ["state"])
    return {kind.name: kind for key in KINDS.names for members in given for kind in [KINDS.load(key).of(members)]}


def test_the_kinds_that_ship_can_be_run() -> None:
    kinds = every_kind()
    assert set(kinds) == NAMES | {"keyed map"}
    assert all(isinstance(kind, RunnableKind) for kind in kinds.values())


def test_a_kind_says_where_records_come_in_and_go_out() -> None:
    kinds = every_kind()
    assert {name for name, kind in kinds.items() if not kind.has_input} == {"source"}
    assert {name for name, kind in kinds.items() if not kind.has_output} == {"sink"}
    assert {name for name, kind in kinds.items() if kind.has_windows} == {"reduce"}
    # Who reads several edges in one lane, or none, has a name for what it reads.
    assert {name for name, kind in kinds.items() if kind.lane_input is not None} == {"source", "reduce", "keyed map"}


def test_a_source_that_says_it_with_the_word_of_earlier_versions_is_untrusted() -> None:
    class Named(SourceKind[Any]):
        strangers = True

    class Heir(Named):
        pass

    assert Named.untrusted
    assert Heir.untrusted
    assert not SourceKind.untrusted
