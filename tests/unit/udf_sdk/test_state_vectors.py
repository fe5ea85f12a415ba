"""What the states of functions in Python and in Go store is the same, byte for byte: a lane's state belongs to no
language. `sdk/go/udftest/states_vectors_test.go` does the same with the same file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from millstream_udf.state_codecs import Codec, codec_of, item_codec_of
from millstream_udf.state_views import bytes_of, number_of
from millstream_udf.timer_entries import CLOCKS, TimerTime, pack_timer, unpack_timer

VECTORS = json.loads((Path(__file__).parents[3] / "sdk/go/udftest/testdata/states.json").read_text(encoding="utf-8"))


@dataclass
class Line:
    item: str
    pieces: int
    price: float
    tags: list[str]
    more: dict[str, int]


def assert_stored(codec: Codec, value: Any, data: bytes) -> None:
    assert codec.checked(value) == data
    assert codec.read(data) == value


@pytest.mark.parametrize(
    ("name", "codec"),
    [("textItems", item_codec_of(str)), ("numberItems", item_codec_of(int))],
    ids=["texts", "numbers"],
)
def test_items(name: str, codec: Codec) -> None:
    for vector in VECTORS[name]:
        assert_stored(codec, vector["item"], vector["stored"].encode())


@pytest.mark.parametrize(("name", "kind"), [("texts", str), ("numbers", int), ("booleans", bool)])
def test_scalars(name: str, kind: type) -> None:
    for vector in VECTORS[name]:
        assert_stored(codec_of(kind), vector["value"], vector["stored"].encode())


def test_objects() -> None:
    for vector in VECTORS["objects"]:
        assert_stored(codec_of(Line), Line(**vector["value"]), vector["stored"].encode())


def test_bytes_and_messages() -> None:
    for vector in VECTORS["bytesItems"]:
        data = bytes.fromhex(vector["hex"])
        assert_stored(item_codec_of(bytes), data, data)
        assert_stored(codec_of(bytes), data, data)
    for vector in VECTORS["protobuf"]:
        message = Timestamp(seconds=vector["seconds"], nanos=vector["nanos"])
        assert_stored(codec_of(Timestamp), message, bytes.fromhex(vector["hex"]))


def test_counters() -> None:
    for vector in VECTORS["counters"]:
        assert bytes_of(vector["count"]).hex() == vector["hex"]
        assert number_of(bytes.fromhex(vector["hex"])) == vector["count"]


def test_timers() -> None:
    for vector in VECTORS["timers"]:
        event_us = vector["recordUs"] if vector["clock"] == "processing" else 0
        output_us = vector.get("outputUs", event_us)
        time = TimerTime(CLOCKS[vector["clock"]], vector["atUs"], output_us, "outputUs" in vector)
        assert pack_timer(time).hex() == vector["hex"]
        assert unpack_timer(bytes.fromhex(vector["hex"])) == time
