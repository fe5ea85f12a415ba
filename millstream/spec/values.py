"""The scalar types of the pipeline file, from which models are built, with their rules and their base class.

Owns the written forms of durations, quantities and names. Above it: the models. It knows nothing of pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from millstream import codes
from millstream.record import SOURCE_INPUT, WINDOW_INPUT
from millstream.spec.explained import SpecModel
from millstream.spec.model import (
    NONE_GIVEN,
    SPEC_PROBLEM,
    Needed,
    ShapeProblem,
    exactly_one,
    field,
    listed,
    problem,
)
from millstream.spec.rules import After, Before, Chosen, NotEmpty, Schema, Strict, Tag

NAME_LENGTH_MAX = 63
"""Maximum length of a vertex, edge or pipeline name, in characters (a DNS label)."""

EDGE_NAME_LENGTH_MAX = 2 * NAME_LENGTH_MAX + len("--dead-letter")
"""Maximum length of an edge name, in characters: two vertex names and the suffix of the default name."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_DURATION_UNIT_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION_MAX_S = 10.0 * 366 * 24 * 3600
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)(B?)")
_QUANTITY_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_QUANTITY_MAX = 2**60

_DURATION_EXPECTED = 'a duration such as "100ms", "1s" or "1h30m"'
_QUANTITY_EXPECTED = 'a size such as 1048576, "512Mi", "1MiB" or "64M"'
_NAME_EXPECTED = (
    f"a DNS label: at most {NAME_LENGTH_MAX} characters a-z, 0-9 and '-', starting and ending with a letter or digit"
)
_EDGE_NAME_EXPECTED = (
    f"at most {EDGE_NAME_LENGTH_MAX} characters a-z, 0-9 and '-', starting and ending with a letter or digit"
)


def parse_duration(written: object) -> float:
    """Seconds of a Go duration ("1h30m") or of a plain number of seconds.

    Errors: a spec problem when it is neither, negative, or longer than ten years.
    """
    seconds = _duration_s(written)
    if seconds is None:
        raise problem(codes.VALUE_MALFORMED, f"{_shown(written)} is not a duration", _DURATION_EXPECTED)
    if not 0 <= seconds <= _DURATION_MAX_S:
        raise problem(codes.OUT_OF_RANGE, f"{_shown(written)} is out of range", f"{_DURATION_EXPECTED}, 0 to 10 years")
    return seconds


def _duration_s(written: object) -> float | None:
    if isinstance(written, bool):
        return None
    if isinstance(written, int | float):
        return float(written)
    if not isinstance(written, str):
        return None
    text = written.strip()
    if text == "0":
        return 0.0
    sign = -1.0 if text.startswith("-") else 1.0
    text = text.removeprefix("-").removeprefix("+")
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sign * sum(float(number) * _DURATION_UNIT_S[unit] for number, unit in parts)


def as_duration(seconds: float) -> str:
    """The inverse of `parse_duration`, as short as possible: `1h30m`, `250ms`."""
    left = round(seconds * 1e9)
    text = ""
    for unit, size in (("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_quantity(written: object) -> int:
    """Bytes of a Kubernetes quantity ("512Mi", "64M"), the same with a B ("1MiB"), or an integer.

    Errors: a spec problem when it is neither, not a whole number of bytes, or beyond 1 EiB.
    """
    size = _quantity_bytes(written)
    if size is None:
        raise problem(codes.VALUE_MALFORMED, f"{_shown(written)} is not a size in bytes", _QUANTITY_EXPECTED)
    if not 0 <= size <= _QUANTITY_MAX:
        raise problem(codes.OUT_OF_RANGE, f"{_shown(written)} is out of range", f"{_QUANTITY_EXPECTED}, 0 to 1 EiB")
    return size


def _quantity_bytes(written: object) -> int | None:
    if isinstance(written, bool):
        return None
    if isinstance(written, int):
        return int(written)
    match = _QUANTITY.fullmatch(written.strip()) if isinstance(written, str) else None
    if match is None:
        return None
    number, prefix, binary, _ = match.groups()
    if binary and not prefix:
        return None
    size = float(number) * (1024 if binary else 1000) ** _QUANTITY_POWER[prefix]
    return int(size) if size == int(size) else None


def _shown(written: object) -> str:
    text = repr(written) if isinstance(written, str) else str(written)
    return text if len(text) <= 60 else text[:57] + "..."


def is_name(name: str) -> bool:
    """Whether a text may name a pipeline, vertex or edge (it becomes part of NATS subjects)."""
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def _checked_edge_name(name: str) -> str:
    if len(name) > EDGE_NAME_LENGTH_MAX or _NAME.fullmatch(name) is None:
        raise problem(codes.VALUE_MALFORMED, f"{_shown(name)} is not a valid edge name", _EDGE_NAME_EXPECTED)
    if name in (SOURCE_INPUT, WINDOW_INPUT):
        raise problem(codes.NOT_ALLOWED, f"the edge name {name!r} is reserved", "another name")
    return name


def text_check(is_valid: Callable[[str], object], fault: str, expected: str) -> After:
    """A rule for texts. `fault`: what is wrong with one that is not valid; follows the text in the message."""

    def checked(written: str) -> str:
        if not is_valid(written):
            raise problem(codes.VALUE_MALFORMED, f"{_shown(written)} {fault}", expected)
        return written

    return After(checked)


def range_check(is_valid: Callable[[float], bool], fault: str, expected: str) -> After:
    """A check of the size of a number."""

    def checked(number: float) -> float:
        if not is_valid(number):
            raise problem(codes.OUT_OF_RANGE, fault, expected)
        return number

    return After(checked)


def _filled(text: str) -> str:
    if not text.strip():
        raise problem(codes.FIELD_EMPTY, "the text is empty", "a text that is not empty")
    return text


_DURATION_SCHEMA = Schema({"type": ["string", "number"], "minimum": 0, "examples": ["100ms", "1s", "1h30m"]})
_QUANTITY_SCHEMA = Schema({"type": ["string", "integer"], "minimum": 0, "examples": [1048576, "512Mi", "1MiB"]})

Duration = Annotated[float, Before(parse_duration), _DURATION_SCHEMA]
"""Seconds; written as in Go ("100ms", "1h30m") or as a number of seconds."""

PositiveDuration = Annotated[
    Duration, range_check(lambda seconds: seconds > 0, "the duration must be longer than 0", _DURATION_EXPECTED)
]
"""Seconds, more than 0."""

Quantity = Annotated[
    int,
    Before(parse_quantity),
    range_check(lambda size: size > 0, "the size must be larger than 0", _QUANTITY_EXPECTED),
    _QUANTITY_SCHEMA,
]
"""Bytes, more than 0; written as a Kubernetes quantity ("512Mi"), "1MiB" or an integer."""

Count = Annotated[int, Strict(ge=0)]
"""A whole number, 0 or more."""

PositiveCount = Annotated[int, Strict(ge=1)]
"""A whole number, 1 or more."""

Share = Annotated[float, Strict(ge=0, le=1)]
"""A share from 0 to 1."""

Flag = Annotated[bool, Strict()]
"""true or false, not a value that only looks like one."""

Text = Annotated[str, After(_filled)]
"""A text that is not empty."""

Name = Annotated[
    str,
    text_check(is_name, "is not a valid name", _NAME_EXPECTED),
    Schema({"type": "string", "maxLength": NAME_LENGTH_MAX, "pattern": f"^{_NAME.pattern}$"}),
]
"""A DNS label of at most 63 characters."""


EdgeName = Annotated[
    str,
    After(_checked_edge_name),
    Schema({"type": "string", "maxLength": EDGE_NAME_LENGTH_MAX, "pattern": f"^{_NAME.pattern}$"}),
]
"""As a name, but long enough for a default name with two vertex names."""


def conflicts(*rules: tuple[object, tuple[str | int, ...], str, str]) -> Iterator[ShapeProblem]:
    """A problem for each broken rule about fields that do not fit together. A rule is whether it is broken, the place
    of the field, what is wrong, and what is expected."""
    for broken, loc, what, expected in rules:
        if broken:
            yield ShapeProblem(codes.FIELDS_CONFLICT, loc, what, expected)


def without_effect(
    given: Mapping[str, object], where: str, expected: str, *, within: tuple[str, ...] = ()
) -> Iterator[ShapeProblem]:
    """A problem for each field that has a value, not None, although it has no effect `where`. `expected` may have
    `{name}` in place of the name; `within`: the place of the fields."""
    for name, value in given.items():
        if value is not None:
            what = f"`{name}` has no effect {where}"
            yield ShapeProblem(codes.FIELDS_CONFLICT, (*within, name), what, expected.format(name=name))


def at_most_one(data: Mapping[str, Any], names: tuple[str, ...], noun: str) -> Iterator[ShapeProblem]:
    """A problem when more than one of the fields has a value."""
    given = tuple(name for name in names if data.get(name) is not None)
    if len(given) > 1:
        yield ShapeProblem(codes.FIELDS_CONFLICT, (), f"{noun} has {listed(given)} together", "at most one of them")


__all__ = [
    "EDGE_NAME_LENGTH_MAX",
    "NAME_LENGTH_MAX",
    "NONE_GIVEN",
    "SPEC_PROBLEM",
    "After",
    "Before",
    "Chosen",
    "Count",
    "Duration",
    "EdgeName",
    "Flag",
    "Name",
    "Needed",
    "NotEmpty",
    "PositiveCount",
    "PositiveDuration",
    "Quantity",
    "Schema",
    "ShapeProblem",
    "Share",
    "SpecModel",
    "Strict",
    "Tag",
    "Text",
    "as_duration",
    "at_most_one",
    "conflicts",
    "exactly_one",
    "field",
    "is_name",
    "parse_duration",
    "parse_quantity",
    "problem",
    "range_check",
    "text_check",
    "without_effect",
]
