"""Whether texts are JSON, and what a few of their members are, without building the rest of what they say. Pure.

    values ─► all_json ──► taken as they are
                 └──► otherwise a slower parser says which is wrong, and why

What these functions take is JSON in UTF-8. What they do not take may still be: half a surrogate pair, or thousands of
brackets. Above it: sources and sinks that pass JSON on. Below it: msgspec, imported when it is first needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


def all_json(values: Sequence[bytes]) -> bool:
    """Whether each of them is one JSON value for sure."""
    decode, failures = _raw()
    try:
        deque(map(decode, values), maxlen=0)
        # The parser passes over what texts contain. Whole values begin and end in ASCII, so joining them hides nothing.
        b"".join(values).decode()
    except failures:
        return False
    return True


def elements_of(array: bytes) -> list[bytes] | None:
    """The elements of a JSON array, each as it is written; None where it may not be one."""
    from msgspec import Raw
    from msgspec.json import decode

    try:
        elements = decode(array, type=list[Raw])
        array.decode()
    except _raw()[1]:
        return None
    return list(map(bytes, elements))


def members_reader(members: Mapping[str, Any]) -> Callable[[Sequence[bytes]], list[tuple[Any, ...]] | None]:
    """Reads these members, of these types, of JSON objects: a tuple for each, with None for a member that is null or
    missing. None in place of all of them where one value may not be a JSON object, or has a member of another type."""
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
    """A parser that builds nothing, and what parsers raise."""
    from msgspec import DecodeError, Raw
    from msgspec.json import Decoder

    return Decoder(Raw).decode, (DecodeError, UnicodeDecodeError, RecursionError)
