"""JSON texts, and whether they fit a JSON Schema. Pure.

Above it: decoder and encoders. Below it: jsonschema-rs, for encoders only.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from millstream.formats.registry import Schema
from millstream.json_text import all_json

_BASE = "json-schema:///"
"""Of the addresses of schemas that have none, as jsonschema-rs resolves them."""


def from_json(value: bytes) -> Any:
    """What a text means. Raises `ValueError`; NaN and infinities are not JSON, and no encoding but UTF-8 is taken."""
    try:
        return json.loads(value.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value is not JSON: {error}") from None


def checked(value: bytes) -> bytes:
    """JSON as it is. Readers do not check it by its schema, as Confluent's do by default. Raises `ValueError`."""
    if not all_json((value,)):
        from_json(value)
    return value


def encoder(schema: Schema) -> Callable[[bytes], bytes]:
    """JSON as it is, if it fits the schema; otherwise it raises `ValueError`. So does this for a schema that cannot be
    used."""
    import jsonschema_rs

    try:
        others = [(_BASE + referred.name, json.loads(referred.text)) for referred in schema.references]
        registry = jsonschema_rs.Registry(others, retriever=_not_fetched)
        validator = jsonschema_rs.validator_for(json.loads(schema.text), registry=registry, retriever=_not_fetched)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = str(getattr(error, "message", error)).partition("\n")[0]
        raise ValueError(f"cannot be used: {what}") from error

    def encode(value: bytes) -> bytes:
        try:
            validator.validate(from_json(value))
        except jsonschema_rs.ValidationError as error:
            place = ".".join(map(str, error.instance_path))
            raise ValueError(
                f"the value does not fit the schema: {f'at {place}: ' if place else ''}{error.message}"
            ) from None
        return value

    return encode


def _not_fetched(address: str) -> Any:
    raise ValueError(f"the schema refers to {address}, which is not among its references in the registry")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
