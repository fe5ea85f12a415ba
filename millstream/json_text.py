"""Checks whether texts are JSON, and reads a few of their members, without building the other values. Pure.

    values ─► all_json ──► taken as they are
                 └──► otherwise a slower parser says which is wrong, and why

Everything that these functions accept is JSON in UTF-8. What they reject may still be JSON, such as half a surrogate
pair, or thousands of brackets. Above it: sources and sinks that pass JSON on. Below it: msgspec, imported when it is
first needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


def all_json(values: Sequence[bytes]) -> bool:
    """Whether each text is certainly one JSON value."""
    decode, failures = _raw()
    try:
        deque(map(decode, values), maxlen=0)
        # The parser does not check the UTF-8 inside strings. Complete values begin and end in ASCII, so an error cannot
        # disappear when they are joined.
        b"".join(values).decode()
    except failures:
        return False
    return True


def elements_of(array: bytes) -> list[bytes] | None:
    """The elements of a JSON array, each as it is written; None if the text may not be a JSON array."""
    from msgspec import Raw
    from msgspec.json import decode

    try:
        elements = decode(array, type=list[Raw])
        array.decode()
    except _raw()[1]:
        return None
    return list(map(bytes, elements))


def members_reader(members: Mapping[str, Any]) -> Callable[[Sequence[bytes]], list[tuple[Any, ...]] | None]:
    """A function that reads these members, of these types, from JSON objects: it returns a tuple for each object, with
    None for a member that is null or missing. If one value may not be a JSON object, or has a member of another type,
    it returns None instead of the list."""
    from msgspec import defstruct
    from msgspec.json import Decoder
    from msgspec.structs import astuple

    fields = [(f"m{number}", kind | None, None) for number, kind in enumerate(members.values())]
    rename = {field: name for (field, _, _), name in zip(fields, members, strict=True)}
    decode = Decoder(defstruct("Members", fields, rename=rename)).decode
    failures = _raw()[1]

    def read(values: Sequence[bytes]) -> list[tuple[Any, ...]] | None:
        try:
            found = list(map(astuple, map(decode, values)))
            b"".join(values).decode()
        except failures:
            return None
        return found

    return read


@cache
def _raw() -> tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]:
    """A parser that builds no values, and the errors that parsers raise."""
    from msgspec import DecodeError, Raw
    from msgspec.json import Decoder

    return Decoder(Raw).decode, (DecodeError, UnicodeDecodeError, RecursionError)
