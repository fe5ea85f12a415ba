"""The JSON schema of the pipeline file: made from the models, with their docstrings as descriptions.

Above it: the reference page, `millstream schema`, and through it editors, which complete fields and show the
descriptions as hover texts. Below it: the models, those of installed packages included.
"""

from __future__ import annotations

from typing import Any

from millstream.spec.models import Pipeline

# Editors' YAML language servers know this draft best; nothing in the schema needs a later one.
DRAFT = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """The schema, with the fields as they are written in YAML. Reads the source of every model: about a second."""
    body: dict[str, Any] = _flat(Pipeline.model_json_schema(by_alias=True))
    return {"$schema": DRAFT, **body}


def _flat(node: Any) -> Any:
    """Without the line breaks of docstrings, which an editor would show."""
    if isinstance(node, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _flat(value)
            for key, value in node.items()
        }
    return [_flat(item) for item in node] if isinstance(node, list) else node
