"""Functions with states of the real SDK in this process, as the stream of a lane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from millstream.frame import Frame
from millstream.udf.answers import MapAnswer
from millstream.udf.checks import check_changes, check_times
from millstream.udf.native.messages import entries_message, map_answer_of, states_of
from millstream.udf.native.state_reads import read_of
from millstream.udf.states import DeclaredState, StateEntries, StateReader
from millstream_udf.answering import answer_map, context_of, encode_map
from millstream_udf.defining import define
from millstream_udf.execution import FunctionLane, open_function
from millstream_udf.state_found import Found
from millstream_udf.state_reads import Ask, unpack_found
from millstream_udf.state_specs import StateError
from millstream_udf.wire.udf.v1 import udf_pb2


class KeyedStream:
    """What is asked and answered is encoded as on the wire."""

    calls_max = 8
    takes_arrow = False

    def __init__(self, lane: FunctionLane, hello: udf_pb2.Hello) -> None:
        self._lane = lane
        self._hello = hello
        welcome = udf_pb2.Welcome(states=[spec.message() for spec in lane.definition.states])
        self.states: tuple[DeclaredState, ...] = states_of(welcome, "test")
        self.timer_calls: list[int] = []
        """How many timers each call has had."""

    async def call(self, frame: Frame, **options: Any) -> MapAnswer:
        raise AssertionError("its calls have states")

    async def keyed_call(
        self,
        frame: Frame,
        states: StateEntries,
        *,
        reader: StateReader | None = None,
        alone: bool = False,
        timers: bool = False,
        meanwhile: Callable[[], None] | None = None,
        **options: Any,
    ) -> MapAnswer:
        if meanwhile is not None:
            meanwhile()
        if timers:
            self.timer_calls.append(frame.records)
        call = udf_pb2.SealedMapCall(
            call_id=1, frame=frame.encode(), states=entries_message(states), timers=timers, **options
        )
        ask = None if reader is None else asking(reader)
        data = b"".join(encode_map(await answer_map(self._lane, self._hello, call, ask=ask)))
        answer = map_answer_of(udf_pb2.SealedMapResponse.FromString(data).answer, frame.records, times_allowed=True)
        check_times(answer, frame.event_times_us() if timers else None)
        check_changes(answer, max(states.record_keys) + 1, self.states)
        return answer


def asking(reader: StateReader) -> Ask:
    """Reads that are answered at once."""

    def ask(message: udf_pb2.StateRead) -> Future[Found]:
        read = read_of(udf_pb2.SealedMapResponse(read=message).SerializeToString())
        assert read is not None
        _, found = unpack_found(read.reply(reader))
        answer: Future[Found] = Future()
        if isinstance(found, StateError):
            answer.set_exception(found)
        else:
            answer.set_result(found)
        return answer

    return ask


@asynccontextmanager
async def open_keyed_stream(function: Any) -> AsyncIterator[KeyedStream]:
    definition = define(function, function.__name__)
    hello = udf_pb2.Hello(protocol_version=1, kind=udf_pb2.KIND_MAP, pipeline="p", vertex="map", lane="in-map.0")
    async with open_function(definition, context_of(hello)) as opened:
        yield KeyedStream(opened.lane(), hello)
