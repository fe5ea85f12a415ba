r"""Keys of any bytes as texts, one to one. Pure.

A key of a record is text wherever users see it: in functions, queries and pages. A key that is not UTF-8 is written as
`\x` and its hexadecimal digits, as PostgreSQL writes bytes. So that no two keys have the same text, a key that begins
with `\x` itself is written in this way, too.

    b"user-1" ◄─► "user-1"      b"\x00\xc8" ◄─► "\x00c8"      b"\\x00" ◄─► "\x5c783030"

Above it: sources and sinks of systems whose keys are bytes.
"""

from __future__ import annotations

from collections.abc import Callable

KeyMapping = Callable[[bytes], bytes]
"""Converts a key of another system to the text of a record's key."""

_MARK = b"\\x"


def text_of_key(key: bytes) -> bytes:
    """The text of a key, in UTF-8."""
    if key.isascii() and not key.startswith(_MARK):
        return key
    try:
        key.decode()
    except UnicodeDecodeError:
        return _MARK + key.hex().encode()
    return _MARK + key.hex().encode() if key.startswith(_MARK) else key


def key_of_text(text: bytes) -> bytes:
    """The key that has this text. A text that no key has is its own key, as any text of another origin is."""
    if not text.startswith(_MARK):
        return text
    try:
        key = bytes.fromhex(text[len(_MARK) :].decode())
    except ValueError:
        return text
    return key if text_of_key(key) == text else text


def former_text_of_key(key: bytes) -> bytes:
    """The text that earlier versions gave a key: its hexadecimal digits if it is not UTF-8. These digits may be another
    key. Data directories that began with it keep it, because partitions depend on it."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return key.hex().encode()
    return key


def bytes_of_key(key: bytes) -> bytes:
    """A key that is decoded later stays as it is."""
    return key
