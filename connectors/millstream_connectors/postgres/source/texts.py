"""Converts the text of a value, as PostgreSQL writes it, to JSON, by the value's type. Pure.

The result is that of `row_to_json`, as far as the text determines it: numbers with all their digits, times as in ISO
8601, arrays, JSON and booleans in their JSON form, and everything else as text. Both changes and the snapshot before
them use this module, so the same value always has the same form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import TypeAlias

ToJson: TypeAlias = Callable[[bytes], bytes]

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, JSON, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 25, 26, 114, 700, 701
TIMESTAMP, TIMESTAMPTZ, NUMERIC, JSONB = 1114, 1184, 1700, 3802
VECTORS: Mapping[int, int] = {22: INT2, 30: OID}
"""Arrays that the server writes with spaces, each with its element type."""

_TO_BE_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_BOUNDS = re.compile(rb"(\[[-+0-9:]+\])+=")
_OFFSET = re.compile(rb"([+-]\d\d)( BC)?$")
_ELEMENTS = {
    delimiter: re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}%b"]+)' % delimiter, re.DOTALL) for delimiter in (b",", b";")
}
"""An element of an array, by the character between two."""
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class KnownType:
    """What the server's catalog says about a type."""

    base: int = 0
    """Base type of a domain."""
    element: int = 0
    """Element type of an array."""
    delimiter: bytes = b","
    """The character between two elements."""


def quoted(text: bytes) -> bytes:
    """A text as JSON."""
    if _TO_BE_ESCAPED.search(text) is None:
        return b'"' + text + b'"'
    return encode_basestring(text.decode("utf-8", "backslashreplace")).encode()


def _boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def _number(text: bytes) -> bytes:
    if text == b"-0":
        # As a whole number it would lose its sign.
        return b"-0.0"
    # NaN and the infinities.
    return b'"' + text + b'"' if text[-1:].isalpha() else text


def _time(text: bytes) -> bytes:
    return b'"' + _OFFSET.sub(rb"\1:00\2", text.replace(b" ", b"T", 1)) + b'"'


def _timestamp(text: bytes) -> bytes:
    return b'"' + text.replace(b" ", b"T", 1) + b'"'


_KNOWN: Mapping[int, ToJson] = {
    **dict.fromkeys((INT2, INT4, INT8, OID, JSON, JSONB), bytes),
    **dict.fromkeys((FLOAT4, FLOAT8, NUMERIC), _number),
    BOOL: _boolean,
    TIMESTAMP: _timestamp,
    TIMESTAMPTZ: _time,
}


def is_plain(type_oid: int) -> bool:
    """Whether the conversion of a type needs nothing from the server's catalog."""
    return type_oid in _KNOWN or type_oid in VECTORS or type_oid in (TEXT, BYTEA)


def to_json(type_oid: int, user_types: Mapping[int, KnownType]) -> ToJson:
    """The conversion of a type's values to JSON. `user_types`: domains and arrays."""
    for _ in range(8):
        found = user_types.get(type_oid)
        if found is None or not found.base:
            break
        # The base of a domain may itself be a domain.
        type_oid = found.base
    if type_oid in VECTORS:
        return _vector_of(to_json(VECTORS[type_oid], user_types))
    found = user_types.get(type_oid)
    if found is not None and found.element not in (0, type_oid):
        return _array_of(to_json(found.element, user_types), found.delimiter)
    return _KNOWN.get(type_oid, quoted)


def _vector_of(of_element: ToJson) -> ToJson:
    return lambda text: b"[" + b",".join(map(of_element, text.split())) + b"]"


def _array_of(of_element: ToJson, delimiter: bytes) -> ToJson:
    element = _ELEMENTS.get(delimiter)
    if element is None:
        return quoted

    def read(text: bytes) -> bytes:
        bounds = _BOUNDS.match(text)
        parts: list[bytes] = []
        at = bounds.end() if bounds is not None else 0
        while at < len(text):
            letter = text[at : at + 1]
            if letter in b"{}" or letter == delimiter:
                parts.append(b"[" if letter == b"{" else b"]" if letter == b"}" else b",")
                at += 1
                continue
            found = element.match(text, at)
            if found is None:
                return quoted(text)
            at = found.end()
            if found[1] is not None:
                parts.append(of_element(_ESCAPED.sub(rb"\1", found[1])))
            else:
                parts.append(b"null" if found[2].upper() == b"NULL" else of_element(found[2]))
        return b"".join(parts)

    return read
