"""How deep the values of an Avro schema can be, and the reader that is safe for them. Pure.

fastavro's compiled reader has no limit of its own: a value with some thousand levels, which takes as many bytes, ends
the process. Only a schema that refers to itself allows such values, so its values are read by fastavro's reader in
Python, which ends at Python's limit. It needs ten times as long.

Above it: readers of Avro values and files. Below it: fastavro.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fastavro import _read_py, reader, schemaless_reader

from millstream.limits import JSON_NESTED_MAX

TOO_DEEP = f"it is nested more than {JSON_NESTED_MAX} levels deep"


def values_reader(schema: Any) -> Callable[[Any, Any, Any], Any]:
    """The function that reads one value of a parsed schema: from a stream, with the writer's and the reader's schema.
    Raises `ValueError` for a schema without values."""
    found: Callable[[Any, Any, Any], Any]
    found = schemaless_reader if _levels(schema) <= JSON_NESTED_MAX else _read_py.schemaless_reader
    return found


def file_reader(stream: Any) -> Any:
    """The rows of an Avro file. Raises `ValueError`, also while they are read, and what fastavro raises."""
    rows: Any = reader(stream)
    if _levels(rows.writer_schema) > JSON_NESTED_MAX:
        stream.seek(0)
        rows = _read_py.reader(stream)
    return rows


def _levels(schema: Any) -> float:
    """The most levels that a value of a parsed schema has; infinite if it may have any number. Raises `ValueError` for
    a record that always contains itself."""
    named = dict(schema.get("__named_schemas") or {}) if isinstance(schema, dict) else {}
    try:
        return _Walk(named).levels(schema, frozenset())
    except RecursionError:
        return math.inf


class _Walk:
    """A walk through a schema."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = dict(named)
        self._known: dict[str, float] = {}
        self._open: set[str] = set()

    def levels(self, schema: Any, certain: frozenset[str]) -> float:
        """`certain`: records around this one whose values always contain a value of it."""
        if isinstance(schema, list):
            return max((self.levels(branch, frozenset()) for branch in schema), default=0)
        if isinstance(schema, str):
            return self._levels_of_name(schema, certain)
        kind = schema["type"]
        if kind in ("array", "map"):
            return 1 + self.levels(schema["items" if kind == "array" else "values"], frozenset())
        if kind in ("record", "error"):
            name = schema["name"]
            self._named.setdefault(name, schema)
            return self._levels_of_name(name, certain)
        return 0 if isinstance(kind, str) and kind not in self._named else self.levels(kind, certain)

    def _levels_of_name(self, name: str, certain: frozenset[str]) -> float:
        if name not in self._named:
            return 0
        if name in certain:
            raise ValueError(f"the record {name} always contains itself")
        if name in self._open:
            return math.inf
        if name not in self._known:
            schema = self._named[name]
            if schema["type"] not in ("record", "error"):
                return 0
            self._open.add(name)
            around = certain | {name}
            self._known[name] = 1 + max((self.levels(field["type"], around) for field in schema["fields"]), default=0)
            self._open.discard(name)
        return self._known[name]
