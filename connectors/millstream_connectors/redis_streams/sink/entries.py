"""Records in Redis: entries of a stream, fields of a hash, values of keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.exact_json import parse, text_of
from millstream.keys import key_of_text
from millstream.limits import REDIS_FIELDS_MAX
from millstream_connectors.redis_streams.settings import RedisSink
from millstream_connectors.shared.converting import RefusedRecordError, convert_each
from millstream_connectors.shared.json_rows import NOT_AN_OBJECT, NOT_JSON
from millstream_connectors.shared.kept import ConvertedRecords
from millstream_writer.sink import SinkFrame

NO_KEY = "record has no key"
NO_MEMBERS = "object has no members"
NOT_TEXT = "value is not text"
TOO_MANY_FIELDS = "record has too many fields"

HEADER = "header."
"""Prefix of header names, in entries with a whole record."""

Words = Sequence[str | int | bytes]


class Put(NamedTuple):
    """The target's form of a record."""

    key: bytes
    words: Words
    """Alternating names and values; one value for `set`. For `hash`, first the number of fields that are null, and
    their names."""


def convert(settings: RedisSink, item: SinkFrame) -> ConvertedRecords[Put]:
    """Converts a frame's records."""
    frame, target = item.frame, settings.target.encode()
    keyed = settings.mode != "stream"
    has_members = settings.mode == "hash" or settings.format == "fields"

    def put(value: bytes, keys: tuple[bytes, ...], time_us: int, headers: Mapping[str, bytes]) -> Put:
        key = target + _required(keys) if keyed else target
        if has_members:
            words = _members(value, with_null=settings.mode == "hash")
        elif keyed:
            words = (value,)
        else:
            words = _whole(value, keys, time_us, headers)
        if len(words) > 2 * REDIS_FIELDS_MAX:
            raise RefusedRecordError(TOO_MANY_FIELDS, f"{len(words) // 2}; at most {REDIS_FIELDS_MAX} can be written")
        return Put(key, words)

    return convert_each(zip(frame.values(), frame.keys(), frame.event_times_us(), frame.headers(), strict=True), put)


def _whole(value: bytes, keys: tuple[bytes, ...], time_us: int, headers: Mapping[str, bytes]) -> Words:
    words: list[str | int | bytes] = ["value", value]
    if keys:
        words += ["key", _key(keys)]
    words += ["eventTime", time_us // 1000]
    for name, text in headers.items():
        words += [HEADER + name, text]
    return words


def _members(value: bytes, *, with_null: bool) -> Words:
    """`with_null`: null removes the field that a hash has. A new entry does not have it anyway."""
    try:
        parsed = parse(value)
    except ValueError as error:
        raise RefusedRecordError(NOT_JSON, str(error)) from None
    if not isinstance(parsed, dict):
        raise RefusedRecordError(NOT_AN_OBJECT, f"it is {type(parsed).__name__}")
    words: list[str | int | bytes] = []
    try:
        for name, member in parsed.items():
            if member is not None:
                words += [name.encode(), (member if isinstance(member, str) else text_of(member)).encode()]
        null = [name.encode() for name, member in parsed.items() if member is None] if with_null else []
    except UnicodeEncodeError:
        raise RefusedRecordError(NOT_TEXT, "it has an unpaired surrogate") from None
    if not words and not null:
        raise RefusedRecordError(NO_MEMBERS, "there is nothing to write")
    return [len(null), *null, *words] if with_null else words


def _required(keys: tuple[bytes, ...]) -> bytes:
    if not keys:
        raise RefusedRecordError(NO_KEY, "`keys` of its source, or a function, gives it one")
    return _key(keys)


def _key(parts: tuple[bytes, ...]) -> bytes:
    """A single key with the bytes that it had at its source; several as a JSON array."""
    return key_of_text(parts[0]) if len(parts) == 1 else text_of([part.decode() for part in parts]).encode()
