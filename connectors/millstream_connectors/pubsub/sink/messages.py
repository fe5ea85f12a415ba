"""Records as Pub/Sub messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from google.pubsub_v1.types import PubsubMessage

from millstream_connectors.shared.carried import EVENT_TIME, KEYS, OURS, RECORD_ID, keys_text, message_id, time_text
from millstream_writer.sink import SinkFailure, SinkFrame

HEADER = "header cannot be written"
MESSAGES_MAX = 1000
"""Maximum number of messages in a request."""
BYTES_MAX = 9_000_000
"""Maximum bytes of the messages in a request. The service accepts 10 MB, and any record fits into that."""
_ATTRIBUTES_MAX = 100
_NAME_BYTES_MAX = 256
_VALUE_BYTES_MAX = 1024
_KEY_BYTES_MAX = 1024

# The wrapper types of the client are much slower.
_MESSAGE: Any = PubsubMessage.pb()


class Put(NamedTuple):
    """The message of one record."""

    row: int
    message: Any
    """A `PubsubMessage` of the protocol."""
    size: int


def convert(item: SinkFrame, run: str, *, ordered: bool) -> tuple[list[Put], list[SinkFailure]]:
    """The messages for a frame's records, and failures for those that cannot become messages."""
    made: list[Put] = []
    failures: list[SinkFailure] = []
    ids, frame = item.record_ids(), item.frame
    columns = zip(frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), strict=True)
    for row, (value, keys, time_us, headers) in enumerate(columns):
        ours = {EVENT_TIME: time_text(time_us), RECORD_ID: message_id(run, ids[row], _VALUE_BYTES_MAX)}
        try:
            attributes = _attributes(headers, ours, keys)
        except ValueError as error:
            failures.append(SinkFailure(row, HEADER, retryable=False, detail=str(error)))
            continue
        key = ordering_key(keys) if ordered else ""
        message = _MESSAGE(data=value, attributes=attributes, ordering_key=key)
        # The size includes the field's tag and length.
        made.append(Put(row, message, message.ByteSize() + 8))
    return made, failures


def requests_of(made: Sequence[Put], messages_max: int, bytes_max: int) -> list[list[list[Put]]]:
    """Divide messages into lists of requests. Those of one list must follow each other; those of different lists may be
    in progress at the same time.

    All messages of a request have the same ordering key, as the service requires, and messages with the same key stay
    in order.
    """
    chains: list[list[list[Put]]] = []
    by_key: dict[str, list[list[Put]]] = {}
    sizes: dict[str, int] = {}
    for put in made:
        key = put.message.ordering_key
        chain = by_key.get(key)
        full = chain is not None and (len(chain[-1]) == messages_max or sizes[key] + put.size > bytes_max)
        if chain is None or (full and not key):
            chain = by_key[key] = [[]]
            chains.append(chain)
            sizes[key] = 0
        elif full:
            chain.append([])
            sizes[key] = 0
        chain[-1].append(put)
        sizes[key] += put.size
    return chains


def ordering_key(keys: Sequence[bytes]) -> str:
    """The ordering key of a record: its key, or its keys as a JSON array; a digest if that is too long."""
    if not keys:
        return ""
    text = keys_text(keys)
    if len(keys) == 1 and keys[0]:
        try:
            text = keys[0].decode()
        except UnicodeDecodeError:
            # Keys that differ only in invalid bytes get the same ordering key.
            text = keys_text(keys)
    if len(text.encode()) > _KEY_BYTES_MAX:
        return blake2b(text.encode(), digest_size=32).hexdigest()
    return text


def _attributes(given: Mapping[str, bytes], ours: Mapping[str, str], keys: Sequence[bytes]) -> dict[str, str]:
    """The attributes of a message. Raises `ValueError` for headers that cannot be attributes."""
    attributes: dict[str, str] = {}
    for name, value in given.items():
        if name.lower().startswith(OURS):
            continue
        if not name or name.startswith("goog") or len(name.encode()) > _NAME_BYTES_MAX:
            what = f"1 to {_NAME_BYTES_MAX} bytes that do not begin with `goog`"
            raise ValueError(f"{name[:80]!r} is not a valid attribute name: {what}")
        try:
            attributes[name] = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the value of {name!r} is not UTF-8") from None
        _check_length(name, attributes[name])
    attributes |= ours
    if keys:
        attributes[KEYS] = keys_text(keys)
        _check_length(KEYS, attributes[KEYS])
    if len(attributes) > _ATTRIBUTES_MAX:
        raise ValueError(
            f"it has {len(attributes)} headers, counting those of the sink; a message has at most {_ATTRIBUTES_MAX}"
        )
    return attributes


def _check_length(name: str, value: str) -> None:
    if (size := len(value.encode())) > _VALUE_BYTES_MAX:
        raise ValueError(f"the value of {name!r} has {size} bytes; the limit is {_VALUE_BYTES_MAX}")
