"""Targets: what people, senders and engines write."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from millstream.dead_letter import envelope_line, envelope_of, read_envelope
from millstream.errors import DamageError
from millstream.extract import Extraction
from millstream_connectors.http.source.records import RequestRefusedError, read_records
from millstream_connectors.postgres.source.changes import SlotChanges, Table
from millstream_connectors.postgres.source.pgoutput import (
    Begin,
    Column,
    NotPgoutputError,
    Relation,
    ReplicatedChange,
    parse,
)
from millstream_connectors.postgres.source.texts import quoted, to_json
from millstream_udf.message_socket import HEADER_BYTES, MessageSocket
from tests.fuzzing.using import Target, use


def envelope(data: bytes) -> None:
    try:
        read = read_envelope(data)
    except ValueError:
        return
    keys = [part.encode() for part in read.keys]
    line = envelope_line(envelope_of(read.value, read.event_time_us, keys, read.headers, read.id or ""))
    again = read_envelope(line.encode())
    assert (again.value, again.event_time_us, again.keys) == (read.value, read.event_time_us, read.keys)


def _envelope_seeds() -> Sequence[bytes]:
    headers = {"h": b"v", "b": b"\xff", "millstream-dead-letter-reason": b"why", "millstream-dead-letter-at": b"p/v/l"}
    return (
        envelope_line(envelope_of(b"value", 1_700_000_000_000_000, [b"k"], headers, "id")).encode(),
        envelope_line(envelope_of(b"\xff", -(2**62), [], {}, "")).encode(),
    )


_EXTRACTIONS = (Extraction(), Extraction(time_field="t", key_fields=("k", "n.k")), Extraction(time_header="x-time"))
_TYPES = ("application/json", "application/x-ndjson", "text/plain")


def http_request(data: bytes) -> None:
    """A line for each header, then the body: behind aiohttp, which has taken the request apart."""
    head, _, body = data.partition(b"\n\n")
    # Bytes of a header that are not UTF-8 come as lone surrogates.
    lines = (line.partition(b":") for line in head.split(b"\n"))
    headers = {name.decode("latin-1").lower(): value.decode("utf-8", "surrogateescape") for name, _, value in lines}
    for kind in _TYPES:
        for extraction in _EXTRACTIONS:
            try:
                records = read_records(body, kind, headers, extraction, now_us=5)
            except RequestRefusedError:
                continue
            if records.frame is not None:
                use(records.frame)


def _http_seeds() -> Sequence[bytes]:
    return (
        b'x-millstream-id:7\nx-millstream-keys:a,b\nx-team:\xff\n\n[{"t": "2024-01-31T08:00:00Z", "k": "a"}, 1]',
        b'x-millstream-id-field:n.k\nx-millstream-event-time:1700000000000\nx-time:2024-01-31\n\n{"n": {"k": 1}}\n{}',
    )


_AVRO = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "n", "type": "long"},
            {"name": "s", "type": ["null", "string"]},
            {"name": "a", "type": {"type": "array", "items": "double"}},
            {"name": "m", "type": {"type": "map", "values": "bytes"}},
        ],
    }
)


@cache
def _avro_decoder() -> Any:
    import pyarrow as pa

    from millstream_reduce.spark.decoding import AvroDecoder, Field

    kinds = (
        ("n", pa.int64()),
        ("s", pa.string()),
        ("a", pa.list_(pa.float64())),
        ("m", pa.map_(pa.string(), pa.binary())),
    )
    return AvroDecoder(tuple(Field(name, kind) for name, kind in kinds), _AVRO)


def avro(data: bytes) -> None:
    import pyarrow as pa

    decoded, malformed = _avro_decoder().decode(pa.array([data, b""], pa.binary()))
    assert all(len(column) == 2 for column in decoded)
    assert malformed in (1, 2)


def _avro_seeds() -> Sequence[bytes]:
    import io

    import fastavro

    stream = io.BytesIO()
    row = {"n": 5, "s": "ü", "a": [1.5, 2.5], "m": {"k": b"v"}}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(_AVRO)), row)
    return (stream.getvalue(),)


@cache
def _text_decoders() -> Sequence[Any]:
    import pyarrow as pa

    from millstream_reduce.spark.decoding import CsvDecoder, Field, JsonDecoder

    fields = (Field("n", pa.int64()), Field("s", pa.string()), Field("d", pa.date32()))
    return JsonDecoder(fields), CsvDecoder(fields[:2], fields)


def value(data: bytes) -> None:
    """JSON and CSV for a query, which Arrow decodes together and we one by one."""
    import pyarrow as pa

    for decoder in _text_decoders():
        decoded, _ = decoder.decode(pa.array([data, data[::-1]], pa.binary()))
        assert all(len(column) == 2 for column in decoded)


def _value_seeds() -> Sequence[bytes]:
    return b'{"n": 5, "s": "x", "d": "2024-01-31"}', b"5,x,2024-01-31"


_PUBLISHED = Relation(
    7, "public", "t", "d", (Column("id", 23, True), Column("list", 1009, False), Column("at", 1184, False))
)


def change(data: bytes) -> None:
    """A message of PostgreSQL's replication, and what becomes of a row of it."""
    with contextlib.suppress(NotPgoutputError):
        message = parse(data)
        if isinstance(message, Relation):
            Table(message, [column.name for column in message.columns], {})
        changes = SlotChanges(0, 0, None)
        changes.tables[7] = Table(_PUBLISHED, ["id"], {})
        changes.begin(Begin(5, 0, 1))
        if isinstance(message, ReplicatedChange):
            made = changes.made(message)
            changes.took()
            assert made is None or made.value.startswith(b'{"op":')
    assert json.loads(quoted(data).decode("utf-8", "replace")) is not None
    assert isinstance(to_json(1009, {})(data), bytes)


def _change_seeds() -> Sequence[bytes]:
    """From a server of version 15."""
    row = b'\0\x03t\0\0\0\x0212t\0\0\0\x09{a,"b",1}t\0\0\0\x162026-11-25 16:33:21+00'
    relation = b"R\0\0@\x01public\0t\0d\0\x02\x01id\0\0\0\0\x17\xff\xff\xff\xff\0a\0\0\0\0\x19\xff\xff\xff\xff"
    return (
        b"I\0\0\0\x07N" + row,
        b"U\0\0\0\x07K\0\x03t\0\0\0\x011nnN\0\x03t\0\0\0\x012un",
        b"D\0\0\0\x07O" + row,
        relation,
        b"B\0\0\0\0\x01\x92P\x88\0\x03\x04\x1b'g\xa0\xec\0\0\x02\xd7",
        b"C\0\0\0\0\0\x01\x92P\x88\0\0\0\0\x01\x92P\xb8\0\x03\x04\x1b'g\xa0\xec",
        b"T\0\0\0\x02\0\0\0@\x01\0\0@\x02",
    )


def hand_over_results(data: bytes) -> None:
    """Arrow from the engine, as it is kept in a file."""
    from millstream_reduce.lane.jobs import WindowResults

    with contextlib.suppress(DamageError):
        WindowResults.decode(data)


def _results_seeds() -> Sequence[bytes]:
    import pyarrow as pa

    from millstream_reduce.lane.jobs import WindowResults

    return (WindowResults(pa.table({"window": pa.array([0, 1], pa.uint32()), "value": [b"a", b"b"]})).encode(),)


def _taken(socket: MessageSocket) -> bytes | None:
    """The next message of what has ended, so that nothing has to wait for it."""
    try:
        socket.receive().send(None)
    except StopIteration as returned:
        message: bytes | None = returned.value
        return message
    raise AssertionError("it waits for more behind the end")


def call_messages(data: bytes) -> None:
    """Messages of a function's socket, in pieces of any size."""
    limit = 1 << 20
    for step in (1, 7, 4096):
        socket, place = MessageSocket(limit), 0
        while place < len(data) and not socket.failed:
            buffer = socket.get_buffer(-1)
            piece = data[place : place + min(step, len(buffer))]
            buffer[: len(piece)] = piece
            socket.buffer_updated(len(piece))
            place += len(piece)
        place = 0
        socket.eof_received()
        while (message := _taken(socket)) is not None:
            assert data[place : place + HEADER_BYTES] == len(message).to_bytes(HEADER_BYTES, "little")
            place += HEADER_BYTES
            assert data[place : place + len(message)] == message
            place += len(message)
        size = int.from_bytes(data[place : place + HEADER_BYTES], "little")
        whole = len(data) - place >= HEADER_BYTES
        assert bool(socket.failed) == (whole and size > limit)
        assert socket.failed or not whole or len(data) - place < HEADER_BYTES + size


def _call_seeds() -> Sequence[bytes]:
    messages = (b"", b"a", b"bc" * 40, b"")
    return (b"".join(len(message).to_bytes(HEADER_BYTES, "little") + message for message in messages), b"\xff" * 8)


TARGETS = {
    "call-messages": Target(call_messages, _call_seeds),
    "envelope": Target(envelope, _envelope_seeds),
    "http-request": Target(http_request, _http_seeds),
    "avro": Target(avro, _avro_seeds),
    "value": Target(value, _value_seeds),
    "change": Target(change, _change_seeds),
    "results": Target(hand_over_results, _results_seeds),
}
