"""Values that a target wants as JSON: why one is refused, and one in a line of its own. Pure."""

from __future__ import annotations

NOT_JSON = "value is not JSON"
NOT_AN_OBJECT = "value is not a JSON object"

_SPACES = bytes.maketrans(b"\r\n", b"  ")


def one_line(json_value: bytes) -> bytes:
    """The same JSON without line breaks.

    They can only occur between tokens, where a space has the same meaning. Encoding again would change numbers.
    """
    return json_value.translate(_SPACES)
