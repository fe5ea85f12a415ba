"""The fields of a model for display: name, type, default, meaning. Created from the JSON schema of the model.

Above it: the reference of the pipeline file, and `millstream connectors`. Below it: the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.spec.schema import schema_of
from millstream.spec.values import SpecModel

_REFERENCES = ("Reference", "SecretKey")
_DEPTH_MAX = 4
"""Depth to which nested members are listed; docs/spec.md has the deeper ones."""


@dataclass(frozen=True, slots=True)
class Option:
    """One field, or one of a model below it."""

    name: str
    """Its name, with the fields that contain it: `batch.maxRecords`."""
    type: str
    default: str
    """Empty if there is none; `required` if it has to be given."""
    meaning: str


def options_of(model: type[SpecModel]) -> list[Option]:
    """All fields, those of nested models after the field that holds them."""
    body = schema_of(model)
    return list(_options(body, body.get("$defs", {}), "", _DEPTH_MAX))


def _options(node: Mapping[str, Any], models: Mapping[str, Any], prefix: str, depth: int) -> Iterator[Option]:
    for name, contents in node.get("properties", {}).items():
        below = _model_of(contents, models)
        yield Option(
            f"{prefix}{name}",
            type_of(contents, _shown),
            default_of(name, contents, node),
            flat(contents.get("description") or (below or {}).get("description") or ""),
        )
        if below is not None and depth > 1:
            yield from _options(below, models, f"{prefix}{name}.", depth - 1)


def _shown(model: str) -> str:
    return "reference" if model in _REFERENCES else "fields"


def _model_of(contents: Mapping[str, Any], models: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The one model of a field; None for a reference, which has two notations, and for lists."""
    parts = contents.get("anyOf", contents.get("oneOf", [contents]))
    references = [part["$ref"] for part in parts if "$ref" in part]
    others = [part for part in parts if "$ref" not in part and part.get("type") != "null"]
    if len(references) != 1 or others:
        return None
    found: Mapping[str, Any] = models[name_of(references[0])]
    return found


def name_of(reference: str) -> str:
    """The model that a schema refers to."""
    return reference.rsplit("/", 1)[1]


def flat(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


def default_of(field: str, contents: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The default of a field, as it would be written."""
    if field in model.get("required", ()):
        return "required"
    value = contents.get("default")
    if value is None or value in ([], {}, ""):
        return ""
    if isinstance(value, dict):
        return "its defaults"
    if type_of(contents, str) == "duration":
        return f"{value:g}s"
    return json.dumps(value) if not isinstance(value, str) else value


def type_of(node: Mapping[str, Any], named: Callable[[str], str], choice: str = "{}") -> str:
    """The type of a field in words. `named` formats the name of a model, `choice` a fixed text."""
    if "$ref" in node:
        return named(name_of(node["$ref"]))
    for union in ("anyOf", "oneOf"):
        if union in node:
            parts = [type_of(part, named, choice) for part in node[union] if part.get("type") != "null"]
            return " or ".join(dict.fromkeys(parts))
    if "const" in node or "enum" in node:
        return ", ".join(choice.format(each) for each in node.get("enum", [node.get("const")]))
    match node.get("type"):
        case "array":
            return f"list of {type_of(node['items'], named, choice)}"
        case "object" if node["additionalProperties"] is True:
            return "mapping"
        case "object":
            return f"mapping of {type_of(node['additionalProperties'], named, choice)}"
        case ["string", "number"]:
            return "duration"
        case ["string", "integer"]:
            return "size"
        case "integer":
            return "whole number" + _range(node)
        case "number":
            return "number" + _range(node)
        case "boolean":
            return "true or false"
        case "string":
            return "name" if "pattern" in node else "text"
    return "text, number, true or false"


def _range(node: Mapping[str, Any]) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}" if high < 1e6 else f", at least {low:g}"
    return f", at least {low:g}" if low is not None else ""
