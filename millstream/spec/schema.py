"""The JSON schema of the pipeline file, created from the models, with their docstrings as descriptions.

Above it: the reference page, `millstream schema`, and through it editors, which complete fields and show the
descriptions as hover texts. Below it: the models, including those of installed packages.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from millstream.spec.models import Pipeline
from millstream.spec.values import SpecModel

# Editors' YAML language servers know this draft best; nothing in the schema needs a later one.
DRAFT = "http://json-schema.org/draft-07/schema#"


@cache
def schema() -> dict[str, Any]:
    """The schema, with the fields as they are written in YAML. Reads the source of every model, which takes about a
    second, once. Callers get the same object and must not change it."""
    return {"$schema": DRAFT, **schema_of(Pipeline)}


def schema_of(model: type[SpecModel]) -> dict[str, Any]:
    """The schema of one model, with those it refers to in `$defs`."""
    body: dict[str, Any] = _for_editors(model.model_json_schema())
    return body


def _for_editors(node: Any) -> Any:
    """With fields under their own names, and descriptions without the line breaks of docstrings."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _for_editors(value) for key, value in node.items()}
    properties = found.get("properties")
    if isinstance(properties, dict) and "type" in found:
        for name, contents in properties.items():
            if "title" in contents:
                # Pydantic derives a title from the name, which an editor would show.
                contents["title"] = name
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    return found
