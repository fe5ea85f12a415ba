"""A connection of the native protocol: gRPC to a unix socket or another machine.

Above it: `millstream.udf.function`. Below it: `millstream.udf.calls`, and gRPC. It handles the messages of Map, Sink
and Source; it does not depend on the process behind the address, or on retry policies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from millstream import codes
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer, SinkAnswer
from millstream.udf.calls import CallStream, Dialect, Read, open_call_stream
from millstream.udf.checks import check_changes, check_times
from millstream.udf.lives import Lives
from millstream.udf.metrics import FunctionMetrics
from millstream.udf.native.messages import (
    ANSWER,
    MAP_COLUMNS,
    calls_allowed,
    decoded,
    description_of,
    entries_message,
    hello_of,
    map_answer_of,
    request_of,
    sink_answer_of,
    states_of,
    tables_of,
    update_message,
)
from millstream.udf.native.metrics_stream import following_metrics
from millstream.udf.native.position_sink_stream import open_position_sink_stream
from millstream.udf.native.service import CHANNEL_OPTIONS, SERVICE
from millstream.udf.native.source_stream import open_source_stream
from millstream.udf.native.state_reads import read_of
from millstream.udf.native.wire import calls_socket_of, open_calls_wire
from millstream.udf.pieces import PieceByPiece, PieceMisfitError, PiecesLostError
from millstream.udf.protocol import ClientTls, Connection, Description, NoAnswerError, StreamName
from millstream.udf.settings import NO_SETTINGS, FunctionSettings
from millstream.udf.states import DeclaredState, StateEntries, StateReader, TableUpdate
from millstream.udf.streams import MapStream, PositionSinkStream, SinkStream, SourceStream, StreamedMapStream
from millstream_udf.fields import without_large
from millstream_udf.wire.udf.v1 import udf_pb2

_Answer = TypeVar("_Answer")
_Made = TypeVar("_Made")
_Request = type[udf_pb2.SealedMapRequest] | type[udf_pb2.SealedSinkRequest]
_Response = type[udf_pb2.SealedMapResponse] | type[udf_pb2.SinkResponse]
_Call = type[udf_pb2.SealedMapCall] | type[udf_pb2.SealedSinkCall]


class NativeConnection(Connection):
    """See `Connection`. Made by `open_connection`."""

    def __init__(self, channel: grpc.aio.Channel, target: str, lives: Lives) -> None:
        self._channel = channel
        self._target = target
        self._lives = lives
        self._settings = NO_SETTINGS
        """What each stream hands over."""

    def hand_over(self, settings: FunctionSettings) -> None:
        self._settings = settings

    def following_metrics(self, metrics: FunctionMetrics, *, to_its_end: bool) -> AbstractAsyncContextManager[None]:
        return following_metrics(self._channel, self._target, metrics, to_its_end=to_its_end)

    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        method: Any = self._channel.unary_unary(f"{SERVICE}/Describe")
        try:
            return description_of(await method(b"", timeout=timeout_s, wait_for_ready=wait))
        except grpc.aio.AioRpcError as error:
            raise NoAnswerError(f"{error.code().name}: {error.details()}") from error

    def open_map(
        self, kind: FunctionKind, name: StreamName, *, outputs_max: int, may_return_arrow: bool = False
    ) -> AbstractAsyncContextManager[MapStream]:
        make = partial(_MapStream, transforms=kind is FunctionKind.SOURCE_TRANSFORM)
        return self._open_map(kind, name, make, outputs_max=outputs_max, may_return_arrow=may_return_arrow)

    def open_streamed_map(
        self, name: StreamName, *, outputs_max: int
    ) -> AbstractAsyncContextManager[StreamedMapStream]:
        make = partial(_StreamedMapStream, outputs_max=outputs_max)
        return self._open_map(FunctionKind.MAP, name, make, outputs_max=outputs_max, streaming=True)

    def _open_map(
        self,
        kind: FunctionKind,
        name: StreamName,
        make: Callable[[CallStream[MapAnswer], _Call, _Stated], _Made],
        *,
        outputs_max: int,
        may_return_arrow: bool = False,
        streaming: bool = False,
    ) -> AbstractAsyncContextManager[_Made]:
        return self._open_calls(
            "Map",
            name,
            hello_of(
                kind,
                name,
                calls_socket=bool(calls_socket_of(self._target)),
                may_return_arrow=may_return_arrow,
                answers_reads=True,
                streaming=streaming,
                settings=self._settings,
            ),
            request=udf_pb2.SealedMapRequest,
            response=udf_pb2.SealedMapResponse,
            call=udf_pb2.SealedMapCall,
            answer=partial(
                map_answer,
                outputs_max=outputs_max,
                # The stream knows whether it may have them.
                times_allowed=True,
                arrow_allowed=may_return_arrow,
                streaming=streaming,
            ),
            failed=lambda error: MapAnswer(error=error),
            read=read_of,
            is_unfinished=lambda answer: answer.unfinished,
            make=make,
            streaming=streaming,
        )

    def open_sink(self, name: StreamName) -> AbstractAsyncContextManager[SinkStream]:
        return self._open_calls(
            "Sink",
            name,
            hello_of(
                FunctionKind.SINK, name, calls_socket=bool(calls_socket_of(self._target)), settings=self._settings
            ),
            request=udf_pb2.SealedSinkRequest,
            response=udf_pb2.SinkResponse,
            call=udf_pb2.SealedSinkCall,
            answer=sink_answer,
            failed=lambda error: SinkAnswer(error=error),
            make=_FrameStream[SinkAnswer],
        )

    @asynccontextmanager
    async def _open_calls(
        self,
        method: str,
        name: StreamName,
        hello: udf_pb2.Hello,
        *,
        request: _Request,
        response: _Response,
        call: _Call,
        answer: Callable[[bytes], tuple[int, Callable[[int], _Answer]]],
        failed: Callable[[str], _Answer],
        read: Callable[[bytes], Read | None] = lambda data: None,
        make: Callable[[CallStream[_Answer], _Call, _Stated], _Made],
        is_unfinished: Callable[[_Answer], bool] = lambda answer: False,
        streaming: bool = False,
    ) -> AsyncIterator[_Made]:
        """`request`, `response`: the method's messages. `call`: the call in a request. `answer`, `failed`, `read`,
        `is_unfinished`: see `Dialect`. `streaming`: whether answers come in parts."""
        beside = calls_socket_of(self._target)
        stated = _Stated()
        dialect = Dialect(
            open=partial(open_calls_wire, self._channel, f"{SERVICE}/{method}", name.where, beside),
            hello=request(hello=hello).SerializeToString(),
            welcome=partial(_welcome, of=response, where=name.where, stated=stated, streaming=streaming),
            answer=answer,
            failed=failed,
            read=read,
            is_unfinished=is_unfinished,
        )
        async with open_call_stream(name, dialect, self._lives) as stream:
            yield make(stream, call, stated)

    def open_position_sink(self, name: StreamName) -> AbstractAsyncContextManager[PositionSinkStream]:
        return open_position_sink_stream(self._channel, name, self._lives, self._settings)

    def open_source(
        self, name: StreamName, *, position: bytes, partition: int, partitions: int
    ) -> AbstractAsyncContextManager[SourceStream]:
        opening = udf_pb2.SourceOpen(position=position, partition=partition, partitions=partitions)
        return open_source_stream(self._channel, name, opening, self._lives, self._settings)


@dataclass(slots=True)
class _Stated:
    """What the function has stated at the beginning of the open stream."""

    takes_arrow: bool = False
    states: tuple[DeclaredState, ...] | None = None
    """None before the first stream."""
    takes_tables: bool = False
    tables: tuple[str, ...] = ()


class _FrameStream(Generic[_Answer]):
    """See `MapStream` and `SinkStream`: one frame in each call."""

    def __init__(
        self,
        stream: CallStream[_Answer],
        message: _Call,
        stated: _Stated,
    ) -> None:
        self._stream = stream
        self._message = message
        self._stated = stated

    @property
    def takes_arrow(self) -> bool:
        return self._stated.takes_arrow

    @property
    def calls_max(self) -> int:
        return self._stream.calls_max

    async def call(
        self,
        frame: Frame,
        *,
        id_prefix: str = "",
        first_index: int = 0,
        reader: StateReader | None = None,
        alone: bool = False,
        take: Callable[[_Answer], Awaitable[None]] | None = None,
        meanwhile: Callable[[], None] | None = None,
        **fields: Any,
    ) -> _Answer:
        """`fields`: the other fields of the message."""

        def encode(call_id: int) -> bytes:
            call = self._message(call_id=call_id, id_prefix=id_prefix, first_index=first_index, **fields)
            return request_of(call, frame if self._stated.takes_arrow else frame.with_values())

        return await self._stream.call(
            encode,
            frame.records,
            partial(_first, frame, id_prefix, first_index),
            reader=reader,
            alone=alone,
            take=take,
            meanwhile=meanwhile,
        )


class _MapStream(_FrameStream[MapAnswer]):
    """See `MapStream` and `KeyedMapStream`."""

    def __init__(self, *given: Any, transforms: bool = False) -> None:
        """`transforms`: whether it may set the event times of all outputs."""
        super().__init__(*given)
        self._transforms = transforms

    @property
    def states(self) -> Sequence[DeclaredState]:
        return self._stated.states or ()

    @property
    def takes_tables(self) -> bool:
        return self._stated.takes_tables

    @property
    def tables(self) -> Sequence[str]:
        return self._stated.tables

    async def call(self, frame: Frame, **options: Any) -> MapAnswer:
        return self._checked(await super().call(frame, **options), 0, None)

    async def keyed_call(self, frame: Frame, states: StateEntries, **options: Any) -> MapAnswer:
        if not self.states:
            return self._checked(await super().call(frame, **options), 0, None)
        answer = await super().call(frame, states=entries_message(states), **options)
        earliest_us = frame.event_times_us() if options.get("timers") else None
        return self._checked(answer, max(states.record_keys) + 1, earliest_us)

    async def update_tables(self, update: TableUpdate) -> MapAnswer:
        message = update_message(update)

        def encode(call_id: int) -> bytes:
            call = udf_pb2.SealedMapCall(call_id=call_id, table=message)
            return udf_pb2.SealedMapRequest(call=call).SerializeToString()

        return await self._stream.call(encode, 0, lambda: f"table {update.table}")

    def _checked(self, answer: MapAnswer, keys: int, earliest_us: Sequence[int] | None) -> MapAnswer:
        try:
            check_changes(answer, keys, self.states)
            if not self._transforms:
                check_times(answer, earliest_us)
        except ValueError as error:
            return MapAnswer(error=f"the function breaks its protocol: an answer does not fit its call: {error}")
        return answer


class _StreamedMapStream(_MapStream):
    """See `StreamedMapStream`."""

    def __init__(self, *given: Any, outputs_max: int) -> None:
        super().__init__(*given)
        self._outputs_max = outputs_max

    async def streamed_call(
        self, frame: Frame, take: Callable[[MapAnswer], Awaitable[None]], **options: Any
    ) -> MapAnswer:
        whole, misfit = PieceByPiece(self._outputs_max), ""

        def fits(piece: MapAnswer) -> bool:
            nonlocal misfit
            try:
                if not misfit:
                    check_times(piece, None)
                    whole.add(piece)
            except ValueError as error:
                misfit = f"the function breaks its protocol: an answer does not fit its call: {error}"
            return not misfit

        async def take_if_it_fits(piece: MapAnswer) -> None:
            if fits(piece):
                await take(piece)

        last = await self.call(frame, take=take_if_it_fits, **options)
        return last if last.error or fits(last) else MapAnswer(error=misfit)

    async def call(self, frame: Frame, **options: Any) -> MapAnswer:
        if "take" in options:
            return await super().call(frame, **options)
        parts: list[MapAnswer] = []

        async def take(piece: MapAnswer) -> None:
            parts.append(piece)

        while True:
            try:
                last = await self.streamed_call(frame, take, **options)
            except PiecesLostError:
                parts.clear()
            else:
                return replace(last, before=tuple(parts)) if parts and not last.error else last


@asynccontextmanager
async def open_connection(target: str, lives: Lives, tls: ClientTls | None = None) -> AsyncIterator[Connection]:
    """A connection to `unix:/path` or `host:port`."""
    if tls is None:
        channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name is not None else []
        channel = grpc.aio.secure_channel(target, credentials, options=[*CHANNEL_OPTIONS, *name])
    try:
        yield NativeConnection(channel, target, lives)
    finally:
        await channel.close()


def map_answer(
    data: bytes,
    *,
    outputs_max: int,
    times_allowed: bool = False,
    arrow_allowed: bool = False,
    streaming: bool = False,
) -> tuple[int, Callable[[int], MapAnswer]]:
    """See `Dialect.answer`."""
    rest, large = without_large(data, MAP_COLUMNS, ANSWER)
    message = decoded(udf_pb2.SealedMapResponse, rest)
    if not message.HasField("answer"):
        raise ValueError("an answer was expected")
    fit = partial(
        map_answer_of,
        message.answer,
        large=large,
        outputs_max=outputs_max,
        times_allowed=times_allowed,
        arrow_allowed=arrow_allowed,
        streaming=streaming,
    )
    return message.answer.call_id, partial(_fit_part, fit) if message.answer.unfinished else fit


def _fit_part(fit: Callable[[int], MapAnswer], inputs: int) -> MapAnswer:
    try:
        return fit(inputs)
    except ValueError as error:
        raise PieceMisfitError(str(error)) from error


def sink_answer(data: bytes) -> tuple[int, Callable[[int], SinkAnswer]]:
    """See `Dialect.answer`."""
    message = decoded(udf_pb2.SinkResponse, data)
    if not message.HasField("answer"):
        raise ValueError("an answer was expected")
    return message.answer.call_id, partial(sink_answer_of, message.answer)


def _welcome(data: bytes, *, of: _Response, where: str, stated: _Stated, streaming: bool) -> int:
    message = decoded(of, data)
    if not message.HasField("welcome"):
        raise ValueError("its first message is not Welcome")
    if streaming and not message.welcome.streaming:
        raise UdfError(
            codes.FUNCTION_VERSION,
            f"{where}: its vertex has `streaming: true`, and the function sends each answer as a whole: its SDK does "
            "not know streaming. Leave `streaming` out, or write a generator in Python with an SDK of this release",
        )
    stated.takes_arrow = message.welcome.takes_arrow
    states = states_of(message.welcome, where)
    if stated.states not in (None, states):
        raise UdfError(
            codes.STATE_MISFIT,
            f"{where}: the function in place of the former one has other states, which are compared with what is "
            "stored when its vertex starts: start the pipeline again or, with --watch, save the function once more",
        )
    stated.states = states
    stated.takes_tables, stated.tables = message.welcome.takes_tables, tables_of(message.welcome, where)
    return calls_allowed(message.welcome, where)


def _first(frame: Frame, id_prefix: str, first_index: int) -> str:
    """Id of a call's first record, if the call has the ids of its records."""
    if (ids := frame.ids()) is not None:
        return ids[0]
    return f"{id_prefix}{first_index}" if id_prefix else ""
