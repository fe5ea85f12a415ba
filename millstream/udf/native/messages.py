"""Converts between the protocol's messages and our own types. Pure.

Each answer is checked here (`millstream.udf.checks`), so no answer that does not fit its call leaves this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from millstream import codes
from millstream.errors import UdfError
from millstream.frame import Frame
from millstream.limits import ANSWER_RECORDS_MAX
from millstream.spec.protocols import FunctionKind
from millstream.udf.answers import MapAnswer, Outcome, ReadBatch, Result, SinkAnswer
from millstream.udf.checks import check_map_answer, check_parts, check_read_batch, check_sink_answer
from millstream.udf.native.service import PROTOCOL_VERSION
from millstream.udf.protocol import Description, StreamName
from millstream.udf.settings import NO_SETTINGS, FunctionSettings
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateEntries, StateKind, TableUpdate
from millstream.values import Values
from millstream_udf import columns, state_entries
from millstream_udf.fields import Large, field
from millstream_udf.version import SDK_VERSION
from millstream_udf.wire.frame.v1 import frame_pb2
from millstream_udf.wire.udf.v1 import udf_pb2

_Message = TypeVar("_Message", bound=Message)

MAP_COLUMNS = {
    3: "values",
    4: "parents",
    5: "keys",
    6: "tags",
    7: "headers",
    8: "event_times_us",
    11: "arrow",
    12: "changes",
}
"""The columns of an answer by the number of their field."""
ANSWER = (2,)
"""Number of the field of an answer, or of a batch, in a response."""
_CALL = 2
"""Number of the call's field in a request."""
_FRAME = 2
"""Number of the frame's field in a call."""
KINDS = {
    FunctionKind.MAP: udf_pb2.KIND_MAP,
    FunctionKind.SOURCE_TRANSFORM: udf_pb2.KIND_SOURCE_TRANSFORM,
    FunctionKind.SINK: udf_pb2.KIND_SINK,
    FunctionKind.SOURCE: udf_pb2.KIND_SOURCE,
    FunctionKind.REDUCE: udf_pb2.KIND_REDUCE,
}
STATES_MAX = 255
"""States of a function: an entry refers to its state by one byte."""
_STATE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_STATE_KINDS = frozenset(map(int, StateKind)) - {StateKind.TABLE}
_RESULTS = {
    udf_pb2.Outcome.RESULT_ERROR: Result.ERROR,
    udf_pb2.Outcome.RESULT_RETRY: Result.RETRY,
    udf_pb2.Outcome.RESULT_DEAD_LETTER: Result.DEAD_LETTER,
    udf_pb2.Outcome.RESULT_DROP: Result.DROP,
    udf_pb2.Outcome.RESULT_FALLBACK: Result.FALLBACK,
    udf_pb2.Outcome.RESULT_HELD_UP: Result.HELD_UP,
}


def decoded(kind: type[_Message], data: bytes) -> _Message:
    """A message of a function. Raises `ValueError` for bytes that are not one, and if an answer in it has more fields
    than it can have."""
    check_parts(data, ANSWER)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def request_of(call: udf_pb2.SealedMapCall | udf_pb2.SealedSinkCall, frame: Frame, number: int = _CALL) -> bytes:
    """A request with the call, which contains the frame. `number`: that of the call's field."""
    return b"".join(field(number, call.SerializeToString(), *field(_FRAME, *frame.parts())))


def hello_of(
    kind: FunctionKind,
    name: StreamName,
    *,
    calls_socket: bool = False,
    keeps_positions: bool = False,
    may_return_arrow: bool = False,
    answers_reads: bool = False,
    streaming: bool = False,
    settings: FunctionSettings = NO_SETTINGS,
) -> udf_pb2.Hello:
    """The first message of a stream."""
    return udf_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        kind=KINDS[kind],
        pipeline=name.pipeline,
        vertex=name.vertex,
        lane=name.lane,
        replica=name.replica,
        edge=name.edge,
        calls_socket=calls_socket,
        keeps_positions=keeps_positions,
        may_return_arrow=may_return_arrow,
        streaming=streaming,
        config=settings.config,
        secrets=settings.secrets,
        version=SDK_VERSION,
        answers_reads=answers_reads,
    )


def description_of(data: bytes) -> Description:
    """The function's description of itself. Raises `UdfError` if it does not fit."""
    try:
        described = udf_pb2.DescribeResponse.FromString(data)
    except DecodeError as error:
        raise UdfError(
            codes.FUNCTION_PROTOCOL, f"the program at this address does not use the protocol: {error}"
        ) from error
    if described.protocol_version < PROTOCOL_VERSION:
        raise UdfError(
            codes.FUNCTION_VERSION,
            f"the function uses version {described.protocol_version} of the protocol, but this Millstream uses "
            f"version {PROTOCOL_VERSION}: install a newer SDK ({described.language or 'language unknown'}, "
            f"{described.sdk_version or 'version unknown'})",
        )
    return Description(
        frozenset(kind for kind, number in KINDS.items() if number in described.kinds),
        described.language,
        described.sdk_version,
        described.concurrency,
        described.keeps_positions,
    )


def calls_allowed(welcome: udf_pb2.Welcome, where: str) -> int:
    """How many calls the function accepts at once. Raises `UdfError` if the two sides have different versions."""
    if welcome.protocol_version != PROTOCOL_VERSION:
        raise UdfError(
            codes.FUNCTION_VERSION,
            f"{where}: the function breaks its protocol: it uses version {welcome.protocol_version} of the "
            f"protocol, but this Millstream uses version {PROTOCOL_VERSION}; install the SDK of the same release as "
            "Millstream",
        )
    return welcome.calls_max


def map_answer_of(
    sealed: udf_pb2.SealedMapAnswer,
    inputs: int,
    *,
    large: Large | None = None,
    outputs_max: int = ANSWER_RECORDS_MAX,
    times_allowed: bool = False,
    arrow_allowed: bool = False,
    streaming: bool = False,
) -> MapAnswer:
    """Converts an answer, or a part of one if `streaming`. `large`: the columns that are not in `sealed`. Raises
    `ValueError` if it does not fit a call with that many inputs."""
    if sealed.unfinished and not streaming:
        raise ValueError("more of it follows, and it was asked for in one message")
    if sealed.error or sealed.lacks_tables:
        return MapAnswer(error=sealed.error, lacks_tables=sealed.lacks_tables, unfinished=sealed.unfinished)
    answer = MapAnswer(
        unfinished=sealed.unfinished,
        records=sealed.records,
        values=sealed.values,
        arrow=sealed.arrow,
        parents=sealed.parents,
        keys=sealed.keys,
        tags=sealed.tags,
        headers=sealed.headers,
        event_times_us=sealed.event_times_us,
        outcomes=outcomes_of(sealed.outcomes),
    )
    changes = sealed.changes
    if large:
        columns_apart: dict[str, Any] = {MAP_COLUMNS[number]: bytes(column) for number, column in large.items()}
        changes = columns_apart.pop("changes", changes)
        answer = replace(answer, **columns_apart)
    if changes:
        answer = replace(answer, changes=changes_of(changes))
    check_map_answer(
        answer,
        inputs,
        outputs_max=outputs_max,
        times_allowed=times_allowed,
        arrow_allowed=arrow_allowed,
        # `check_changes` knows whether the function has states.
        held_up_allowed=True,
    )
    return answer


def states_of(welcome: udf_pb2.Welcome, where: str) -> tuple[DeclaredState, ...]:
    """The states of a function. Raises `UdfError` for states that it cannot have."""
    declared = []
    for state in welcome.states:
        if state.kind not in _STATE_KINDS or state.clock > max(StateClock) or not _STATE_NAME.fullmatch(state.name):
            raise UdfError(
                codes.FUNCTION_PROTOCOL,
                f"{where}: the function breaks its protocol: state {state.name!r} has an invalid name, kind or clock",
            )
        if state.lazy and state.kind != udf_pb2.State.KIND_MAP:
            raise UdfError(
                codes.FUNCTION_PROTOCOL,
                f"{where}: the function breaks its protocol: state {state.name!r} is lazy, and not a map",
            )
        version = state.version or 1
        if state.kind == udf_pb2.State.KIND_TIMER and (version, state.oldest_version or 1) != (1, 1):
            raise UdfError(
                codes.FUNCTION_PROTOCOL,
                f"{where}: the function breaks its protocol: state {state.name!r} is of timers, which have no versions",
            )
        declared.append(
            DeclaredState(
                state.name,
                StateKind(state.kind),
                state.codec,
                state.item_codec,
                version,
                state.oldest_version or version,
                StateClock(state.clock or StateClock.EVENT_TIME),
                state.lazy,
            )
        )
    names = {state.name for state in declared}
    if len(names) < len(declared) or len(declared) > STATES_MAX:
        raise UdfError(
            codes.FUNCTION_PROTOCOL,
            f"{where}: the function breaks its protocol: it has {len(declared)} states with {len(names)} names; at "
            f"most {STATES_MAX} with different names are allowed",
        )
    if sum(state.kind is StateKind.TIMER for state in declared) > 1:
        raise UdfError(
            codes.FUNCTION_PROTOCOL, f"{where}: the function breaks its protocol: several of its states are of timers"
        )
    return tuple(declared)


def entries_message(entries: StateEntries) -> bytes:
    """The field `states` of a call."""
    has_items, has_versions = any(entries.items), any(version != 1 for version in entries.versions)
    return state_entries.pack_entries(
        state_entries.StateEntries(
            entries.record_keys,
            entries.keys,
            entries.states,
            entries.items if has_items else None,
            entries.values,
            entries.versions if has_versions else None,
        )
    )


def tables_of(welcome: udf_pb2.Welcome, where: str) -> tuple[str, ...]:
    """The names of the tables that a function reads. Raises `UdfError` for names that cannot be."""
    names = tuple(table.name for table in welcome.tables)
    if len(set(names)) < len(names) or not all(map(_STATE_NAME.fullmatch, names)):
        raise UdfError(
            codes.FUNCTION_PROTOCOL,
            f"{where}: the function breaks its protocol: two of its tables have one name, or one has an invalid name",
        )
    return names


def update_message(update: TableUpdate) -> bytes:
    """The field `table` of a call."""
    return udf_pb2.SealedTableUpdate(
        base=update.base,
        version=update.version,
        table=update.table,
        keys=columns.pack_lists(update.keys),
        values=columns.pack_bytes(update.values),
    ).SerializeToString()


def changes_of(data: bytes) -> StateChanges:
    """The changes in an answer. Raises `ValueError` for bytes that are not changes."""
    return StateChanges(*state_entries.unpack_columns(data))


def sink_answer_of(message: udf_pb2.SinkAnswer, records: int) -> SinkAnswer:
    """Converts an answer. Raises `ValueError` if it does not fit a call with that many records."""
    if message.error:
        return SinkAnswer(error=message.error)
    answer = SinkAnswer(outcomes_of(message.outcomes))
    check_sink_answer(answer, records)
    return answer


def outcomes_of(outcomes: Iterable[udf_pb2.Outcome]) -> tuple[Outcome, ...]:
    """Converts outcomes. Raises `ValueError` for an outcome without a known result."""
    return tuple(
        Outcome(outcome.index, _result_of(outcome), outcome.reason, outcome.detail, outcome.delay_us, outcome.code)
        for outcome in outcomes
    )


def _result_of(outcome: udf_pb2.Outcome) -> Result:
    found = _RESULTS.get(outcome.result)
    if found is None:
        result = f"a result, {outcome.result}, that there is not" if outcome.result else "no result"
        raise ValueError(f"the outcome of input {outcome.index} has {result}")
    return found


def batch_of(message: udf_pb2.SourceBatch, records_max: int) -> ReadBatch:
    """Converts a batch. Raises `ValueError` if it does not fit a read of that many records."""
    if message.error:
        return ReadBatch(error=message.error)
    batch = ReadBatch(
        frame=_frame_of(message.frame) if message.HasField("frame") else None,
        position=message.position,
        ended=message.ended,
        pending=message.pending if message.HasField("pending") else None,
    )
    check_read_batch(batch, records_max)
    return batch


def _frame_of(message: frame_pb2.Frame) -> Frame | None:
    """A frame with the function's columns; None if there are no records."""
    sealed = frame_pb2.SealedFrame.FromString(message.SerializeToString())
    if len(sealed.event_times_us) % 8:
        raise ValueError(f"its event times have {len(sealed.event_times_us)} bytes, which is not a number of times")
    times = columns.unpack_times(sealed.event_times_us)
    if not times:
        return None
    return Frame(
        records=len(times),
        event_time_min_us=min(times),
        event_time_max_us=max(times),
        ingest_time_us=sealed.info.ingest_time_us,
        contents=Values(sealed.values),
        event_times_column=sealed.event_times_us,
        keys_column=sealed.keys,
        headers_column=sealed.headers,
        ids_column=sealed.ids,
        traceparent=sealed.info.traceparent,
    )


def shown_position(position: bytes) -> str:
    """A position of a user-defined source or sink, for messages."""
    text = ascii(position.decode(errors="replace"))
    return text if len(text) <= 200 else f"{text[:200]}..."
