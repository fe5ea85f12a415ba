"""The key of a group as bytes: the parts of a list, joined so that different lists have different bytes. Pure.

    [] ─► nothing     ["a", "b"] ─► a 1F b     [""] ─► FF 00     inside a part: 1F ─► FF 01, FF ─► FF FF

Windows, hand-overs and checkpoints name keys by these bytes, in memory and in the log. Before format 4, a log joined
the parts by 0x1F and did nothing else, so [] and [""] had one name there, and ["a\\x1fb"] and ["a", "b"]. Parts are
UTF-8, which has no byte FF, so every name of such a log is also one of today's, of one of these lists.

`batches` does the same for columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from millstream.frame import KEY_SEPARATOR

ESCAPE = b"\xff"
ESCAPED_ESCAPE = b"\xff\xff"
ESCAPED_SEPARATOR = b"\xff\x01"
ONE_EMPTY_PART = b"\xff\x00"

_ESCAPED = re.compile(rb"\xff([\x01\xff])")
_MEANING = {b"\x01": KEY_SEPARATOR, b"\xff": ESCAPE}


def join_key(parts: Sequence[bytes]) -> bytes:
    """The bytes of a key."""
    if len(parts) == 1 and not parts[0]:
        return ONE_EMPTY_PART
    return KEY_SEPARATOR.join(
        part.replace(ESCAPE, ESCAPED_ESCAPE).replace(KEY_SEPARATOR, ESCAPED_SEPARATOR) for part in parts
    )


def key_parts(key: bytes) -> tuple[bytes, ...]:
    """Inverse of `join_key`."""
    if not key:
        return ()
    if key == ONE_EMPTY_PART:
        return (b"",)
    parts = key.split(KEY_SEPARATOR)
    return tuple(_ESCAPED.sub(lambda found: _MEANING[found[1]], part) if ESCAPE in part else part for part in parts)


def key_texts(key: bytes) -> list[str]:
    """The parts for people."""
    return [part.decode(errors="backslashreplace") for part in key_parts(key)]
