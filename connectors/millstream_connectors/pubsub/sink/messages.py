"""Records as Pub/Sub messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.pubsub_v1.types import PubsubMessage

from millstream_connectors.shared.carried import (
    KEYS,
    converted,
    fitting,
    given_headers,
    keys_text,
    message_id,
    own_headers,
)
from millstream_writer.sink import SinkFailure, SinkFrame

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


def convert(item: SinkFrame, run: str, *, ordered: bool) -> tuple[Sequence[Put], list[SinkFailure]]:
    """The messages for a frame's records, and failures for those that cannot become messages."""

    def made(
        row: int, value: bytes, keys: Sequence[bytes], time_us: int, headers: Mapping[str, bytes], record_id: str
    ) -> Put:
        own = own_headers(keys, time_us, message_id(run, record_id, _VALUE_BYTES_MAX))
        key = ordering_key(keys) if ordered else ""
        message = _MESSAGE(data=value, attributes=_attributes(headers, own), ordering_key=key)
        # The size includes the field's tag and length.
        return Put(row, message, message.ByteSize() + 8)

    return converted(item, made)


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
    text = ""
    if len(keys) == 1:
        try:
            text = keys[0].decode()
        except UnicodeDecodeError:
            # Keys that differ only in invalid bytes get the same ordering key.
            text = ""
    return fitting(text or keys_text(keys), _KEY_BYTES_MAX)


def _attributes(given: Mapping[str, bytes], own: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a message. Raises `ValueError` for headers that cannot be attributes."""
    attributes: dict[str, str] = {}
    for name, value in given_headers(given):
        if not name or name.startswith("goog") or len(name.encode()) > _NAME_BYTES_MAX:
            what = f"1 to {_NAME_BYTES_MAX} bytes that do not begin with `goog`"
            raise ValueError(f"{name[:80]!r} is not a valid attribute name: {what}")
        try:
            attributes[name] = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"the value of {name!r} is not UTF-8") from None
        _check_length(name, len(value))
    attributes |= own
    _check_length(KEYS, len(own.get(KEYS, "")))
    if len(attributes) > _ATTRIBUTES_MAX:
        raise ValueError(
            f"it has {len(attributes)} headers, counting those of the sink; a message has at most {_ATTRIBUTES_MAX}"
        )
    return attributes


def _check_length(name: str, size: int) -> None:
    if size > _VALUE_BYTES_MAX:
        raise ValueError(f"the value of {name!r} has {size} bytes; the limit is {_VALUE_BYTES_MAX}")
