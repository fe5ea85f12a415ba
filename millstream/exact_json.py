"""Parses the JSON values of records, and writes them, with all digits of their numbers. Pure.

    text ─► parse, parse_all ─► int, Decimal, str, bool, None, list, dict ─► text_of
                                 └─► double_of, for a target that holds 64-bit floats

A parser that builds floats changes 1234567890123456789.12 to 1234567890123456800.0 without a message. So a number with
a fraction or an exponent is a `Decimal` here. Only `double_of` turns it into a float, and refuses one that would lose
digits. `tools/style.py` makes this the only place in which values of records are parsed.

Above it: sources, sinks and formats that read members of a JSON value. Below it: msgspec, imported when it is first
needed, and Python's parser, which accepts more and explains what is wrong.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from millstream.extract import shown
from millstream.json_parser import check_depth
from millstream.json_text import failures
from millstream.limits import NUMBER_EXPONENT_MAX

_SPACE = " \t\n\r"
_DOUBLE_DIGITS = 17
"""Significant digits that distinguish every double. Programs write no more of them."""
_DOUBLE_MIN = sys.float_info.min
"""The smallest double with this precision."""


def parse(value: bytes, *, constants: bool = False) -> Any:
    """The value of a JSON text in UTF-8. `constants`: whether NaN and infinities are accepted, which are not JSON.
    Raises `ValueError` for anything else, and for a number that is too large to be calculated with."""
    check_depth(value)
    try:
        return _fast()(value)
    except failures():
        # It may be one of the texts that only the other parser accepts, or explains.
        return _explained(value, _WITH_CONSTANTS if constants else _DECODER)


def _explained(value: bytes, decoder: json.JSONDecoder) -> Any:
    text = value.decode().strip(_SPACE)
    try:
        parsed, end = decoder.raw_decode(text)
    except RecursionError:
        # The stack is nearly full.
        raise ValueError("it is nested too deep") from None
    if end != len(text):
        raise ValueError(f"unexpected text after the JSON, at character {end}")
    return parsed


def parse_all(values: Sequence[bytes]) -> list[Any] | None:
    """The same for many values, in less time; None if one of them may not be JSON, or is nested too deep.

    Values that this parser accepts have the same meaning in the other one. Only the other one handles unpaired
    surrogates, and whole numbers of hundreds of digits.
    """
    try:
        deque(map(check_depth, values), maxlen=0)
        return list(map(_fast(), values))
    except failures():
        return None


def text_of(value: Any) -> str:
    """The JSON text of a value that was parsed here, without spaces. A number keeps its digits."""
    try:
        return _encode()(value).decode()
    except (UnicodeEncodeError, OverflowError):
        # The encoder does not write unpaired surrogates.
        return _written(value)


def double_of(number: int | Decimal) -> float:
    """The double that a number means. Raises `ValueError` for one that has more digits than a double holds.

    1. The number is how the double is written, in as many digits as the number has.
    2. It is a fraction of at most 17 digits, as programs write doubles: the nearest one is meant.
    """
    try:
        made = float(number)
    except OverflowError:
        made = math.inf
    if math.isinf(made):
        raise ValueError(f"{shown(number)} is not within the range of a 64-bit float")
    if Decimal(repr(made)) == number or made == number:
        return made
    exact = Decimal(number)
    digits = len(exact.as_tuple().digits)
    if digits and Decimal(format(made, f".{digits - 1}e")) == number:
        return made
    if digits <= _DOUBLE_DIGITS and abs(made) >= _DOUBLE_MIN and exact != exact.to_integral_value():
        return made
    raise ValueError(f"{shown(number)} has more digits than a 64-bit float holds")


def number_of(text: str) -> Decimal:
    """The number of a text that has a fraction or an exponent. Raises `ValueError` for one that is too large to be
    calculated with."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = None
    # Without an exponent, a number is not larger than its text.
    if number is None or (("e" in text or "E" in text) and abs(number.adjusted()) > NUMBER_EXPONENT_MAX):
        raise ValueError(f"the exponent of {text[:60]} is out of range")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=number_of, parse_constant=_no_constant)
_WITH_CONSTANTS = json.JSONDecoder(parse_float=number_of, parse_constant=Decimal)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(name)}:{_written(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


@cache
def _fast() -> Callable[[bytes], Any]:
    from msgspec.json import Decoder

    return Decoder(float_hook=number_of).decode


@cache
def _encode() -> Callable[[Any], bytes]:
    from msgspec.json import Encoder

    return Encoder(decimal_format="number").encode
