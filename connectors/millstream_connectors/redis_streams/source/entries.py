"""Entries of a stream as records. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from millstream.extract import EPOCH_MS
from millstream.json_parser import parse_json
from millstream.keys import KeyMapping, text_of_key
from millstream.limits import RECORD_BYTES_MAX
from millstream_connectors.shared.messages import SHOWN_BYTES, event_time

_RECORD_OVERHEAD_BYTES = 64
_HEADER = b"header."


class EntryId(NamedTuple):
    """An entry's id. Ids compare in the order of the stream."""

    ms: int
    number: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.number}"


BEGINNING = EntryId(0, 0)
"""The id before every entry."""


def parse_id(text: bytes | str) -> EntryId:
    """Raises `ValueError`."""
    ms, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return EntryId(int(ms), int(number))


class Entry(NamedTuple):
    """An entry as the server returns it."""

    id: EntryId
    fields: Sequence[bytes]
    """Alternating names and values."""

    @property
    def size(self) -> int:
        """Approximate bytes of its record."""
        return _RECORD_OVERHEAD_BYTES + sum(map(len, self.fields))

    @property
    def digest(self) -> str:
        """A digest that reveals an entry with the same id and different fields."""
        found = blake2b(digest_size=8)
        for word in self.fields:
            found.update(len(word).to_bytes(4, "big") + word)
        return found.hexdigest()


class EntryRecord(NamedTuple):
    """What an entry becomes."""

    value: bytes
    event_time_us: int
    keys: tuple[bytes, ...] = ()
    headers: Mapping[str, bytes] = {}


class NotReadableError(ValueError):
    """An entry that cannot become a record: its content, and the reason."""

    def __init__(self, value: bytes, reason: str) -> None:
        super().__init__(reason)
        self.value = value


def read_entry(entry: Entry, *, whole: bool, key_mapping: KeyMapping = text_of_key) -> EntryRecord:
    """`whole`: the entry is a record that the sink has written. Raises `NotReadableError`."""
    if entry.size > RECORD_BYTES_MAX:
        shown = b" ".join(word[:SHOWN_BYTES] for word in entry.fields[:2])
        raise NotReadableError(shown, f"the entry has {entry.size} bytes; the limit is {RECORD_BYTES_MAX}")
    return _whole(entry, key_mapping) if whole else _members(entry)


def _members(entry: Entry) -> EntryRecord:
    try:
        texts = [word.decode() for word in entry.fields]
    except UnicodeDecodeError:
        value = b" ".join(entry.fields)
        raise NotReadableError(
            value, "a field is not UTF-8 text, which JSON requires; `format: record` accepts any bytes"
        ) from None
    members = dict(zip(texts[::2], texts[1::2], strict=True))
    value = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
    return EntryRecord(value, _time_us(entry, None, value))


def _whole(entry: Entry, key_mapping: KeyMapping) -> EntryRecord:
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    if b"value" not in fields:
        value = b" ".join(entry.fields)
        raise NotReadableError(
            value,
            "the entry has no field `value`, which `format: record` requires; `format: fields` accepts any fields",
        )
    value = fields[b"value"]
    time_us = _time_us(entry, fields.get(b"eventTime"), value)
    try:
        headers = {
            name.removeprefix(_HEADER).decode(): text for name, text in fields.items() if name.startswith(_HEADER)
        }
    except UnicodeDecodeError:
        raise NotReadableError(value, "the name of a header is not UTF-8") from None
    return EntryRecord(value, time_us, _keys(fields.get(b"key"), key_mapping), headers)


def _time_us(entry: Entry, written: bytes | None, value: bytes) -> int:
    """By the field `eventTime`, or else by the id. Raises `NotReadableError`."""
    found, fault = event_time(EPOCH_MS, entry.id.ms if written is None else written.decode(errors="replace"))
    if fault:
        raise NotReadableError(value, fault)
    return found


def _keys(written: bytes | None, key_mapping: KeyMapping) -> tuple[bytes, ...]:
    """A JSON array of texts means several keys, as the sink writes them."""
    if written is None:
        return ()
    if written.startswith(b"["):
        try:
            found = parse_json(written)
        except ValueError:
            found = None
        if isinstance(found, list) and len(found) > 1 and all(isinstance(key, str) for key in found):
            # A key with half of a surrogate pair is not a text.
            with suppress(UnicodeEncodeError):
                return tuple(key.encode() for key in found)
    return (key_mapping(written),)
