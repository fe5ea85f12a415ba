"""The first request of Pulsar's protocol, and its answer. Pure.

pulsar-client does not report why a connection is refused: it tries until its time is over. So this request is made
before it, without the client. The two messages are few fields of Protocol Buffers; the client has no classes for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream_connectors.pulsar.credentials import Credentials

ANSWER_BYTES_MAX = 64 * 1024
_TYPE, _CONNECT, _CONNECTED, _ERROR = 1, 2, 3, 14
"""Fields of a command. A command of a type has its contents in the field of the same number."""
_VERSION, _AUTH_DATA, _PROTOCOL, _AUTH_METHOD = 1, 3, 4, 5
_CODE, _TEXT = 2, 3
_PROTOCOL_VERSION = 19
_REFUSALS = (3, 4)
"""Errors of authentication and of authorization."""
_VARINT, _BYTES = 0, 2


class Refusal(NamedTuple):
    """Why a server does not accept a connection."""

    text: str
    of_user: bool
    """Whether it is because of who connects."""


def connect_frame(who: Credentials | None) -> bytes:
    """The request, as it is sent."""
    fields = _field(_VERSION, b"millstream") + _number(_PROTOCOL, _PROTOCOL_VERSION)
    if who is not None:
        fields += _field(_AUTH_METHOD, who.method.encode()) + _field(_AUTH_DATA, who.data.encode())
    command = _number(_TYPE, _CONNECT) + _field(_CONNECT, fields)
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def answer_size(head: bytes) -> int:
    """How many bytes of an answer follow its first four. Raises `ValueError` if another program has answered."""
    size = int.from_bytes(head, "big")
    if len(head) < 4 or not 4 < size <= ANSWER_BYTES_MAX:
        raise ValueError("its answer is not one of Pulsar")
    return size


def refusal(rest: bytes) -> Refusal | None:
    """Why the server refuses, by the answer without its first four bytes; None if it accepts. Raises `ValueError`."""
    command = dict(_fields(rest[4:]))
    kind = command.get(_TYPE)
    if kind == _CONNECTED:
        return None
    error = command.get(_ERROR)
    if kind != _ERROR or not isinstance(error, bytes):
        raise ValueError("its answer is not one of Pulsar")
    fields = dict(_fields(error))
    text = fields.get(_TEXT, b"")
    return Refusal(text.decode(errors="replace") if isinstance(text, bytes) else "", fields.get(_CODE) in _REFUSALS)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES and at + value <= len(data):
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError("its answer is not one of Pulsar")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise ValueError("its answer is not one of Pulsar")


def _field(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _encoded(number << 3 | _VARINT) + _encoded(value)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
