"""Records as SQS messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from millstream_connectors.shared.carried import (
    converted,
    given_headers,
    keys_text,
    message_id,
    own_headers,
)
from millstream_connectors.shared.converting import RefusedRecordError
from millstream_writer.sink import SinkFailure, SinkFrame

BYTES_MAX = 256 * 1024
"""Maximum bytes of the messages of a request, and so of one message, that every queue accepts."""
TOO_LARGE = "record is too large for SQS"
NOT_TEXT = "value is not text that SQS accepts"
_ATTRIBUTES_MAX = 10
_ID_CHARACTERS_MAX = 128
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r"[!-~]+")


class Put(NamedTuple):
    """The target's form of a record."""

    row: int
    entry: Mapping[str, Any]
    size: int


def convert(item: SinkFrame, run: str, lane: str, *, fifo: bool) -> tuple[Sequence[Put], list[SinkFailure]]:
    """Converts a frame's records, and returns failures for those that SQS does not accept. `lane`: the message group of
    records without keys."""

    def made(
        row: int, value: bytes, keys: Sequence[bytes], time_us: int, headers: Mapping[str, bytes], record_id: str
    ) -> Put:
        body = _text(value)
        if body is None:
            raise RefusedRecordError(NOT_TEXT, "it is empty, not UTF-8, or has control characters")
        name = message_id(run, record_id, _ID_CHARACTERS_MAX)
        attributes = _attributes(headers, own_headers(keys, time_us, name))
        size = len(value) + sum(
            len(key) + len(part["DataType"]) + len(part.get("BinaryValue") or part["StringValue"].encode())
            for key, part in attributes.items()
        )
        if size > BYTES_MAX:
            raise RefusedRecordError(TOO_LARGE, f"it has {size} bytes with its attributes; the limit is {BYTES_MAX}")
        entry: dict[str, Any] = {"Id": str(row), "MessageBody": body, "MessageAttributes": attributes}
        if fifo:
            entry["MessageDeduplicationId"] = _as_id(name)
            entry["MessageGroupId"] = _as_id(keys_text(keys).replace(" ", "") if keys else lane)
        return Put(row, entry, size)

    return converted(item, made)


def _attributes(given: Mapping[str, bytes], own: Mapping[str, str]) -> dict[str, Any]:
    """Raises `ValueError`."""
    attributes: dict[str, Any] = {}
    for name, value in given_headers(given):
        if _ATTRIBUTE.fullmatch(name) is None:
            raise ValueError(f"{name[:80]!r} is not a valid attribute name: letters, digits, `_`, `-` and `.`")
        if not value:
            raise ValueError(f"the value of {name!r} is empty")
        text = _text(value)
        if text is None:
            attributes[name] = {"DataType": "Binary", "BinaryValue": value}
        else:
            attributes[name] = {"DataType": "String", "StringValue": text}
    attributes |= {name: {"DataType": "String", "StringValue": text} for name, text in own.items()}
    if len(attributes) > _ATTRIBUTES_MAX:
        raise ValueError(
            f"it has {len(attributes)} headers, counting those of the sink; a message has at most {_ATTRIBUTES_MAX}"
        )
    return attributes


def _text(value: bytes) -> str | None:
    """The text that the bytes are; None if they are none that SQS accepts."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if text and _FORBIDDEN.search(text) is None else None


def _as_id(text: str) -> str:
    """The text itself if it is valid; otherwise a digest."""
    if len(text) <= _ID_CHARACTERS_MAX and _ID.fullmatch(text) is not None:
        return text
    return blake2b(text.encode(), digest_size=32).hexdigest()
