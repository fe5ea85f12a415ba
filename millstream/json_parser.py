"""Builds the values of JSON texts that are not values of records: answers of servers, settings, files. Pure.

Python's own parser raises `RecursionError` for a text that is nested more deeply than the stack allows. Few callers
expect it, how deep that is depends on the caller, and code that walks through a value of this depth fails after them.
So every text has the same limit, and everything that is wrong with one is a `ValueError`. Values of records, whose
numbers keep their digits, have the same limit in `exact_json`.

Above it: everything that reads JSON. Below it: Python's parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from millstream.limits import JSON_NESTED_MAX

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A string; if it has no end, the rest of the text."""
_OTHERS = re.compile(r"[^][}{]+")
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_json(
    text: str | bytes | bytearray | memoryview,
    *,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text, in UTF-8 if it is bytes. NaN and infinities are accepted, which are not JSON. Raises
    `ValueError`, also for a text that is nested more than `JSON_NESTED_MAX` levels deep."""
    if not isinstance(text, str):
        text = bytes(text).decode()
    check_depth(text)
    try:
        return json.loads(text, object_pairs_hook=object_pairs_hook)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def check_depth(text: str | bytes) -> None:
    """Raises `ValueError` for a JSON text that is nested more than `JSON_NESTED_MAX` levels deep."""
    # Few texts have that many brackets at all.
    found = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if found > JSON_NESTED_MAX:
        # Brackets and quotes are ASCII, which no other character of UTF-8 has a byte of.
        known = text if isinstance(text, str) else text.decode("latin-1")
        if _depth(known) > JSON_NESTED_MAX:
            raise ValueError(f"it is nested more than {JSON_NESTED_MAX} levels deep")


def _depth(text: str) -> int:
    brackets = _OTHERS.sub("", _STRING.sub("", text))
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
