"""A source written by the user, for one lane.

Above it: the server and the test kit. Below it: a user's class. It does not know gRPC.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from millstream_udf import columns
from millstream_udf.cancellation import result_of_call
from millstream_udf.context import CURRENT, Context
from millstream_udf.failures import FAILURES, error_text, failure
from millstream_udf.misfits import BadOutput
from millstream_udf.outputs import fault_of_record
from millstream_udf.outside_loop import call_plainly
from millstream_udf.typed_values import JSON, Encoder
from millstream_udf.values import Batch, Record
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2


class SourceLane:
    """One instance of the user's class, opened at a position. All methods are called sequentially."""

    def __init__(self, target: Callable[[], Any], context: Context, encode: Encoder = JSON) -> None:
        """`target`: the class. `encode`: for values that are neither bytes nor text."""
        self._target = target
        self._source: Any = None
        """The instance; None before it is opened."""
        self._context = context
        self._encode = encode

    async def open(self, request: udf_pb2.SourceOpen) -> None:
        """Raises what the user's class or its `open` raises; the stream then fails."""
        CURRENT.set(self._context)
        self._source = call_plainly(self._target)
        await self._call("open", request.position, request.partition, request.partitions)

    async def read(self, request: udf_pb2.SourceRead) -> udf_pb2.SourceBatch:
        """Never raises what the function raises: the result of a failed read has an `error`."""
        CURRENT.set(self._context)
        try:
            batch = await result_of_call(
                self._source.read, self._context, request.records_max, request.timeout_us / 1_000_000
            )
            if not isinstance(batch, Batch):
                raise BadOutput(f"read must return a Batch, not {type(batch).__name__}")
            if len(batch.records) > request.records_max:
                raise BadOutput(
                    f"read returned {len(batch.records)} records, but at most {request.records_max} were requested"
                )
            answer = udf_pb2.SourceBatch(position=_position(batch.position), ended=batch.ended, pending=batch.pending)
            if batch.records:
                answer.frame.MergeFromString(frame_of(batch.records, self._encode))
            return answer
        except FAILURES as error:
            return udf_pb2.SourceBatch(error=error_text(failure(error)))

    async def committed(self, request: udf_pb2.SourceCommitted) -> None:
        """Raises what the user's `committed` raises; the stream then fails, and is opened again."""
        await self._call("committed", request.position)

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, name: str, *arguments: Any) -> None:
        CURRENT.set(self._context)
        method = getattr(self._source, name, None)
        if method is not None:
            await result_of_call(method, *arguments)


def frame_of(records: Sequence[Record[Any]], encode: Encoder = JSON) -> bytes:
    """An encoded frame of at least one record. Raises `BadOutput` with the record that cannot be sent, and the
    reason."""
    for number, record in enumerate(records):
        if not isinstance(record, Record):
            raise BadOutput(f"a Batch contains Records, not {type(record).__name__}")
        keys: object = record.keys
        if isinstance(keys, str):
            # Its characters would be interpreted as the parts of a key.
            raise BadOutput(f"record {number} of the batch: {fault_of_record(record)}")
    try:
        return _encoded(records, encode)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        # The record is searched for only now, so that other calls have no overhead.
        raise _bad(records) or error from None


def _encoded(records: Sequence[Record[Any]], encode: Encoder) -> bytes:
    times = array("q", [record.event_time_us for record in records])
    ids = [record.id for record in records if record.id is not None]
    if ids and len(ids) != len(records):
        raise BadOutput("either all records of a batch have an id or none")
    return frame_pb2.SealedFrame(
        info=frame_pb2.FrameInfo(records=len(records), event_time_min_us=min(times), event_time_max_us=max(times)),
        values=columns.pack_bytes([_bytes_of(record.value, encode) for record in records]),
        event_times_us=columns.pack_times(times),
        keys=columns.pack_lists([[part.encode() for part in record.keys] for record in records]),
        headers=columns.pack_headers([record.headers for record in records]),
        ids=columns.pack_bytes([item.encode() for item in ids]) if ids else b"",
    ).SerializeToString()


def _bytes_of(value: Any, encode: Encoder) -> Any:
    """Text and objects are accepted as from a map."""
    if isinstance(value, str):
        return value.encode()
    return encode.one(value) if encode.takes(type(value)) else value


def _bad(records: Sequence[Record[Any]]) -> BadOutput | None:
    for number, record in enumerate(records):
        if (fault := fault_of_record(record)) is not None:
            return BadOutput(f"record {number} of the batch: {fault}")
    return None


def _position(position: object) -> bytes:
    if isinstance(position, bytes):
        return position
    raise BadOutput(f"a position must be bytes, not {type(position).__name__}; for a number use str(n).encode()")
