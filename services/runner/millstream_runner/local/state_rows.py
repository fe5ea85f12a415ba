"""Entries of a state as rows of JSON, and back: what `millstream state` shows, exports and imports. Pure.

    {"key": ["ada"], "state": "total", "kind": "value", "value": 1250, "version": 1}
    {"key": ["ada"], "state": "seen", "kind": "map", "item": "eu", "value": true, "expires_us": 1700000, "version": 2}

Above it: the command, and what reads and writes its files. Below it: nothing. A row gives the same bytes back. Where
JSON cannot say them, because of the codec or of how a text is written, a member with `_base64` has the bytes, and
counts.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from millstream.json_parser import parse_json
from millstream.udf.states import DeclaredState, StateKind
from millstream_udf.timer_entries import CLOCK_NAMES, CLOCKS, EVENT, TIMER_NAME_BYTES_MAX, TimerTime, pack_timer
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.keys import key_of, parts_of
from millstream_vertex.keyed.timers import timer_of

_COUNTER, _INDEX, _TIMER = "counter", "index", "timer"
"""What is in the place of a codec for numbers of counters, for the items of lists, and for the times of timers."""
_NUMBER_BYTES = 8
OF_ENTRY = (
    "key",
    "key_base64",
    "state",
    "kind",
    "item",
    "item_base64",
    "value",
    "value_base64",
    "expires_us",
    "version",
)
"""Members that say what an entry is."""
OF_PLACE = ("partition", "epoch", "sequence", "watermark_us")
"""Members that say where it was, which an import passes over, but for the partition of an entry of a whole lane."""


class StateForm(NamedTuple):
    """How the entries of a state are encoded."""

    name: str
    kind: StateKind
    codec: str
    item_codec: str = ""

    @property
    def of_value(self) -> str:
        # What is not JSON is shown as bytes.
        special = {StateKind.COUNTER: _COUNTER, StateKind.TIMER: _TIMER, StateKind.TABLE: "json"}
        return special.get(self.kind, self.codec)

    @property
    def of_item(self) -> str:
        # The items of timers are their names.
        return {StateKind.LIST: _INDEX, StateKind.TIMER: "bytes"}.get(self.kind, self.item_codec)


class RowEntry(NamedTuple):
    """An entry, as a row says it."""

    key: bytes
    state: DeclaredState
    item: bytes
    value: bytes
    expires_us: int
    version: int
    partition: int | None
    """Of an entry of a whole lane; None if it is not said."""


def row_of(form: StateForm, key: bytes, item: bytes, stored: Versioned) -> dict[str, Any]:
    """The row of an entry."""
    row: dict[str, Any] = {}
    parts = parts_of(key)
    row["key"] = [part.decode(errors="backslashreplace") for part in parts]
    if [part.encode() for part in row["key"]] != [*parts]:
        row["key_base64"] = [_text64(part) for part in parts]
    row |= {"state": form.name, "kind": form.kind.name.lower()}
    if form.kind.has_items:
        row |= _member("item", item, form.of_item, is_item=True)
    row |= _member("value", stored.value, form.of_value)
    if stored.expires_us:
        row["expires_us"] = stored.expires_us
    row["version"] = stored.version
    return row


def shown_of(data: bytes, codec: str) -> Any:
    """A value or an item for people."""
    return _member("it", data, codec).get("it", {"base64": _text64(data)})


def entry_of(row: Any, declared: Mapping[str, DeclaredState]) -> RowEntry:
    """The entry that a row says, for a function with these states. Raises `ValueError`, with what is wrong."""
    if not isinstance(row, dict):
        raise ValueError(f"it is a {type(row).__name__}, not an object")
    if unknown := sorted(row.keys() - {*OF_ENTRY, *OF_PLACE}):
        raise ValueError(f"`{unknown[0]}` is no member of an entry; these are: {', '.join(OF_ENTRY)}")
    name = row.get("state")
    state = declared.get(name) if isinstance(name, str) else None
    if state is None:
        raise ValueError(f"`state` is {name!r}, and the function declares {', '.join(sorted(declared)) or 'none'}")
    kind = row.get("kind", state.kind.name.lower())
    if kind != state.kind.name.lower():
        raise ValueError(f"`{name}` is a {state.kind.name.lower()} of the function, and not a {kind}")
    form = StateForm(state.name, state.kind, state.codec, state.item_codec)
    item = b""
    if state.kind.has_items:
        item = _bytes(row, "item", form.of_item, is_item=True)
    elif "item" in row or "item_base64" in row:
        raise ValueError(f"`{name}` is a {kind}, which has no items")
    version = _number(row, "version", state.version, 1)
    if not state.oldest_version <= version <= state.version:
        raise ValueError(f"`version` is {version}, and the function reads {state.oldest_version} to {state.version}")
    value, expires_us = _bytes(row, "value", form.of_value), _number(row, "expires_us", 0, 0)
    if state.kind is StateKind.TIMER:
        _check_timer(item, value)
        if expires_us:
            raise ValueError("a timer does not expire: it fires at the `at_us` of its `value`")
    partition = _number(row, "partition", -1, 0) if "partition" in row else None
    return RowEntry(_key(row), state, item, value, expires_us, version, partition)


def _key(row: Mapping[str, Any]) -> bytes:
    parts = row.get("key_base64", row.get("key"))
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("`key` has to be a list of texts: the parts of the key")
    return key_of([_bytes64(part, "key_base64") if "key_base64" in row else part.encode() for part in parts])


def _number(row: Mapping[str, Any], name: str, default: int, lowest: int) -> int:
    number = row.get(name)
    if number is None:
        return default
    if type(number) is not int or not lowest <= number < 2**63:
        raise ValueError(f"`{name}` is {number!r}; it has to be a number from {lowest} on")
    return number


def _member(name: str, data: bytes, codec: str, *, is_item: bool = False) -> dict[str, Any]:
    """The members of a row for a value or an item."""
    found: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        value = _decoded(data, codec)
        # Not every text that is JSON can be written again, such as half of a character.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        found[name] = value
        if _encoded(value, codec, is_item=is_item) == data:
            return found
    return {**found, f"{name}_base64": _text64(data)}


def _bytes(row: Mapping[str, Any], name: str, codec: str, *, is_item: bool = False) -> bytes:
    given = row.get(f"{name}_base64")
    if given is not None:
        return _bytes64(given, f"{name}_base64")
    if name not in row:
        raise ValueError(f"there is no `{name}`")
    try:
        return _encoded(row[name], codec, is_item=is_item)
    except (ValueError, TypeError) as error:
        raise ValueError(f"`{name}` cannot be stored as {codec}: {error}") from None


def _decoded(data: bytes, codec: str) -> Any:
    match codec:
        case "counter":
            return int.from_bytes(data, "little", signed=True)
        case "index":
            return int.from_bytes(data, "big")
        case "timer":
            timer = timer_of(b"", b"", data)
            output = {"output_at_us": timer.event_us} if timer.holds else {}
            return {"at_us": timer.at_us, "clock": CLOCK_NAMES[timer.clock], **output}
        case "json":
            return parse_json(data)
        case "bytes":
            return data.decode()
        case "msgpack":
            return _msgpack().decode(data)
        case _:
            raise ValueError(f"only bytes can be given of {codec}")


def _encoded(value: Any, codec: str, *, is_item: bool = False) -> bytes:
    match codec:
        case "counter" | "index":
            if type(value) is not int:
                raise ValueError(f"{value!r} is not a whole number")
            try:
                return value.to_bytes(_NUMBER_BYTES, "little" if codec == _COUNTER else "big", signed=codec == _COUNTER)
            except OverflowError:
                raise ValueError(f"{value} is too large") from None
        case "timer":
            return _encoded_timer(value)
        case "json":
            # Items have one form only, which is that of the SDK.
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=is_item)
            return text.encode()
        case "bytes":
            if not isinstance(value, str):
                raise ValueError(f"{value!r} is not a text")
            return value.encode()
        case "msgpack":
            found: bytes = _msgpack().encode(value)
            return found
        case _:
            raise ValueError("give its bytes, with `_base64` behind the name")


def _check_timer(name: bytes, value: bytes) -> None:
    """Raise `ValueError` for what would stop the lane when its time has come."""
    timer_of(b"", name, value)
    if not 0 < len(name) <= TIMER_NAME_BYTES_MAX:
        raise ValueError(f"the name of a timer has 1 to {TIMER_NAME_BYTES_MAX} bytes, and not {len(name)}")
    name.decode()


def _encoded_timer(value: Any) -> bytes:
    if (
        not isinstance(value, dict)
        or value.keys() - {"output_at_us"} != {"at_us", "clock"}
        or value["clock"] not in CLOCKS
    ):
        raise ValueError(
            'a timer has `at_us`, microseconds, and as `clock` "event" or "processing"; it may have `output_at_us`'
        )
    for name in value.keys() - {"clock"}:
        if type(value[name]) is not int or not -(2**63) <= value[name] < 2**63:
            raise ValueError(f"`{name}` is {value[name]!r}; it has to be a number of microseconds")
    clock, at_us, output_us = CLOCKS[value["clock"]], value["at_us"], value.get("output_at_us")
    if output_us is None:
        return pack_timer(TimerTime(clock, at_us))
    if clock == EVENT and output_us > at_us:
        raise ValueError("`output_at_us` of a timer by event time is not later than its `at_us`")
    return pack_timer(TimerTime(clock, at_us, output_us, holds=True))


def _msgpack() -> Any:
    try:
        import msgspec
    except ImportError:
        raise ValueError("msgspec is not installed here") from None
    return msgspec.msgpack


def _text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes64(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError(f"`{name}` is not base64") from None
