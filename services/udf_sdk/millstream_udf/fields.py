"""Large fields of protobuf messages, without protobuf: joined, instead of copied into a message, and taken as they are,
instead of copied into a message and out of it.

protobuf's own encoder doubles its buffer as it writes: half a megabyte of columns takes forty times as long as one join
of the same bytes. Its decoder copies each byte once, and a field that is read is copied once more; for a message
in a message that is read again it does the same again. The result is the same, except for the order of the fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

Data = bytes | memoryview
"""The bytes of a message."""
Large = dict[int, memoryview]
"""Contents of large fields, by number."""

LARGE_BYTES = 4 * 1024
"""protobuf decodes smaller messages in less time."""
_FIELDS_MAX = 64
"""More fields than this are left to protobuf, which takes less time for each."""

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
"""Bytes of a field, by how it is encoded."""
_VARINT_BYTES_MAX = 10
_HEAD_BYTES_MAX = 5
"""Of a tag, and of a length."""
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
"""A small frame has a dozen of these numbers."""


def field(number: int, *parts: bytes) -> list[bytes]:
    """The parts of a field, header first; none if it is empty, because empty fields are not written."""
    size = sum(map(len, parts))
    if not size:
        return []
    return [_header(number, size), *parts]


def without_large(message: Data, numbers: Collection[int], path: Sequence[int] = ()) -> tuple[bytes, Large]:
    """A message without its large fields of these numbers, and the contents of those fields, as parts of `message`.
    `path`: numbers of the fields that lead to the message that has them; each has to be the only one of its message.

    A message is left as it is where only protobuf knows what it means: if such a field occurs twice, and if the bytes
    are not a message.
    """
    if len(message) >= LARGE_BYTES:
        large: Large = {}
        try:
            rest = _without_large(memoryview(message), numbers, path, large)
        except _UndecidedError:
            pass
        else:
            return b"".join(rest), large
    return bytes(message), {}


def repeated(message: Data, number: int) -> list[memoryview] | None:
    """The contents of a repeated field, as parts of a message that has no other. None if that is for protobuf to
    decide."""
    if len(message) < LARGE_BYTES:
        return None
    view = memoryview(message)
    try:
        found = list(_fields(view))
    except _UndecidedError:
        return None
    if any(one.number != number or one.kind != _LENGTH_DELIMITED for one in found):
        return None
    return [view[one.content : one.end] for one in found]


def content(number: int, large: Large, rest: bytes) -> bytes:
    """A copy of the contents of a field that `without_large` may have taken, which `large` then forgets, because a
    message lives as long as a part of it. `rest` if the field was not taken."""
    taken = large.pop(number, None)
    return rest if taken is None else bytes(taken)


class _UndecidedError(ValueError):
    """Only protobuf knows what the bytes mean."""


class _Field(NamedTuple):
    number: int
    kind: int
    """How it is encoded."""
    begin: int
    content: int
    """Where its contents begin."""
    end: int


def _without_large(message: memoryview, numbers: Collection[int], path: Sequence[int], large: Large) -> list[Data]:
    """The parts of the rest. The large fields are added to `large`."""
    rest: list[Data] = []
    seen: set[int] = set()
    copied = 0
    for number, kind, begin, start, end in _fields(message):
        if path:
            if number != path[0] or kind != _LENGTH_DELIMITED or seen:
                raise _UndecidedError
            inner = _without_large(message[start:end], numbers, path[1:], large)
            rest += (_header(number, sum(map(len, inner))), *inner)
            copied = end
        elif number in numbers and kind == _LENGTH_DELIMITED:
            if number in seen:
                raise _UndecidedError
            if end - start >= LARGE_BYTES:
                rest.append(message[copied:begin])
                copied = end
                large[number] = message[start:end]
        seen.add(number)
    rest.append(message[copied:])
    return rest


def _fields(message: memoryview) -> Iterator[_Field]:
    """The fields of a message. Raises `_UndecidedError` for bytes that are none, and for very many fields."""
    at, size = 0, len(message)
    for _ in range(_FIELDS_MAX):
        if at == size:
            return
        begin = at
        tag, at = read_varint(message, at, _HEAD_BYTES_MAX)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = read_varint(message, at, _HEAD_BYTES_MAX)
            end = at + length
        elif kind == _VARINT:
            _, end = read_varint(message, at)
        elif kind in FIXED_BYTES:
            end = at + FIXED_BYTES[kind]
        else:
            raise _UndecidedError
        if end > size:
            raise _UndecidedError
        yield _Field(number, kind, begin, at, end)
        at = end
    if at < size:
        raise _UndecidedError


def read_varint(message: memoryview, at: int, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends. Raises `ValueError` if it has no end."""
    # Nearly all have one byte.
    if at < len(message) and (first := message[at]) < 0x80:
        return first, at + 1
    number = 0
    for place, byte in enumerate(message[at : at + bytes_max]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise _UndecidedError("a number has no last byte")


def _header(number: int, size: int) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
