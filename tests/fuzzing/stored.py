"""Targets: what is read back from the broker and from a log."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from millstream.buffers.jetstream.requests import message_headers
from millstream.errors import DamageError, UserError
from millstream.frame import Frame, build_frame
from millstream.ledger.batch import MARK, decode_ids, encode_ids, stored_mark
from millstream.ledger.witness import NAME, merged, name_of, witness_of
from millstream.record import LaneId
from millstream.watermark.store import decode_update
from millstream.wire.ledger.v1 import mark_pb2
from millstream.wire.reduce.v1 import wal_pb2
from millstream.wire.watermark.v1 import ot_pb2
from millstream_connectors.shared.positioned_lane import pack_position, unpack_position
from millstream_reduce.log.damage import DamagedPart
from millstream_reduce.log.entries import EntryError, StoredEntry, entry_buffers, whole_entries
from millstream_reduce.log.recovery import entries_behind
from millstream_reduce.log.segments import read_header
from millstream_reduce.queue_contents import appended_of
from millstream_reduce.values import Location
from millstream_reduce.windows import encoding
from millstream_udf import columns
from tests.fuzzing.using import INPUTS, Target, use
from tests.support.columns import Question, differing

_LANE = LaneId("map", "in-map", 0)


def frame(data: bytes) -> None:
    try:
        read = Frame.decode(data)
    except DamageError:
        return
    try:
        read.check()
    except ValueError:
        return
    use(read)


def _frame_seeds() -> Sequence[bytes]:
    plain = build_frame([b"x" * 20] * 5, array("q", range(5)), ingest_time_us=1, traceparent="00-" + "a" * 52)
    return INPUTS.encode(), plain.encode()


def column(data: bytes) -> None:
    """Columns of every kind, through both implementations of their codec."""
    question = Question(data, 3, 1, 3, (array("I", [2, 0, 1]), array("I", [1, 1])), _column_seeds()[0])
    assert differing(question) == []


def _column_seeds() -> Sequence[bytes]:
    return (
        INPUTS.contents.column,
        INPUTS.keys_column,
        INPUTS.headers_column,
        INPUTS.event_times_column,
        columns.pack_lists([[b"a"], [b"bc"], [b""]]),
        columns.pack_headers([{}, {"a": b"1", "b": b""}, {"a": b"2"}]),
    )


def mark(data: bytes) -> None:
    """A message that holds a mark as its body, and one that has it in a header."""
    for subject, headers in (("p-v.map.0.m.in-map.0", {}), ("x", {MARK: data.decode("latin-1")})):
        with contextlib.suppress(DecodeError, ValueError):
            found = stored_mark(subject, data, headers)
            if found is not None:
                found.SerializeToString()


def _mark_seeds() -> Sequence[bytes]:
    one = mark_pb2.Mark(commit_id=b"c" * 16, epoch=3, owner="o", sequence=9, watermark_us=5)
    one.written.add(edge="e", partition=1, frames=2, records=3, bytes=4)
    one.account.inputs = 3
    one.account.dropped["why"] = 2
    one.read.add(lane="in.0", sequence=4, number=2, commit=7)
    one.reduce.inputs.add(edge="e", sequence=3)
    return one.SerializeToString(), base64.b64encode(one.SerializeToString())


def headers(data: bytes) -> None:
    """Of a stored message, as the broker hands them out."""
    found = message_headers({"hdrs": base64.b64encode(data).decode()})
    witness_of(5, found)
    with contextlib.suppress(DecodeError, ValueError):
        stored_mark("x", b"", found)


def _headers_seeds() -> Sequence[bytes]:
    name = name_of("in-map.0", 17, b"c" * 16)
    mark = base64.b64encode(_mark_seeds()[0]).decode()
    return (f"NATS/1.0\r\n{NAME}: {name}\r\n{MARK}: {mark}\r\n\r\n".encode(),)


def frame_name(data: bytes) -> None:
    witness = witness_of(5, {NAME: data.decode("latin-1")})
    if witness is not None:
        merged([], [witness])


def _name_seeds() -> Sequence[bytes]:
    return (name_of("in-map.0", 17, b"c" * 16).encode(),)


def watermark(data: bytes) -> None:
    try:
        update = decode_update("bucket", "in.0", data)
    except DamageError:
        return
    assert update.inputs is not None
    assert update.outputs is not None
    assert not update.supersedes(update)


def _watermark_seeds() -> Sequence[bytes]:
    entry = ot_pb2.OtEntry(epoch=2, watermark_us=5, idle=True, published_us=9)
    entry.inputs.add(edge="e", partition=0, sequence=3, records=4, bytes=5)
    entry.outputs.add(edge="f", partition=1, sequence=3, records=4, bytes=5)
    return (entry.SerializeToString(),)


def ids(data: bytes) -> None:
    try:
        digests = decode_ids(data)
    except ValueError:
        return
    assert len(digests) % 16 == 0


def _ids_seeds() -> Sequence[bytes]:
    return (*encode_ids(bytes(range(32))), json.dumps(["a", "b"]).encode())


_SEGMENT = Path("/log/0000000000000001.wal")


def _segment_bytes(metas: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(
        bytes(piece) for sequence, (meta, body) in enumerate(metas, 1) for piece in entry_buffers(sequence, meta, body)
    )


def _wal_entries() -> list[wal_pb2.Entry]:
    header = wal_pb2.Entry()
    header.segment.format, header.segment.number, header.segment.log_id = 1, 1, b"l" * 16
    header.segment.inputs.add(edge="e", sequence=4)
    header.segment.checkpoint.open = b"w"
    append = wal_pb2.Entry(durable=1)
    append.append.rows = 3
    append.append.inputs.add(edge="e", sequence=5)
    append.append.late_frames.append(INPUTS.encode())
    hand_over = wal_pb2.Entry(durable=2)
    hand_over.hand_over.number = 1
    window = hand_over.hand_over.windows.add(start_us=0, end_us=10, key=b"k")
    window.pieces.segments.append(1)
    window.pieces.offsets.append(64)
    window.pieces.lengths.append(64)
    return [header, append, hand_over]


def _with_sums(data: bytes) -> bytes:
    """The same, with checksums that are right: what is behind them is reached."""
    mended = bytearray(data)
    offset = 0
    while offset + 40 <= len(mended):
        (length,) = struct.unpack_from("<Q", mended, offset + 8)
        if not 40 <= length <= len(mended) - offset:
            break
        struct.pack_into("<I", mended, offset + 4, zlib.crc32(mended[offset + 8 : offset + length]))
        offset += length
    return bytes(mended)


def log_segment(data: bytes) -> None:
    for segment in (data, _with_sums(data)):
        view = memoryview(segment)
        for entry in whole_entries(view, 0):
            DamagedPart().note(entry, (1, entry.offset), 1, 0, 64)
        try:
            header = read_header(_SEGMENT, view)
        except (DamageError, UserError):
            continue
        with contextlib.suppress(EntryError):
            for entry in entries_behind(view, header):
                entry.message()


def _segment_seeds() -> Sequence[bytes]:
    metas = [(entry.SerializeToString(), b"" if n == 0 else b"body") for n, entry in enumerate(_wal_entries())]
    return (_segment_bytes(metas),)


def log_entry(data: bytes) -> None:
    """What an entry says, once its checksum is right."""
    entry = StoredEntry(1, 0, len(data), memoryview(data), memoryview(b""))
    try:
        message = entry.message()
    except EntryError:
        return
    DamagedPart().note(entry, (1, entry.offset), 1, 0, 64)
    with contextlib.suppress(DamageError):
        appended_of(message.append)


def _entry_seeds() -> Sequence[bytes]:
    return [entry.SerializeToString() for entry in _wal_entries()]


def checkpoint(data: bytes) -> None:
    for decode in (encoding.decode_panes, encoding.decode_slots):
        with contextlib.suppress(DamageError, UserError):
            decode(data, "s")


def _checkpoint_seeds() -> Sequence[bytes]:
    import numpy as np

    places = [Location(1, 64, 128), Location(2, 64, 64)]
    panes = encoding.Panes([3, 4], [1, 2], [(0, 0, 5), (1, 0, 2), (1, 2, 3)], 3, [(3, 1)], [(4, 1, 2)])
    starts, ends, early, seen, kept, pieces = (
        np.array(column, np.int64) for column in ([1, 2], [5, 6], [0, 1], [3, 4], [0, 1], [1, 2])
    )
    slots = encoding.SlotTable(
        starts=starts,
        ends=ends,
        early=early,
        seen=seen,
        kept=kept,
        pieces=pieces,
        keys=[b"k", b"l"],
        triples=np.array([(0, 0, 5), (1, 0, 2), (1, 2, 3)], np.int64),
        floor_us=7,
        named={b"k": 5},
    )
    return encoding.encode_panes("s", 9, places, panes), encoding.encode_slots("s", 9, places, slots)


def position(data: bytes) -> None:
    with contextlib.suppress(DamageError, UserError):
        unpack_position(data, "file", 2, _LANE)


def _position_seeds() -> Sequence[bytes]:
    return (pack_position("file", 2, {"file": "ü\udcff", "at": 4}),)


TARGETS = {
    "frame": Target(frame, _frame_seeds),
    "column": Target(column, _column_seeds),
    "mark": Target(mark, _mark_seeds),
    "headers": Target(headers, _headers_seeds),
    "frame-name": Target(frame_name, _name_seeds),
    "watermark": Target(watermark, _watermark_seeds),
    "ids": Target(ids, _ids_seeds),
    "log-segment": Target(log_segment, _segment_seeds),
    "log-entry": Target(log_entry, _entry_seeds),
    "checkpoint": Target(checkpoint, _checkpoint_seeds),
    "position": Target(position, _position_seeds),
}
