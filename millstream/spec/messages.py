"""The messages that users read instead of pydantic's errors. Pure.

Turns each error into a place in the file, a description and the expected value. Pydantic's union and type names never
reach a user.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from millstream import codes
from millstream.nearest import nearest, one_of
from millstream.spec import numaflow
from millstream.spec.model import NONE_GIVEN, SPEC_PROBLEM, to_camel
from millstream.spec.models import Pipeline
from millstream.spec.problems import Finding, Path

_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a text (put quotes around a number)",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def findings_of(failure: ValueError, value: Mapping[str, Any], explained: Collection[Path]) -> list[Finding]:
    """The pydantic errors of one validation, as findings.

    `explained` are places from which something unsupported was removed, so it need not be reported that nothing is left
    there.
    """
    if not isinstance(failure, ValidationError):
        raise failure
    errors = failure.errors(include_url=False)
    locs = [error["loc"] for error in errors]
    misspelt: dict[Path, list[str]] = {}
    for place, name in _misspelt(errors, value):
        misspelt.setdefault(place, []).append(name)
    findings = []
    for error in errors:
        loc = error["loc"]
        path = _path_in(loc, value, is_missing=error["type"] == "missing")
        if error["type"] == NONE_GIVEN and (
            path in explained or any(f"`{name}`" in error["ctx"]["expected"] for name in misspelt.get(path, ()))
        ):
            continue
        deeper = any(len(other) > len(loc) and other[: len(loc)] == loc for other in locs)
        if error["type"] == "too_short" and deeper:
            continue
        findings.append(_finding(error, path, value))
    return findings


def _misspelt(errors: Sequence[ErrorDetails], value: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Where a field is unknown, and which one was probably meant. That one is not also missing."""
    for error in errors:
        if error["type"] == "extra_forbidden":
            path = _path_in(error["loc"], value, is_missing=False)
            near = _near(path, value)
            if near is not None:
                yield path[:-1], near


def _path_in(loc: Path, value: Any, *, is_missing: bool) -> Path:
    """A pydantic location without the names of union members, which are not in the file."""
    path: list[str | int] = []
    for index, step in enumerate(loc):
        is_last = index == len(loc) - 1
        if isinstance(step, str) and isinstance(value, Mapping):
            if step in value:
                value = value[step]
            elif not (is_last and is_missing):
                continue
        elif isinstance(step, int) and isinstance(value, list):
            value = value[step] if step < len(value) else None
        elif isinstance(step, str):
            # The value has no members: the step is the name of a union member.
            continue
        path.append(step)
    return tuple(path)


def _finding(error: ErrorDetails, path: Path, value: Mapping[str, Any]) -> Finding:
    kind, context, written = error["type"], error.get("ctx", {}), error["input"]
    if kind in (SPEC_PROBLEM, NONE_GIVEN):
        return Finding(codes.CODES[context["code"]], path, context["what"], context["expected"])
    if kind == "missing":
        return Finding(codes.FIELD_MISSING, path, f"`{path[-1]}` is missing", _meaning(path, value))
    if kind == "extra_forbidden":
        return Finding(codes.UNKNOWN_FIELD, path, f"unknown field `{path[-1]}`", _nearest(path, value))
    if written is None:
        expected = _TYPES.get(kind, "a value, or omit the field")
        return Finding(codes.FIELD_EMPTY, path, f"`{path[-1]}` is empty", expected)
    if kind == "literal_error":
        expected = one_of(str(written), _names(context["expected"]))
        return Finding(codes.NOT_ALLOWED, path, f"{_shown(written)} is not allowed", expected)
    if kind == "union_tag_invalid":
        what = f"{_shown(context['tag'])} is not allowed"
        expected = one_of(str(context["tag"]), _names(context["expected_tags"]))
        return Finding(codes.NOT_ALLOWED, (*path, "name"), what, expected)
    if kind == "union_tag_not_found":
        return Finding(codes.FIELD_MISSING, (*path, "name"), "`name` is missing", "the name of the built-in")
    if kind in _TYPES:
        return Finding(codes.WRONG_TYPE, path, f"{_shown(written)} has the wrong type", _TYPES[kind])
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        bound = context[key]
        number = int(bound) if bound == int(bound) else bound
        return Finding(codes.OUT_OF_RANGE, path, f"{_shown(written)} is out of range", f"{words} {number}")
    if kind == "too_short":
        return Finding(codes.FIELD_EMPTY, path, "the list is empty", "at least one entry")
    if kind == "finite_number":
        return Finding(codes.OUT_OF_RANGE, path, f"{_shown(written)} is out of range", "a finite number")
    return Finding(codes.VALUE_MALFORMED, path, error["msg"], "a value as described in the reference")


def _shown(written: Any) -> str:
    if isinstance(written, Mapping):
        return "a mapping"
    if isinstance(written, list | tuple):
        return "a list"
    if isinstance(written, bool):
        return str(written).lower()
    text = repr(written)
    return text if len(text) <= 60 else text[:57] + "..."


def _names(quoted: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return quoted.replace(" or ", ", ").replace("'", "").split(", ")


def _meaning(path: Path, value: Mapping[str, Any]) -> str:
    """The first sentence of a field's description."""
    schema = _properties(path[:-1], value).get(str(path[-1]), {})
    text = " ".join(str(schema.get("description", "a value")).split())
    sentence = text.split(". ")[0].rstrip(".")
    return f"`{path[-1]}`: {sentence}"


def _near(path: Path, value: Mapping[str, Any]) -> str | None:
    """The field with a name similar to that of an unknown one."""
    names = [*_properties(path[:-1], value), *numaflow.field_names(path[:-1])]
    return nearest(to_camel(str(path[-1]).replace("-", "_")), names)


def _nearest(path: Path, value: Mapping[str, Any]) -> str:
    near = _near(path, value)
    if near is not None:
        return f"did you mean `{near}`?"
    own = list(_properties(path[:-1], value))
    return f"one of {', '.join(own)}" if own else "no fields here"


def _properties(path: Path, value: Any) -> Mapping[str, Any]:
    """The schemas of the fields at a path; empty if there are none."""
    node: Any = _schema()
    for step in path:
        value = _member(value, step)
        node = node.get("items", {}) if isinstance(step, int) else node.get("properties", {}).get(step, {})
        node = _resolved(node, value)
    properties = node.get("properties", {})
    return properties if isinstance(properties, Mapping) else {}


def _member(value: Any, step: str | int) -> Any:
    if isinstance(step, str) and isinstance(value, Mapping):
        return value.get(step)
    if isinstance(step, int) and isinstance(value, list) and step < len(value):
        return value[step]
    return None


def _resolved(node: Any, value: Any) -> Any:
    """A schema with its reference resolved and without null; for a union, the schema of the intended member."""
    while True:
        if "$ref" in node:
            node = _schema()["$defs"][node["$ref"].rsplit("/", 1)[1]]
        elif "anyOf" in node:
            node = next((part for part in node["anyOf"] if part.get("type") != "null"), {})
        elif "oneOf" in node and "discriminator" not in node:
            # A text or a reference: only the reference has fields.
            named = (part for part in node["oneOf"] if "$ref" in part)
            node = next(named, {}) if isinstance(value, Mapping) else {}
        elif "oneOf" in node:
            name = value.get("name") if isinstance(value, Mapping) else None
            reference = node["discriminator"]["mapping"].get(name)
            node = {"$ref": reference} if reference else {}
        else:
            return node


@cache
def _schema() -> dict[str, Any]:
    return Pipeline.model_json_schema()
