"""Values that a target wants as JSON: why one is refused, and one in a line of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.exact_json import parse
from millstream_writer.sink import SinkFailure

NOT_JSON = "value is not JSON"
NOT_AN_OBJECT = "value is not a JSON object"

_SPACES = bytes.maketrans(b"\r\n", b"  ")


def one_line(json_value: bytes) -> bytes:
    """The same JSON without line breaks.

    They can only occur between tokens, where a space has the same meaning. Encoding again would change numbers.
    """
    return json_value.translate(_SPACES)


def json_objects(values: Sequence[bytes]) -> tuple[dict[int, dict[str, Any]], list[SinkFailure]]:
    """The values that are JSON objects, by row, and the failures of the others."""
    objects: dict[int, dict[str, Any]] = {}
    failures = []
    for row, value in enumerate(values):
        try:
            parsed = parse(value)
        except ValueError as error:
            failures.append(SinkFailure(row, NOT_JSON, retryable=False, detail=str(error)))
            continue
        if isinstance(parsed, dict):
            objects[row] = parsed
        else:
            failures.append(SinkFailure(row, NOT_AN_OBJECT, retryable=False))
    return objects, failures
