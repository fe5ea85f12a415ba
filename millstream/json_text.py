"""Checks whether texts are JSON, and reads a few of their members, without building the other values. Pure.

    values ─► all_json ──► taken as they are
                 └──► otherwise a slower parser says which is wrong, and why

Everything that these functions accept is JSON in UTF-8. What they reject may still be JSON, such as half a surrogate
pair, or thousands of brackets. Above it: sources and sinks that pass JSON on. Below it: msgspec, imported when it is
first needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msgspec import Struct


def all_json(values: Sequence[bytes]) -> bool:
    """Whether each text is certainly one JSON value."""
    try:
        deque(map(_raw(), values), maxlen=0)
        # The parser does not check the UTF-8 inside strings. Complete values begin and end in ASCII, so an error cannot
        # disappear when they are joined.
        b"".join(values).decode()
    except failures():
        return False
    return True


def lines_of(text: bytes) -> list[bytes] | None:
    """The lines of a text, each of which is one JSON value; None if it may have others. Empty lines and spaces around a
    value are such others."""
    try:
        found = _raw_lines()(text)
        if not text.isascii():
            text.decode()
    except failures():
        return None
    # The parser takes values that share a line, and values of several lines.
    values = list(map(bytes, found))
    joined = b"\n".join(values)
    if len(joined) != len(text) - text.endswith(b"\n") or not text.startswith(joined):
        return None
    return values if joined.count(b"\n") == len(values) - 1 else None


def elements_of(array: bytes) -> list[bytes] | None:
    """The elements of a JSON array, each as it is written; None if the text may not be a JSON array."""
    from msgspec import Raw
    from msgspec.json import decode

    try:
        elements = decode(array, type=list[Raw])
        array.decode()
    except failures():
        return None
    return list(map(bytes, elements))


def members_reader(
    members: Mapping[str, Any], number: Callable[[str], Any] | None = None
) -> Callable[[Sequence[bytes]], list[tuple[Any, ...]] | None]:
    """A function that reads these members, of these types, from JSON objects: it returns a tuple for each object, with
    None for a member that is null or missing. If one value may not be a JSON object, or has a member of another type,
    it returns None instead of the list. `number` makes the value of a member of any type from the text of a number with
    a fraction or exponent."""
    from msgspec.structs import astuple

    read = structs_reader(members, number=number)

    def tuples(values: Sequence[bytes]) -> list[tuple[Any, ...]] | None:
        found = read(values)
        return None if found is None else list(map(astuple, found))

    return tuples


def structs_reader(
    members: Mapping[str, Any],
    required: Container[str] = (),
    number: Callable[[str], Any] | None = None,
    *,
    whole: bool = False,
) -> Callable[[Sequence[bytes]], list[Struct] | None]:
    """The same with a struct for each object, whose fields are the members in their order: many tuples that are kept
    cost more, because the garbage collector looks at them. Required members are never null or missing, and with `whole`
    the others are not missing either; if one of them is, the function returns None."""
    from msgspec import defstruct
    from msgspec.json import Decoder

    names = {name: f"m{place}" for place, name in enumerate(members)}
    fields: list[Any] = []
    for name, kind in members.items():
        if name in required:
            fields.append((names[name], kind))
        else:
            fields.append((names[name], kind | None) if whole else (names[name], kind | None, None))
    rename = {field: name for name, field in names.items()}
    kind = defstruct("Members", fields, rename=rename, kw_only=True, gc=False)
    decode = Decoder(kind, float_hook=number).decode

    def read(values: Sequence[bytes]) -> list[Struct] | None:
        # Joining the values as lines costs more than these calls: two wrong values can make one right line, so it would
        # have to be checked.
        try:
            found: list[Struct] = list(map(decode, values))
            if not all(map(bytes.isascii, values)):
                b"".join(values).decode()
        except failures():
            return None
        return found

    return read


@cache
def failures() -> tuple[type[Exception], ...]:
    """The errors that msgspec's parsers raise for texts that they do not accept."""
    from msgspec import DecodeError

    return DecodeError, ValueError, RecursionError


@cache
def _raw() -> Callable[[bytes], Any]:
    """A parser that builds no values."""
    from msgspec import Raw
    from msgspec.json import Decoder

    return Decoder(Raw).decode


@cache
def _raw_lines() -> Callable[[bytes], list[Any]]:
    """The same for a text with several values."""
    from msgspec import Raw
    from msgspec.json import Decoder

    return Decoder(Raw).decode_lines
