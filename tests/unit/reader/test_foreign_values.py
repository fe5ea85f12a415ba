"""What servers and senders put into messages never ends a lane: a source makes a record of it, or says why not."""

from __future__ import annotations

import ast
import json
from array import array
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message as KafkaMessage
from google.protobuf.timestamp_pb2 import Timestamp
from pamqp import encode
from pamqp.commands import Basic
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader

import millstream_connectors
from millstream.extract import EPOCH_MS, EPOCH_NS
from millstream.frame import build_frame
from millstream.nats.client import Client, header_bytes
from millstream.nats.pulling import origin_of
from millstream_connectors.jetstream.source import JetStreamSourceLane
from millstream_connectors.kafka.source.runs import RunBatch, runs_of
from millstream_connectors.postgres.source.pgoutput import Begin, NotPgoutputError, parse
from millstream_connectors.pubsub.source import message_of as pubsub_message
from millstream_connectors.pulsar.source.messages import arrived
from millstream_connectors.rabbitmq.decoding import accept_any_content
from millstream_connectors.rabbitmq.source.queue import message_of as rabbit_message
from millstream_connectors.redis_streams.source.entries import Entry, EntryId, NotReadableError, read_entry
from millstream_connectors.sqs.source import message_of as sqs_message

NOW_S = 1_700_000_000
TIMES = [
    0,
    1,
    -1,
    NOW_S,
    NOW_S * 10**3,
    NOW_S * 10**6,
    NOW_S * 10**9,
    2**53,
    2**62,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**90,
]

Decoded = tuple[int, str]
"""An event time, and what is wrong with the given one."""


def _kafka(given: int) -> Decoded:
    (run,) = runs_of([KafkaMessage("t", 0, 5, b"k", b"v", [("h", b"x")], None, (1, min(given, 2**63 - 1)), 0.0, 1)])
    if run.fault:
        return 0, run.fault
    taken = RunBatch(0)
    taken.add(run, 1)
    frame = taken.frame()
    assert frame is not None
    return frame.event_time_min_us, ""


def _redis(fields: Callable[[int], list[bytes]], *, whole: bool, by_id: bool) -> Callable[[int], Decoded]:
    def decode(given: int) -> Decoded:
        try:
            read = read_entry(Entry(EntryId(given if by_id else 1, 0), fields(given)), whole=whole)
        except NotReadableError as error:
            return 0, str(error)
        return read.event_time_us, ""

    return decode


def _pulsar(given: int) -> Decoded:
    place = SimpleNamespace(ledger_id=lambda: 1, entry_id=lambda: 2, batch_index=lambda: -1)
    message = SimpleNamespace(
        event_timestamp=lambda: given,
        publish_timestamp=lambda: given,
        properties=lambda: {"a": "b"},
        partition_key=lambda: "k",
        data=lambda: b"v",
        message_id=lambda: place,
    )
    found = arrived("t", message)
    return found.time_us, found.fault


def _sqs(given: int) -> Decoded:
    found = sqs_message({"ReceiptHandle": "h", "MessageId": "m", "Attributes": {"SentTimestamp": str(given)}})
    return found.time_us, found.fault


def _pubsub(given: int) -> Decoded:
    seconds = min(max(given, -(2**63)), 2**63 - 1)
    message = SimpleNamespace(
        attributes={}, ordering_key="", message_id="m", data=b"v", publish_time=Timestamp(seconds=seconds)
    )
    found = pubsub_message(SimpleNamespace(message=message, ack_id="a", delivery_attempt=1), None)
    return found.time_us, found.fault


def _rabbit(given: int) -> Decoded:
    # As a publisher sends it, through the client's own decoder.
    accept_any_content()
    flags, sent = (1 << 6).to_bytes(2, "big"), (given % 2**64).to_bytes(8, "big")
    head = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + flags + sent
    header = _header(b"\2\0\1" + len(head).to_bytes(4, "big") + head + b"\xce")
    found = rabbit_message(_delivered(header.properties), 0)
    return found.time_us, found.fault


def _header(data: bytes) -> Any:
    return unmarshal(data)[2]


def _delivered(properties: Any) -> Any:
    delivery = SimpleNamespace(routing_key="q", delivery_tag=1, redelivered=False)
    return SimpleNamespace(header=SimpleNamespace(properties=properties), delivery=delivery, body=b"v")


def _jetstream(given: int) -> Decoded:
    lane = JetStreamSourceLane.__new__(JetStreamSourceLane)
    lane._arrived = deque()
    sent: Any = SimpleNamespace(subject="a", headers=None, data=b"v")
    lane._on_message(sent, origin_of(f"$JS.ACK.s.c.1.7.1.{given}.0"))
    (message,) = lane._arrived
    return message.time_us, message.fault


def _postgres(given: int) -> Decoded:
    given = min(max(given, -(2**63)), 2**63 - 1)
    try:
        begin = parse(b"B" + bytes(8) + given.to_bytes(8, "big", signed=True) + bytes(4))
    except NotPgoutputError as error:
        return 0, str(error)
    assert isinstance(begin, Begin)
    return begin.time_us, ""


TIMED: dict[str, Callable[[int], Decoded]] = {
    "kafka": _kafka,
    "redis_streams": _redis(lambda given: [b"a", b"b"], whole=False, by_id=True),
    "redis_streams: record by its id": _redis(lambda given: [b"value", b"b"], whole=True, by_id=True),
    "redis_streams: record by its field": _redis(
        lambda given: [b"value", b"b", b"eventTime", str(given).encode()], whole=True, by_id=False
    ),
    "pulsar": _pulsar,
    "sqs": _sqs,
    "pubsub": _pubsub,
    "rabbitmq": _rabbit,
    "jetstream": _jetstream,
    "postgres": _postgres,
}
OTHERS = {
    "file": "by `Extraction`, as tests/unit/test_extract.py has it",
    "http": "by `Extraction` and its own header, as tests/contract/sources/test_http.py has it",
    "http_poll": "the time of reading, or by `Extraction`",
    "sql": "the time of reading, or by `Extraction`",
    "sse": "the time of arrival, or by `Extraction`",
    "websocket": "the time of arrival, or by `Extraction`",
    "mqtt": "the time of arrival, or by `Extraction`",
    "nats": "the time of arrival, or by `Extraction`",
    "delta": "the time of reading, or by `Extraction`",
    "iceberg": "the time of reading, or by `Extraction`",
    "user_defined": "a user's function, whose frames are checked",
    "generator": "its own clock",
}
"""Sources whose messages have no times of their own."""


def test_every_source_is_in_one_of_the_tables() -> None:
    (folder,) = millstream_connectors.__path__
    names = [path.parent.name for path in Path(folder).glob("*/connector.py")]
    kinds = {name for name in names if hasattr(import_module(f"millstream_connectors.{name}.connector"), "SOURCE")}
    assert kinds == {name.partition(":")[0] for name in TIMED} | set(OTHERS)


@pytest.mark.parametrize("decode", TIMED.values(), ids=TIMED)
def test_a_time_of_any_size_is_an_event_time_or_is_named(decode: Callable[[int], Decoded]) -> None:
    faults = 0
    for given in TIMES:
        time_us, fault = decode(given)
        faults += bool(fault)
        # Both ways the batch can be made.
        assert build_frame([b"v"], array("q", [time_us]), ingest_time_us=0).encode()
        if not fault:
            datetime.fromtimestamp(time_us / 1_000_000, UTC)
    assert 0 < faults < len(TIMES)


@pytest.mark.parametrize(
    ("parse_time", "given", "said"),
    [
        (
            EPOCH_MS,
            NOW_S * 10**9,
            "1700000000000000000 milliseconds since 1970 .* In nanoseconds it is 2023-11-14T22:13",
        ),
        (EPOCH_MS, NOW_S * 10**6, "In microseconds it is 2023-11-14T22:13:20Z"),
        (EPOCH_NS, 2**90, r"is not in the years 1 to 9999; is the unit right\?$"),
    ],
)
def test_a_message_says_in_which_unit_a_time_is_likely(
    parse_time: Callable[[object], int], given: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parse_time(given)


DEEP = 100_000
DEEP_HEADERS = 2000


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        (b"\4deepA" + (5 * DEEP_HEADERS).to_bytes(4, "big"), "nested too deep"),
        (b"\1aZ", "Unknown type"),
        (b"\1\xffV", "codec can't decode"),
    ],
)
def test_headers_of_any_content_are_headers_or_are_named(headers: bytes, fault: str) -> None:
    accept_any_content()
    if "deep" in fault:
        headers += b"".join(b"A" + (5 * level).to_bytes(4, "big") for level in reversed(range(DEEP_HEADERS)))
    known = b"\5knownS\0\0\0\1v"
    table = known + headers
    head = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + (1 << 13).to_bytes(2, "big")
    head += len(table).to_bytes(4, "big") + table
    header = _header(b"\2\0\1" + len(head).to_bytes(4, "big") + head + b"\xce")
    found = rabbit_message(_delivered(header.properties), 0)
    assert fault in found.fault
    assert found.headers["known"] == b"v"


def test_short_texts_keep_their_bytes() -> None:
    accept_any_content()
    wanted = Basic.Properties(message_id="m", content_type="text/plain", headers={"a": "é", "n": 7})
    header = _header(marshal(ContentHeader(0, 1, wanted), 1))
    found = rabbit_message(_delivered(header.properties), 9)
    assert (found.record_id, found.time_us, found.fault) == ("m", 9, "")
    assert {name: found.headers[name] for name in ("a", "n", "Content-Type")} == {
        "a": "é".encode(),
        "n": b"7",
        "Content-Type": b"text/plain",
    }
    data = encode.by_type("XX", "shortstr").replace(b"XX", b"\xff\xfe")
    header = _header(_with_property(7, data))
    assert rabbit_message(_delivered(header.properties), 0).record_id.encode(errors="surrogateescape") == b"\xff\xfe"


def _with_property(bit: int, data: bytes) -> bytes:
    head = b"\0\x3c\0\0" + (1).to_bytes(8, "big") + (1 << bit).to_bytes(2, "big") + data
    return b"\2\0\1" + len(head).to_bytes(4, "big") + head + b"\xce"


def test_headers_that_are_not_utf_8_keep_their_bytes() -> None:
    lines = [b"one: \xff", b"other: \xfe", "text: \u00e9".encode(), b"empty:", b"no header", b"\xff: x", b"a: b: \xa0 "]
    found = {name: header_bytes(text) for name, text in Client._parse_header_lines(b"\r\n".join(lines)).items()}
    assert found == {"one": b"\xff", "other": b"\xfe", "text": "\u00e9".encode(), "empty": b"", "a": b"b: \xa0"}
    assert Client._parse_header_lines("a: \u00e9".encode()) == {"a": "\u00e9"}


def test_two_keys_or_headers_of_an_entry_never_become_one() -> None:
    keys = [b'["a","\\ud800"]', b'["a","\\ud801"]', b'["a","?"]', b"\xff", b"ff", b"\\\\xff"]
    read = [read_entry(Entry(EntryId(1, 0), [b"value", b"v", b"key", key]), whole=True).keys for key in keys]
    assert len(set(read)) == len(keys)
    with pytest.raises(NotReadableError, match="name of a header"):
        read_entry(Entry(EntryId(1, 0), [b"value", b"v", b"header.\xff", b"1", b"header.\xfe", b"2"]), whole=True)


BUILDS_NO_NESTED_VALUES = {
    "millstream_connectors.delta.client": "its client is in Rust, and has a limit",
    "millstream_connectors.shared.objects.stores": "its client is in Rust, and has a limit",
    "millstream_connectors.postgres.client": "rows of plain columns",
    "millstream_connectors.pulsar.client": "its client is in C++",
    "millstream_connectors.sql.client": "rows of plain columns",
}


@pytest.mark.slow
def test_an_answer_of_any_depth_is_a_failure_of_its_server() -> None:
    root = Path(millstream_connectors.__path__[0]).parent
    found = {}
    for path in root.glob("millstream_connectors/**/*.py"):
        # To import them would take seconds.
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAILURES":
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                found[name] = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    assert len(found) > 5
    bare = {name for name, failures in found.items() if not failures & {"RecursionError", "RuntimeError"}}
    assert bare == BUILDS_NO_NESTED_VALUES.keys()


def test_a_key_of_any_depth_is_a_key() -> None:
    for key in (b"[" * DEEP, json.dumps(["a", "b"]).encode(), b"\xff"):
        read = read_entry(Entry(EntryId(1, 0), [b"value", b"v", b"key", key]), whole=True)
        assert read.keys
