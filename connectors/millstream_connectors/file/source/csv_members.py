"""From a field of a CSV row to a member of a JSON object, as text. Pure.

One function for each column type of a pipeline file. An empty field of a column that is not a string becomes null; a
field that does not have its type raises `ValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from json.encoder import encode_basestring

from millstream.extract import RFC3339, shown

Encoder = Callable[[str], str]

_BOOLEANS = {"true": "true", "false": "false", "t": "true", "f": "false", "1": "true", "0": "false"}


def int_member(text: str) -> str:
    """A whole number of any size."""
    if not text:
        return "null"
    try:
        if "_" not in text:
            return str(int(text))
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is not a whole number")


def float_member(text: str) -> str:
    """A finite number, as Python writes it."""
    if not text:
        return "null"
    try:
        number = float(text)
        if math.isfinite(number) and "_" not in text:
            return repr(number)
    except ValueError:
        pass
    raise ValueError(f"{shown(text)} is not a number")


def _bool_member(text: str) -> str:
    if not text:
        return "null"
    member = _BOOLEANS.get(text.lower())
    if member is None:
        raise ValueError(f"{shown(text)} is not true or false")
    return member


def _timestamp_member(text: str) -> str:
    if not text:
        return "null"
    RFC3339(text)
    return encode_basestring(text)


ENCODERS: dict[str, Encoder] = {
    "string": encode_basestring,
    "int": int_member,
    "float": float_member,
    "bool": _bool_member,
    "timestamp": _timestamp_member,
}
"""The functions, by the name of the type."""
