"""Targets: what functions, sources and sinks answer."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from millstream import codes
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream.udf import checks
from millstream.udf.answers import MapAnswer
from millstream.udf.native import client, messages, reduce_parts
from millstream_connectors.shared.kept import TargetPosition
from millstream_connectors.user_defined.sink import positions
from millstream_connectors.user_defined.sink.outcomes import failures_of
from millstream_udf import arrow_values, columns
from millstream_udf.groups import Group
from millstream_udf.values import Window
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.mapping import MapStage
from millstream_vertex.stage import StageInput
from millstream_writer.routing import Route, Router
from millstream_writer.sink import SinkFailure
from tests.fuzzing.using import INPUTS, Target, use

_OUTCOME = udf_pb2.Outcome


class _OneAnswer:
    """A stream that gives one answer as the checks let it pass, and then that nothing came of the rest."""

    calls_max = 1
    takes_arrow = False

    def __init__(self, answer: MapAnswer) -> None:
        self._answers = [answer]

    async def call(self, frame: Frame, **_: Any) -> MapAnswer:
        return self._answers.pop() if self._answers else MapAnswer()


def _at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing but turns."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as over:
            return over.value


_POLICY = RetryPolicy(Backoff(0.0, steps=1), OnFailure.DEAD_LETTER, asked_max=0)


def map_answer(data: bytes) -> None:
    try:
        _, fit = client.map_answer(data, outputs_max=100, times_allowed=True, arrow_allowed=True)
        answer = fit(INPUTS.records)
    except (ValueError, DecodeError):
        return
    stage = MapStage(
        _OneAnswer(answer), _POLICY, where="p/map/in-map.0", has_dead_letter=True, needs_tags=True, rng=random.Random(1)
    )
    try:
        mapped = _at_once(stage.on_frame(StageInput(INPUTS, 0)))
        output = mapped.frame and mapped.frame.with_values()
    except UdfError as error:
        if error.code != codes.FUNCTION_PROTOCOL:
            raise
        return
    account = mapped.account
    assert account.difference == 0
    if output is not None:
        output.check()
        use(output)
        Router([Route("e", 2, lambda tags: b"t" in tags)]).route(output, mapped.tags)


def _map_seeds() -> Sequence[bytes]:
    whole = udf_pb2.SealedMapAnswer(call_id=1, records=3, values=columns.pack_bytes([b"a", b"", b"c"]))
    rich = udf_pb2.SealedMapAnswer(
        call_id=2,
        records=2,
        values=columns.pack_bytes([b"a", b"b"]),
        parents=columns.pack_offsets([0, 2]),
        keys=columns.pack_lists([[b"k", "ü".encode()], []]),
        tags=columns.pack_lists([[b"t"], [b"t"]]),
        headers=columns.pack_headers([{"h": b"v"}, {"i": b"", "j": b"w"}]),
        event_times_us=columns.pack_times([1, 2]),
        outcomes=[_OUTCOME(index=1, result=_OUTCOME.RESULT_ERROR, reason="r\nmore", detail="d")],
    )
    failed = udf_pb2.SealedMapAnswer(call_id=3, error="all of it")
    rows = pa.RecordBatch.from_pydict({"a": [1, None, 3], "b": ["x", "y", None]})
    typed = udf_pb2.SealedMapAnswer(call_id=4, records=3, arrow=arrow_values.packed(rows))
    return [udf_pb2.SealedMapResponse(answer=one).SerializeToString() for one in (whole, rich, failed, typed)]


def parts(data: bytes) -> None:
    """Counting fields before a large answer is decoded; what can be decoded can be counted."""
    try:
        counted = 1000 - checks.count_parts(memoryview(data), (2,), 1000)
    except ValueError:
        return
    assert counted <= len(data)


def sink_answer(data: bytes) -> None:
    try:
        _, fit = client.sink_answer(data)
        answer = fit(3)
    except (ValueError, DecodeError):
        return
    assert all(0 <= failure.index < 3 for failure in failures_of(answer, 3))


def _sink_seeds() -> Sequence[bytes]:
    outcomes = [
        _OUTCOME(index=0, result=_OUTCOME.RESULT_FALLBACK, reason="r"),
        _OUTCOME(index=2, result=_OUTCOME.RESULT_RETRY, delay_us=10),
    ]
    answers = (udf_pb2.SinkAnswer(call_id=1, outcomes=outcomes), udf_pb2.SinkAnswer(call_id=2, error="e"))
    return [udf_pb2.SinkResponse(answer=one).SerializeToString() for one in answers]


def sink_position(data: bytes) -> None:
    try:
        found = positions.position_of(data)
    except ValueError:
        return
    if found is not None:
        assert positions.position_of(positions.text_of(found)) == _shortened(found)


def _shortened(stored: positions.StoredPosition) -> positions.StoredPosition:
    """As the next position has it."""
    refused = {at: replace(failure, detail=failure.detail[:300]) for at, failure in stored.refused.items()}
    return stored._replace(refused=refused)


def _position_seeds() -> Sequence[bytes]:
    kept = TargetPosition("run", 7, "owner", Position(3, 4), "frame")
    refused = {
        Position(2, 1): SinkFailure(0, "r", retryable=False, drop=True),
        Position(2, 5): SinkFailure(0, "r", retryable=False, fallback=True, detail="d"),
        Position(2, 7): SinkFailure(0, "r", retryable=False, code=codes.RECORD_MISFIT),
    }
    return [positions.text_of(positions.StoredPosition(kept, some)) for some in ({}, refused)]


def source_batch(data: bytes) -> None:
    try:
        checks.check_parts(data, (2, 1, 5))
        batch = messages.batch_of(udf_pb2.SourceResponse.FromString(data).batch, 10)
    except (ValueError, DecodeError):
        return
    if batch.frame is not None:
        batch.frame.check()
        use(batch.frame)


def _source_seeds() -> Sequence[bytes]:
    batch = udf_pb2.SourceBatch(position=b"here", pending=3)
    batch.frame.ParseFromString(INPUTS.encode())
    batches = (batch, udf_pb2.SourceBatch(ended=True), udf_pb2.SourceBatch(error="away"))
    return [udf_pb2.SourceResponse(batch=one).SerializeToString() for one in batches]


_GROUPS = [Group(Window(0, 10), (str(number),)) for number in range(4)]


def reduce_answer(data: bytes) -> None:
    try:
        checks.check_parts(data, (2,))
        answer = udf_pb2.SealedReduceResponse.FromString(data).answer
        reduce_parts.check_reduce_groups(answer, len(_GROUPS))
        reduce_parts.check_reduce_answer(answer)
    except (ValueError, DecodeError):
        return
    decoded = reduce_parts.decode_answer(answer, _GROUPS[: len(answer.counts)])
    assert len(decoded.groups) == len(decoded.counts)
    assert len(decoded.results) == sum(decoded.counts)


def _reduce_seeds() -> Sequence[bytes]:
    answer = udf_pb2.SealedReduceAnswer(
        counts=[1, 2, 0],
        values=columns.pack_bytes([b"a", b"b", b"c"]),
        keys=columns.pack_lists([[b"k"], [], [b"k", b"l"]]),
        tags=columns.pack_lists([[b"t"], [], []]),
        headers=columns.pack_headers([{"h": b"v"}, {}, {}]),
        failures=[udf_pb2.GroupFailure(index=2, error="e", detail="d")],
        unfinished=True,
    )
    return [udf_pb2.SealedReduceResponse(answer=answer).SerializeToString()]


TARGETS = {
    "map-answer": Target(map_answer, _map_seeds),
    "parts": Target(parts, _map_seeds),
    "sink-answer": Target(sink_answer, _sink_seeds),
    "sink-position": Target(sink_position, _position_seeds),
    "source-batch": Target(source_batch, _source_seeds),
    "reduce-answer": Target(reduce_answer, _reduce_seeds),
}
