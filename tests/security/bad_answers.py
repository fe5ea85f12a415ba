"""A function, a source and a sink that answer badly where a record says how: a program as another author may write it.

Started as `python bad_answers.py map|source|sink`. It speaks the protocol in bytes and uses no SDK's server, so nothing
keeps it from sending what an SDK would not. Beside a file named `mended` it makes no mistake.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from millstream_udf import columns
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2

FIXED = Path("fixed")
BAD = b"bad:"
WELCOME = udf_pb2.Welcome(protocol_version=1, calls_max=4)
RECORDS = 40
"""Of the source."""
EMPTY_OUTPUTS = 5_000_000

Answer = udf_pb2.SealedMapAnswer
Spoil = Callable[[Answer, int], None]


def _values(offsets: list[int], data: bytes) -> bytes:
    return frame_pb2.SealedBytesColumn(offsets=columns.pack_offsets(offsets), data=data).SerializeToString()


def _falling_offsets(answer: Answer, count: int) -> None:
    size = 7 * count
    # Of a single value only the end can be wrong.
    end = size if count > 1 else size + 9
    answer.values = _values([0, *[size + 9] * (count - 1), end], b"x" * size)


def _falling_starts(answer: Answer, count: int) -> None:
    column = frame_pb2.SealedListColumn(starts=columns.pack_offsets([0, *[count + 9] * (count - 1), max(count, 2)]))
    column.items.ParseFromString(columns.pack_bytes([b"k"] * count))
    answer.keys = column.SerializeToString()


def _headers_beyond(answer: Answer, count: int) -> None:
    starts = columns.pack_offsets([0, *[count + 9] * count])
    answer.headers = frame_pb2.SealedHeadersColumn(starts=starts, names=["h"], values=[b"v"]).SerializeToString()


def _many_outputs(answer: Answer, count: int) -> None:
    answer.records = EMPTY_OUTPUTS
    answer.values = frame_pb2.SealedBytesColumn(offsets=bytes(4 * (EMPTY_OUTPUTS + 1))).SerializeToString()
    answer.parents = bytes(4 * EMPTY_OUTPUTS)


def _set(**fields: Callable[[int], Any]) -> Spoil:
    def spoil(answer: Answer, count: int) -> None:
        for name, value in fields.items():
            setattr(answer, name, value(count))

    return spoil


def _outcome(answer: Answer, count: int) -> None:
    answer.outcomes.add(index=count + 5, result=udf_pb2.Outcome.RESULT_DROP)


SPOILS: dict[str, Spoil] = {
    "offsets": _falling_offsets,
    "starts": _falling_starts,
    "headers": _headers_beyond,
    "keys": _set(keys=lambda count: columns.pack_lists([[b"\xff\xfe"]] * count)),
    "tags": _set(tags=lambda count: columns.pack_lists([[b"\xc3"]] * count)),
    "parents": _set(parents=lambda count: columns.pack_offsets([count + 3] * count)),
    "count": _set(records=lambda count: count + 1),
    "times": _set(event_times_us=lambda count: columns.pack_times([2**63 - 1] * count)),
    "outcome": _outcome,
    "many": _many_outputs,
}
"""How an answer to so many records is spoilt, by the word behind `BAD`."""


def _spoilt(values: list[bytes], call_id: int) -> Answer:
    answer = Answer(call_id=call_id, records=len(values), values=columns.pack_bytes(values))
    bad = next((value for value in values if value.startswith(BAD)), None)
    if bad is not None and not FIXED.exists():
        SPOILS[bad.removeprefix(BAD).decode()](answer, len(values))
    return answer


def _map(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    next(requests)
    yield udf_pb2.SealedMapResponse(welcome=WELCOME).SerializeToString()
    for data in requests:
        call = udf_pb2.MapRequest.FromString(data).call
        values = columns.unpack_bytes(call.frame.values.SerializeToString())
        yield udf_pb2.SealedMapResponse(answer=_spoilt(values, call.call_id)).SerializeToString()


def _sink(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    next(requests)
    yield udf_pb2.SinkResponse(welcome=WELCOME).SerializeToString()
    for data in requests:
        call = udf_pb2.SinkRequest.FromString(data).call
        values = columns.unpack_bytes(call.frame.values.SerializeToString())
        answer = udf_pb2.SinkAnswer(call_id=call.call_id)
        if any(value.startswith(BAD) for value in values):
            answer.outcomes.add(index=len(values), result=udf_pb2.Outcome.RESULT_DROP)
        else:
            with Path("taken").open("ab") as taken:
                taken.write(b"".join(value + b"\n" for value in values))
        yield udf_pb2.SinkResponse(answer=answer).SerializeToString()


class _Source:
    """Gives records from a position on; the first two batches do not fit, then one in the middle."""

    def __init__(self) -> None:
        self._bad = {0: 2, 10: 1}

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        yield udf_pb2.SourceResponse(welcome=WELCOME).SerializeToString()
        position = int(udf_pb2.SourceRequest.FromString(next(requests)).open.position or b"0")
        for data in requests:
            request = udf_pb2.SourceRequest.FromString(data)
            if not request.HasField("read"):
                continue
            numbers = range(position, min(RECORDS, position + 10))
            bad = self._bad.get(position, 0)
            if bad:
                self._bad[position] = bad - 1
            position = numbers.stop
            values = [b"%d" % number for number in numbers]
            if values and numbers.start == 20:
                values[3] = BAD + b"sink"
            frame = frame_pb2.SealedFrame(
                values=_values([0, *[99] * len(values)], b"") if bad else columns.pack_bytes(values),
                event_times_us=columns.pack_times(range(len(values))),
            )
            batch = udf_pb2.SourceBatch(position=b"%d" % position, ended=position == RECORDS)
            batch.frame.ParseFromString(frame.SerializeToString())
            yield udf_pb2.SourceResponse(batch=batch).SerializeToString()


def main() -> None:
    kind = sys.argv[1]
    kinds = {"map": udf_pb2.KIND_MAP, "sink": udf_pb2.KIND_SINK, "source": udf_pb2.KIND_SOURCE}
    described = udf_pb2.DescribeResponse(protocol_version=1, kinds=[kinds[kind]], language="bytes")
    methods: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(lambda request, context: described.SerializeToString()),
        "Map": grpc.stream_stream_rpc_method_handler(_map),
        "Sink": grpc.stream_stream_rpc_method_handler(_sink),
        "Source": grpc.stream_stream_rpc_method_handler(_Source().serve),
    }
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", 64 << 20)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("millstream.udf.v1.Udf", methods),))
    server.add_insecure_port(f"unix:{os.environ['MILLSTREAM_UDF_SOCKET']}")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server.start()
    ended.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
