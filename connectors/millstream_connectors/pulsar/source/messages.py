"""Messages of Pulsar, and their places in a topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from millstream.extract import EPOCH_MS
from millstream_connectors.shared.messages import event_time, size_of


class MessagePlace(NamedTuple):
    """Where a message is in a partition. Places compare in the order of the partition."""

    ledger: int
    """Pulsar stores a topic in ledgers; their ids ascend."""
    entry: int
    """Index of the entry in the ledger."""
    batch: int
    """Index of the message in the entry; -1 if the entry is the message."""

    @property
    def is_message(self) -> bool:
        """Whether it is the place of a message; otherwise it is the one before all messages."""
        return self.entry >= 0

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.batch}" if self.batch >= 0 else "")


BEGINNING = MessagePlace(-1, -1, -1)
"""The place before all messages."""


class IncomingMessage(NamedTuple):
    """A message that was received."""

    split: str
    """Name of the partition."""
    place: MessagePlace
    value: bytes
    time_us: int
    key: str
    headers: Mapping[str, bytes]
    fault: str = ""
    """Why the message cannot become a record; empty if it can."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.key.encode(),) if self.key else ()

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""
        return size_of(self.value, self.headers) + len(self.key)

    @property
    def digest(self) -> str:
        """A digest that reveals another message at the same place."""
        headers = b"\0".join(name.encode() + b"=" + value for name, value in sorted(self.headers.items()))
        return blake2b(b"\0".join((self.value, self.key.encode(), headers)), digest_size=8).hexdigest()


def place_of(message_id: Any) -> MessagePlace:
    """The place of a message, by the client's id."""
    return MessagePlace(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


def arrived(split: str, message: Any) -> IncomingMessage:
    """The message that the client has received."""
    time_us, fault = event_time(EPOCH_MS, message.event_timestamp() or message.publish_timestamp())
    headers, key = {}, ""
    try:
        headers = {name: text.encode() for name, text in message.properties().items()}
        key = message.partition_key()
    except UnicodeDecodeError as error:
        fault = f"its key or a property is not UTF-8: {error}"
    return IncomingMessage(split, place_of(message.message_id()), message.data(), time_us, key, headers, fault)
