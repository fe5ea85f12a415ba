"""Targets: values in the encodings of `format`, both ways."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from millstream_connectors.shared.formats import avro, avro_writing, protobuf
from millstream_connectors.shared.formats.registry import Schema
from tests.fuzzing.using import Target
from tests.support.protobuf_schemas import ORDERS, serialized

_AVRO = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "n", "type": ["null", "long", "string"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "o", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "next", "type": ["null", "All"]},
    ],
}
_VALUE = {"n": "x", "d": "-1.50", "t": "2024-01-31T08:00:00.123Z", "o": "01:02:03", "m": {"a": [1.5]}, "next": None}
_ORDER = {"id": "5", "customer": "c", "state": "PAID", "lines": [{"sku": "a"}], "at": "2024-01-31T08:00:00Z"}

Both = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


@cache
def _avro() -> Both:
    known = avro.parsed(Schema("AVRO", json.dumps(_AVRO)))
    return avro_writing.encoder(known), avro.decoder(known, None)


@cache
def _protobuf() -> Both:
    known = protobuf.parsed(Schema("PROTOBUF", serialized(ORDERS)))
    return protobuf.encoder(known, None), protobuf.decoder(known)


def _both_ways(encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes], data: bytes) -> None:
    """What is read is JSON. Of what is written, a time may be one that no day has."""
    with contextlib.suppress(ValueError):
        json.loads(decode(data))
    with contextlib.suppress(ValueError):
        json.loads(decode(encode(data)))


def avro_value(data: bytes) -> None:
    _both_ways(*_avro(), data)


def protobuf_value(data: bytes) -> None:
    _both_ways(*_protobuf(), data)


def _seeds(both: Both, value: Any) -> Sequence[bytes]:
    text = json.dumps(value).encode()
    return text, both[0](text)


TARGETS = {
    "avro-value": Target(avro_value, lambda: _seeds(_avro(), _VALUE)),
    "protobuf-value": Target(protobuf_value, lambda: _seeds(_protobuf(), _ORDER)),
}
