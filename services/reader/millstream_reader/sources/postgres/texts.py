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
LAST_BUILT_IN = 9999
"""User-defined types have larger ids."""
ARRAYS: Mapping[int, int] = {
    1000: BOOL, 1001: BYTEA, 1005: INT2, 1007: INT4, 1009: TEXT, 1015: TEXT, 1016: INT8, 1021: FLOAT4, 1022: FLOAT8,
    1028: OID, 1115: TIMESTAMP, 1185: TIMESTAMPTZ, 1182: TEXT, 1231: NUMERIC, 199: JSON, 3807: JSONB, 2951: TEXT,
}  # fmt: skip
"""Array types, each with its element type."""

_TO_BE_ESCAPED = re.compile(rb'["\\\x00-\x1f]')
_BOUNDS = re.compile(rb"(\[[-+0-9:]+\])+=")
_OFFSET = re.compile(rb"[+-]\d\d$")
_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class UserType:
    """A type that is not built in."""

    base: int = 0
    """Base type of a domain."""
    element: int = 0
    """Element type of an array."""


def quoted(text: bytes) -> bytes:
    """A text as JSON."""
    if _TO_BE_ESCAPED.search(text) is None:
        return b'"' + text + b'"'
    return encode_basestring(text.decode("utf-8", "backslashreplace")).encode()


def _boolean(text: bytes) -> bytes:
    return b"true" if text == b"t" else b"false"


def _number(text: bytes) -> bytes:
    # NaN and the infinities.
    return b'"' + text + b'"' if text[-1:].isalpha() else text


def _time(text: bytes) -> bytes:
    text = text.replace(b" ", b"T", 1)
    return b'"' + text + (b':00"' if _OFFSET.search(text) else b'"')


def _timestamp(text: bytes) -> bytes:
    return b'"' + text.replace(b" ", b"T", 1) + b'"'


_KNOWN: Mapping[int, ToJson] = {
    **dict.fromkeys((INT2, INT4, INT8, OID, JSON, JSONB), bytes),
    **dict.fromkeys((FLOAT4, FLOAT8, NUMERIC), _number),
    BOOL: _boolean,
    TIMESTAMP: _timestamp,
    TIMESTAMPTZ: _time,
}


def to_json(type_oid: int, user_types: Mapping[int, UserType]) -> ToJson:
    """The conversion of a type's values to JSON. `user_types`: known types that are not built in."""
    for _ in range(8):
        found = user_types.get(type_oid)
        if found is None or not found.base:
            break
        # The base of a domain may itself be a domain.
        type_oid = found.base
    element = ARRAYS.get(type_oid) or (found.element if found is not None else 0)
    if element and element != type_oid:
        return _array_of(to_json(element, user_types))
    return _KNOWN.get(type_oid, quoted)


def _array_of(of_element: ToJson) -> ToJson:
    def read(text: bytes) -> bytes:
        bounds = _BOUNDS.match(text)
        parts: list[bytes] = []
        at = bounds.end() if bounds is not None else 0
        while at < len(text):
            letter = text[at : at + 1]
            if letter in b"{},":
                parts.append(b"[" if letter == b"{" else b"]" if letter == b"}" else b",")
                at += 1
                continue
            found = _ELEMENT.match(text, at)
            if found is None:
                return quoted(text)
            at = found.end()
            if found[1] is not None:
                parts.append(of_element(_ESCAPED.sub(rb"\1", found[1])))
            else:
                parts.append(b"null" if found[2].upper() == b"NULL" else of_element(found[2]))
        return b"".join(parts)

    return read
