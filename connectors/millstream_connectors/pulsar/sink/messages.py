"""Records as messages of Pulsar: their sequence ids and partitions. Pure.

A sequence id is the record's place in the lane's buffer, which is the same on every attempt. Brokers compare the ids of
a producer in a partition, so a record must also go to the same partition on every attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.limits import FRAME_INDEX_BITS
from millstream_connectors.shared.carried import OURS, keys_text
from millstream_connectors.shared.converting import RefusedRecordError, convert_each
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_writer.sink import SinkFrame

PROPERTY = "header cannot be written"
_HASH_MASK = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


class Put(NamedTuple):
    """The target's form of a record."""

    row: int
    """Row of its frame."""
    sequence_id: int
    partition: int
    value: bytes
    key: str
    """Empty for none."""
    properties: Mapping[str, str]
    time_ms: int


def convert(item: SinkFrame, partitions: int) -> ConvertedRecords[Put]:
    """What a frame's records become."""
    frame = item.frame

    def put(
        row: int, index: int, value: bytes, keys: Sequence[bytes], time_us: int, headers: Mapping[str, bytes]
    ) -> Put:
        key, properties = _key(keys), _properties(headers)
        partition = java_hash(key) % partitions if key else item.sequence % partitions
        # Pulsar has no times before 1970; 0 means none.
        return Put(row, sequence_id(item.sequence, index), partition, value, key, properties, max(0, time_us // 1000))

    columns = (item.indexes(), frame.values(), frame.keys(), frame.event_times_us(), frame.headers())
    return convert_each(zip(range(frame.records), *columns, strict=True), put)


def sequence_id(sequence: int, index: int) -> int:
    """Id of the record at an index of the frame at a sequence of the buffer."""
    return (sequence << FRAME_INDEX_BITS) | index


def java_hash(key: str) -> int:
    """Java's hash of a text, not negative. Clients choose a key's partition by it."""
    found = 0
    for unit in memoryview(key.encode("utf-16-le", "surrogatepass")).cast("H"):
        found = (31 * found + unit) & _HASH_MASK
    return found & _POSITIVE


def _key(keys: Sequence[bytes]) -> str:
    """A single key as text, several as a JSON array."""
    if len(keys) == 1:
        return keys[0].decode(errors="replace")
    return keys_text(keys) if keys else ""


def _properties(given: Mapping[str, bytes]) -> dict[str, str]:
    """Raises `RefusedRecordError`."""
    properties = {}
    for name, value in given.items():
        if name.lower().startswith(OURS):
            continue
        try:
            properties[name] = value.decode()
        except UnicodeDecodeError:
            raise RefusedRecordError(PROPERTY, f"the value of {name[:80]!r} is not UTF-8 text") from None
    return properties
