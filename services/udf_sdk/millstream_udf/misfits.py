"""Values that do not fit: an input its function's type, described by the place in it and what is there; an output what
can be sent. Pure.

Above it: everything that decodes or encodes values. Below it: nothing. Quoted parts of values are short and escaped,
and omitted if the pipeline hides values in messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

MISFIT_CODE = 3005
"""Code in Millstream's catalogue of errors: a record does not fit the type that its function accepts."""
VALUES_VARIABLE = "MILLSTREAM_UDF_VALUES"
"""Environment variable: `hidden` if messages must not show contents of records."""
EXCERPT_CHARACTERS = 80

Path = tuple[str | int, ...]
"""Names of fields and indexes, from the outermost to the innermost."""


class Misfit(ValueError):
    """A value that does not fit its type; it would not fit at another attempt either."""

    def __init__(self, what: str, path: Path = (), owner: str = "") -> None:
        """`what` begins with a verb: "is ..."."""
        super().__init__(what)
        self.what = what
        self.path = path
        self.owner = owner
        """The type that it does not fit, for messages."""

    def below(self, step: str | int) -> Misfit:
        """The same misfit, relative to the enclosing value."""
        return Misfit(self.what, (step, *self.path), self.owner)

    def of(self, owner: str) -> Misfit:
        """The same misfit, of a value that has to be an `owner`."""
        return Misfit(self.what, self.path, owner)

    def __str__(self) -> str:
        where = f"field `{path_text(self.path)}`" if self.path else "it"
        return f"the value does not fit {self.owner}: {where} {self.what}" if self.owner else f"{where} {self.what}"


class BadOutput(TypeError):
    """A function returned a value that cannot be sent. This package raises it, so its traceback is not shown."""


def path_text(path: Path) -> str:
    """The text of a path, such as `lines[2].price`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."


def expected(what: str, value: Any) -> Misfit:
    """The misfit of a JSON value of a kind other than the required one."""
    return Misfit(f"is {shown(value)}, where {what} is expected")


def refused(why: str, value: Any) -> Misfit:
    """The same as `expected`, with the text of a decoding package."""
    return Misfit(f"is {shown(value)}: {why}")


def missing(name: str, present: Sequence[str]) -> Misfit:
    """The misfit of a missing field without a default."""
    there = f"; the value has {', '.join(shown(name) for name in present[:8])}" if present else ""
    return Misfit(f"is missing{there}{', ...' if len(present) > 8 else ''}").below(name)


def shown(value: Any) -> str:
    """A JSON value, short and on one line."""
    if hidden():
        return f"{_kind_of(value)} (not shown)"
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = ascii(value)
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}..."


def shown_bytes(value: bytes, at: int = 0) -> str:
    """Bytes around a place, escaped, as text if they are text."""
    if hidden():
        return f"{len(value):,} bytes (not shown)"
    if not value:
        return "empty"
    begin = max(0, at - EXCERPT_CHARACTERS // 2)
    part = value[begin : begin + EXCERPT_CHARACTERS]
    try:
        text = ascii(part.decode())
    except UnicodeDecodeError:
        text = repr(part)
    before, after = "..." if begin else "", "..." if begin + len(part) < len(value) else ""
    return f"{before}{text}{after}"


def hidden() -> bool:
    """Whether messages must not show contents of records."""
    return os.environ.get(VALUES_VARIABLE) == "hidden"


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return f"a text of {len(value)} characters"
        case list() | tuple():
            return f"an array of {len(value)}"
        case dict():
            return f"an object of {len(value)} fields"
    return f"a {type(value).__name__}"
