"""What the fields of a model mean: the strings below them, as their source has them.

Above it: the JSON schema of the pipeline file. Reading the source of every model at its definition would be a quarter
of what a process does at its start, so it is read on demand.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache

_WITHOUT = frozenset(("abc", "builtins", "pydantic", "typing"))
"""Packages whose classes are not models."""


@cache
def field_docs_of(model: type) -> dict[str, str]:
    """By field; those of base classes too."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner.__module__.partition(".")[0] not in _WITHOUT:
            found |= _own(owner)
    return found


def _own(model: type) -> dict[str, str]:
    try:
        source = inspect.getsource(model)
    except OSError:
        # A model that was made while running has none.
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef), "the source of a class defines it"
    found = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            found[statement.target.id] = inspect.cleandoc(after.value.value)
    return found
