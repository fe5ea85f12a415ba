"""Entries of a state as rows: the same bytes come back, and what is wrong with a row is named."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import UserError
from millstream.udf.states import DeclaredState, StateKind
from millstream_runner.local.state_files import read_rows, rows_written
from millstream_runner.local.state_rows import StateForm, entry_of, row_of, shown_of
from millstream_udf.timer_entries import EVENT, PROCESSING, TimerTime, pack_timer
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.keys import key_of
from millstream_vertex.keyed.timers import stored_timer

STATES = {
    state.name: state
    for state in (
        DeclaredState("total", StateKind.VALUE, "json", version=3, oldest_version=2),
        DeclaredState("seen", StateKind.MAP, "json", "json"),
        DeclaredState("raw", StateKind.MAP, "bytes", "bytes"),
        DeclaredState("notes", StateKind.LIST, "json"),
        DeclaredState("count", StateKind.COUNTER, ""),
        DeclaredState("packed", StateKind.VALUE, "msgpack"),
        DeclaredState("order", StateKind.VALUE, "protobuf"),
        DeclaredState("timers", StateKind.TIMER, ""),
    )
}
VALUES = {
    "json": [b"1", b"1.50", b'"\\u00e9"', '"é"'.encode(), b'{"b":1, "a":2}', b'{"b":1,"a":2}', b'"\\ud800"', b"1e400"],
    "bytes": [b"", b"text", b"\xff\x00", "é".encode()],
    "counter": [(-5).to_bytes(8, "little", signed=True), (2**63 - 1).to_bytes(8, "little", signed=True)],
    "index": [(0).to_bytes(8, "big"), (2**40).to_bytes(8, "big")],
    "msgpack": [b"\x01", b"\xc4\x01\xff", b"\xcc\x01"],
    "protobuf": [b"", b"\x08\x01"],
    "timer": [
        pack_timer(TimerTime(EVENT, 5)),
        pack_timer(TimerTime(EVENT, 5, 3, holds=True)),
        pack_timer(TimerTime(PROCESSING, 5, 9, holds=True)),
        # It has a number, and was set at the end of the input.
        stored_timer(pack_timer(TimerTime(PROCESSING, 5, 3)), number=2, set_at_end=True),
    ],
    "name": [b"close", "schließen".encode()],
}


def form(name: str) -> StateForm:
    state = STATES[name]
    return StateForm(name, state.kind, state.codec, state.item_codec)


def timer(**members: Any) -> dict[str, Any]:
    return {"key": ["a"], "state": "timers", "item": "close", **members}


def rows() -> list[tuple[dict[str, Any], tuple[bytes, bytes, Versioned]]]:
    """Rows of entries of every form, each with the entry."""
    rng, found = random.Random(1), []
    for name, state in STATES.items():
        for value in VALUES[form(name).of_value]:
            is_timer = state.kind is StateKind.TIMER
            items = VALUES["name" if is_timer else form(name).of_item] if state.kind.has_items else [b""]
            for item in items:
                key = key_of(rng.choice([[b"ada"], [b"a", b"\x1f"], [b"\xff"], [b""], []]))
                expires_us = 0 if is_timer else rng.choice([0, 1_700_000_000_000_000])
                stored = Versioned(value, expires_us, rng.choice([state.version]))
                found.append((row_of(form(name), key, item, stored), (key, item, stored)))
    return found


@pytest.mark.guarantee("I7")
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_was_exported_comes_back_byte_by_byte(tmp_path: Path, suffix: str) -> None:
    path, given = tmp_path / f"entries.{suffix}", rows()
    with rows_written(path) as write:
        for row, _ in given:
            write(row)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    for (place, row), (number, (written, (key, item, stored))) in zip(
        read_rows(path), enumerate(given, 1), strict=True
    ):
        assert place.endswith(f":{number}" if suffix == "jsonl" else f"row {number}")
        assert row == written
        entry = entry_of(row, STATES)
        assert (entry.key, entry.item, entry.value) == (key, item, stored.value), row
        assert (entry.expires_us, entry.version) == (stored.expires_us, stored.version)


def test_a_timer_says_when_it_fires() -> None:
    row = row_of(form("timers"), b"a", b"close", Versioned(pack_timer(TimerTime(EVENT, 5)), 0, 1))
    assert (row["kind"], row["item"], row["value"]) == ("timer", "close", {"at_us": 5, "clock": "event"})


def test_a_row_says_in_json_what_it_can() -> None:
    def value_of(name: str, data: bytes) -> dict[str, Any]:
        row = row_of(form(name), b"a", b"", Versioned(data, 0, 1))
        return {member: row[member] for member in row if member.startswith("value")}

    assert value_of("total", b'{"a":[1,null]}') == {"value": {"a": [1, None]}}
    # It says what the value is, and how it is written.
    assert value_of("total", b"1.50") == {"value": 1.5, "value_base64": "MS41MA=="}
    assert value_of("order", b"\x08\x01") == {"value_base64": "CAE="}
    assert shown_of(b"\x08\x01", "protobuf") == {"base64": "CAE="}
    assert shown_of(b"1.50", "json") == 1.5


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([], "it is a list, not an object"),
        ({"key": ["a"], "state": "other", "value": 1}, "`state` is 'other', and the function declares count, notes"),
        ({"key": "a", "state": "total", "value": 1}, "`key` has to be a list of texts"),
        ({"key": ["a"], "state": "total"}, "there is no `value`"),
        ({"key": ["a"], "state": "total", "value": 1, "ttl": 5}, "`ttl` is no member of an entry"),
        (
            {"key": ["a"], "state": "total", "kind": "map", "value": 1},
            "`total` is a value of the function, and not a map",
        ),
        ({"key": ["a"], "state": "total", "item": 1, "value": 1}, "`total` is a value, which has no items"),
        ({"key": ["a"], "state": "total", "value": 1, "version": 1}, "`version` is 1, and the function reads 2 to 3"),
        ({"key": ["a"], "state": "total", "value": 1, "version": 4}, "`version` is 4, and the function reads 2 to 3"),
        ({"key": ["a"], "state": "seen", "value": 1}, "there is no `item`"),
        (
            {"key": ["a"], "state": "count", "value": 1.5},
            "`value` cannot be stored as counter: 1.5 is not a whole number",
        ),
        ({"key": ["a"], "state": "count", "value": 2**63}, "is too large"),
        ({"key": ["a"], "state": "count", "value": True}, "True is not a whole number"),
        ({"key": ["a"], "state": "notes", "item": -1, "value": 1}, "`item` cannot be stored as index: -1 is too large"),
        ({"key": ["a"], "state": "order", "value": 1}, "give its bytes, with `_base64` behind the name"),
        ({"key": ["a"], "state": "order", "value_base64": "%"}, "`value_base64` is not base64"),
        ({"key": ["a"], "state": "raw", "item": "a", "value": 1}, "1 is not a text"),
        ({"key": ["a"], "state": "total", "value": 1, "expires_us": "soon"}, "`expires_us` is 'soon'"),
        (timer(value={"at_us": 1}), "a timer has `at_us`, microseconds, and as `clock`"),
        (timer(value={"at_us": 2**63, "clock": "event"}), "it has to be a number of microseconds"),
        (timer(value_base64=""), "a stored timer has 17 bytes, or 8 more, and not 0"),
        (timer(item="", value={"at_us": 1, "clock": "event"}), "the name of a timer has 1 to 255 bytes, and not 0"),
        (timer(item_base64="/w==", value={"at_us": 1, "clock": "event"}), "can't decode byte 0xff"),
        (timer(value={"at_us": 1, "clock": "event"}, expires_us=9), "a timer does not expire"),
    ],
)
def test_what_is_wrong_with_a_row_is_named(row: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        entry_of(row, STATES)


def test_a_file_that_is_not_read_to_its_end_says_where(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"key": []}\n\n{"key"\n')
    with pytest.raises(UserError, match=r"rows\.jsonl:3: it is not JSON: .*Nothing was changed"):
        list(read_rows(path))
    path = path.rename(path.with_suffix(".parquet"))
    with pytest.raises(UserError, match=r"rows\.parquet: after row 0: "):
        list(read_rows(path))


def test_a_file_that_could_not_be_written_to_its_end_is_not_there(tmp_path: Path) -> None:
    def written() -> None:
        with rows_written(tmp_path / "rows.jsonl") as write:
            write({"key": ["a"]})
            raise RuntimeError("the broker is away")

    with pytest.raises(RuntimeError):
        written()
    assert list(tmp_path.iterdir()) == []


def test_items_have_one_form() -> None:
    row = {"key": ["a"], "state": "seen", "item": {"b": 1, "a": 2}, "value": {"b": 1, "a": 2}}
    entry = entry_of(row, STATES)
    assert (entry.item, entry.value) == (b'{"a":2,"b":1}', b'{"b":1,"a":2}')
    assert json.loads(entry.item) == row["item"]
