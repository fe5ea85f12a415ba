"""Confluent's wire format. Pure.

0 | schema id, 4 bytes, big-endian | value         Protobuf: 0 | id | indexes of the message | value
"""

from __future__ import annotations

HEADER_BYTES = 5
TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
"""The name of each encoding in registries."""
_INDEXES_MAX = 64
"""Maximum depth of nested messages."""


def header(schema_id: int) -> bytes:
    """The bytes before a value with this schema."""
    return b"\0" + schema_id.to_bytes(4)


def id_of(value: bytes) -> int | None:
    """Schema id of a value; None if it is not in the wire format."""
    return int.from_bytes(value[1:HEADER_BYTES]) if len(value) >= HEADER_BYTES and value[0] == 0 else None


def indexes_written(indexes: tuple[int, ...]) -> bytes:
    """The indexes of a message in a Protobuf schema: its index among the messages of the file, then among the messages
    nested in that, and so on. The first message is encoded as a single zero."""
    return b"\0" if indexes == (0,) else b"".join(map(varint, (len(indexes), *indexes)))


def indexes_read(data: bytes) -> tuple[tuple[int, ...], int]:
    """The indexes of the message, and the offset at which it begins. Raises `ValueError`."""
    count, at = _number(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise ValueError(f"it names its message by {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _number(data, at)
        indexes.append(index)
    return tuple(indexes), at


def varint(number: int) -> bytes:
    """A number that is not negative, in zigzag, as in Avro."""
    left, made = number << 1, bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    made.append(left)
    return bytes(made)


def _number(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("the indexes of its message are cut off")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            # The lowest bit is the sign.
            if number & 1:
                raise ValueError("an index of its message is negative")
            return number >> 1, at
