"""Records as SQS messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from millstream_connectors.shared.carried import EVENT_TIME, KEYS, OURS, RECORD_ID, keys_text, message_id, time_text
from millstream_writer.sink import SinkFailure, SinkFrame

BYTES_MAX = 256 * 1024
"""Maximum bytes of the messages of a request, and so of one message, that every queue accepts."""
TOO_LARGE = "record is too large for SQS"
NOT_TEXT = "value is not text that SQS accepts"
HEADER = "header cannot be written"
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


def convert(item: SinkFrame, run: str, lane: str, *, fifo: bool) -> tuple[list[Put], list[SinkFailure]]:
    """Converts a frame's records, and returns failures for those that SQS does not accept. `lane`: the message group of
    records without keys."""
    made: list[Put] = []
    failures: list[SinkFailure] = []
    ids, frame = item.record_ids(), item.frame
    columns = zip(frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), strict=True)
    for row, (value, keys, time_us, headers) in enumerate(columns):
        try:
            body = value.decode()
        except UnicodeDecodeError:
            body = ""
        if not body or _FORBIDDEN.search(body) is not None:
            detail = "it is empty, not UTF-8, or has control characters"
            failures.append(SinkFailure(row, NOT_TEXT, retryable=False, detail=detail))
            continue
        name = message_id(run, ids[row], _ID_CHARACTERS_MAX)
        try:
            attributes = _attributes(headers, {EVENT_TIME: time_text(time_us), RECORD_ID: name}, keys)
        except ValueError as error:
            failures.append(SinkFailure(row, HEADER, retryable=False, detail=str(error)))
            continue
        size = len(value) + sum(
            len(key) + len(part["DataType"]) + len(part.get("BinaryValue") or part["StringValue"].encode())
            for key, part in attributes.items()
        )
        if size > BYTES_MAX:
            detail = f"it has {size} bytes with its attributes; the limit is {BYTES_MAX}"
            failures.append(SinkFailure(row, TOO_LARGE, retryable=False, detail=detail))
            continue
        entry: dict[str, Any] = {"Id": str(row), "MessageBody": body, "MessageAttributes": attributes}
        if fifo:
            entry["MessageDeduplicationId"] = _as_id(name)
            entry["MessageGroupId"] = _as_id(keys_text(keys).replace(" ", "") if keys else lane)
        made.append(Put(row, entry, size))
    return made, failures


def requests_of(made: Sequence[Put], count_max: int) -> list[list[Put]]:
    """Groups of messages that fit into one request each, in order."""
    requests: list[list[Put]] = []
    size = 0
    for put in made:
        if not requests or len(requests[-1]) == count_max or size + put.size > BYTES_MAX:
            requests.append([])
            size = 0
        requests[-1].append(put)
        size += put.size
    return requests


def _attributes(given: Mapping[str, bytes], ours: Mapping[str, str], keys: Sequence[bytes]) -> dict[str, Any]:
    """Raises `ValueError`."""
    attributes: dict[str, Any] = {}
    for name, value in given.items():
        if name.lower().startswith(OURS):
            continue
        if _ATTRIBUTE.fullmatch(name) is None:
            raise ValueError(f"{name[:80]!r} is not a valid attribute name: letters, digits, `_`, `-` and `.`")
        if not value:
            raise ValueError(f"the value of {name!r} is empty")
        attributes[name] = _attribute(value)
    texts = {**ours, **({KEYS: keys_text(keys)} if keys else {})}
    attributes |= {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}
    if len(attributes) > _ATTRIBUTES_MAX:
        raise ValueError(
            f"it has {len(attributes)} headers, counting those of the sink; a message has at most {_ATTRIBUTES_MAX}"
        )
    return attributes


def _attribute(value: bytes) -> dict[str, Any]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or _FORBIDDEN.search(text) is not None:
        return {"DataType": "Binary", "BinaryValue": value}
    return {"DataType": "String", "StringValue": text}


def _as_id(text: str) -> str:
    """The text itself if it is valid; otherwise a digest."""
    if len(text) <= _ID_CHARACTERS_MAX and _ID.fullmatch(text) is not None:
        return text
    return blake2b(text.encode(), digest_size=32).hexdigest()
