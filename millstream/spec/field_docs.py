"""The meanings of a model's fields: the strings below them in the source.

Above it: the JSON schema of the pipeline file. Reading the source of every model at its definition would take a quarter
of a process's start-up, so it is read on demand.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache

_WITHOUT = frozenset(("abc", "builtins", "pydantic", "typing"))
"""Packages whose classes are not models."""


@cache
def field_docs_of(model: type) -> dict[str, str]:
    """The meanings by field, including those of base classes."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner.__module__.partition(".")[0] not in _WITHOUT:
            found |= _of_module(owner.__module__).get(owner.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, dict[str, str]]:
    """The meanings of the fields of each class, by its qualified name. A module is parsed once for all its models."""
    module = sys.modules.get(name)
    try:
        tree = ast.parse(inspect.getsource(module)) if module is not None else None
    except OSError:
        tree = None
    # A model that was created at run time, or is installed without its source, has none.
    return {} if tree is None else dict(_classes(tree, ""))


def _classes(within: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, dict[str, str]]]:
    for statement in within.body:
        if isinstance(statement, ast.ClassDef):
            qualified = f"{prefix}{statement.name}"
            yield qualified, _own(statement)
            yield from _classes(statement, f"{qualified}.")


def _own(definition: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[statement.target.id] = inspect.cleandoc(after.value.value)
    return found
