"""JSON texts, and whether they fit a JSON Schema. Pure.

Above it: decoder and encoders. Below it: jsonschema-rs, for encoders only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.exact_json import parse
from millstream.json_parser import parse_json
from millstream.json_text import all_json
from millstream_connectors.shared.formats.registry import Schema

_BASE = "json-schema:///"
"""The base that jsonschema-rs uses for schemas without an address."""


def value_of(value: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises `ValueError`, also for NaN and infinities, which are not JSON."""
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"the value is not JSON: {error}") from None


def checked(value: bytes) -> bytes:
    """JSON unchanged. Readers do not validate it against its schema, while Confluent's do by default. Raises
    `ValueError`."""
    if not all_json((value,)):
        value_of(value)
    return value


def encoder(schema: Schema) -> Callable[[bytes], bytes]:
    """A function that returns JSON unchanged, or raises `ValueError` if it does not fit the schema. Raises `ValueError`
    for a schema that cannot be used."""
    import jsonschema_rs

    try:
        others = [(_BASE + referred.name, parse_json(referred.text)) for referred in schema.references]
        registry = jsonschema_rs.Registry(others, retriever=_not_fetched)
        validator = jsonschema_rs.validator_for(parse_json(schema.text), registry=registry, retriever=_not_fetched)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = str(getattr(error, "message", error)).partition("\n")[0]
        raise ValueError(f"cannot be used: {what}") from error

    def encode(value: bytes) -> bytes:
        try:
            validator.validate(value_of(value))
        except jsonschema_rs.ValidationError as error:
            place = ".".join(map(str, error.instance_path))
            raise ValueError(
                f"the value does not fit the schema: {f'at {place}: ' if place else ''}{error.message}"
            ) from None
        return value

    return encode


def _not_fetched(address: str) -> Any:
    raise ValueError(f"the schema refers to {address}, which is not among its references in the registry")
