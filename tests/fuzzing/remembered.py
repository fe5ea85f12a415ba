"""Targets: what functions answer, ask and count, what is stored of what they remember, and what the SDK gets of it."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from millstream.errors import DamageError, UdfError
from millstream.udf.checks import check_changes
from millstream.udf.metrics import FunctionMetrics
from millstream.udf.native import client, messages
from millstream.udf.native.metrics_stream import series_of
from millstream.udf.native.state_reads import read_of
from millstream.udf.states import DeclaredState, StateChanges, StateClock, StateKind, TableUpdate
from millstream.wire.state.v1 import state_pb2
from millstream_udf import state_found, state_reads
from millstream_udf.inputs import FrameInputs
from millstream_udf.key_states import CallStates
from millstream_udf.state_codecs import codec_of, item_codec_of
from millstream_udf.state_entries import Changes, StateEntries, pack_changes, pack_entries
from millstream_udf.state_specs import COUNTER, LIST, MAP, TIMER, VALUE, StateSpec
from millstream_udf.state_views import StateList, StateMap
from millstream_udf.tables import LaneTables, TableSpec
from millstream_udf.timer_entries import EVENT, TimerTime, pack_due, pack_timer, unpack_due
from millstream_udf.wire.udf.v1 import udf_pb2
from millstream_vertex.keyed.edits import Edit, decode_edit, decode_result, make_edit
from millstream_vertex.keyed.image import Versioned
from millstream_vertex.keyed.state import EntryChange, KeyedState
from millstream_vertex.keyed.steps import decode_step
from tests.fuzzing.using import INPUTS, Target

_STATES = (
    DeclaredState("total", StateKind.VALUE, "json"),
    DeclaredState("seen", StateKind.MAP, "json", "json", is_lazy=True),
    DeclaredState("last", StateKind.LIST, "bytes", version=2),
    DeclaredState("clicks", StateKind.COUNTER, ""),
    DeclaredState("timers", StateKind.TIMER, ""),
)
_KEYS = [b"a", b"b", b"c"]
_SPECS = (
    StateSpec("total", VALUE, codec_of(int)),
    StateSpec("seen", MAP, codec_of(int), item_codec_of(str)),
    StateSpec("last", LIST, codec_of(bytes), version=2, migrate={1: bytes}),
    StateSpec("clicks", COUNTER),
    StateSpec("timers", TIMER),
)


def _state(latest_max: int | None = None) -> KeyedState:
    state = KeyedState("p/v/in-v.0", size_max=1 << 20, key_size_max=1 << 16, latest_max=latest_max)
    state.loaded()
    state.declare(_STATES)
    return state


def changes(data: bytes) -> None:
    """Changes that are let pass can be made, fire as timers, and be read back as steps."""
    try:
        _, fit = client.map_answer(data, outputs_max=100)
        answer = fit(INPUTS.records)
        check_changes(answer, len(_KEYS), _STATES)
    except (ValueError, DecodeError):
        return
    state = _state(latest_max=0)
    if state.apply(_KEYS, answer.changes) is not None:
        return
    assert len(state.entries(_KEYS, range(len(_KEYS)), 0).values) <= len(answer.changes.keys)
    again = KeyedState("p/v/in-v.0", size_max=1 << 20, key_size_max=1 << 16)
    steps = [decode_step(data) for data, _ in state.take_steps()]
    again.stored_states(state.encoded_states)
    for one in steps:
        again.load(one)
    again.loaded()
    again.declare(_STATES)
    assert again.size == state.size
    for clock in StateClock:
        for timer in state.take_due(clock, 1 << 62, 100):
            assert unpack_due(pack_due(timer.name.decode(), timer.clock, timer.at_us))[2] == timer.at_us
        state.sweep(clock, 1 << 60)


def _changes_seeds() -> Sequence[bytes]:
    made = Changes()
    made.add(0, 0, b"", b"5", 7)
    made.add(1, 1, b'"x"', b"1", 0)
    made.add(1, 2, bytes(8), b"\xff", 0)
    made.add(2, 3, b"", bytes(8), -9)
    made.add(2, 4, b"idle", pack_timer(TimerTime(EVENT, 9, 5, holds=True)), 0)
    made.add(0, 4, b"gone", None, 0)
    plain = Changes()
    plain.add_all([0, 2], 0, [b"1", None])
    answers = (
        udf_pb2.SealedMapAnswer(call_id=1, changes=pack_changes(made, have_items=True)),
        udf_pb2.SealedMapAnswer(call_id=2, changes=pack_changes(plain, have_items=False)),
    )
    return [udf_pb2.SealedMapResponse(answer=one).SerializeToString() for one in answers]


def read(data: bytes) -> None:
    """Reads of a lazy state are answered, or refused."""
    try:
        found = read_of(data)
    except (ValueError, DecodeError):
        return
    if found is None:
        return
    state = _state()
    items = [b'"%d"' % number for number in range(9)]
    state.apply(_KEYS, StateChanges(array("I", [0] * 9), b"\1" * 9, items, [b"1"] * 9))
    reader = state.reader(_KEYS, 0)
    assert reader is not None
    reply = found.reply(reader)
    assert state_found.is_found(reply)
    state_reads.unpack_found(reply)


def _read_seeds() -> Sequence[bytes]:
    reads = (
        udf_pb2.StateRead(call_id=1, read_id=2, key=0, state=1, items=[b'"1"', b'"x"']),
        udf_pb2.StateRead(call_id=1, read_id=3, key=0, state=1, first=b'"2', end=b'"7', entries_max=2, items_only=True),
        udf_pb2.StateRead(call_id=1, read_id=3, key=2, state=0),
    )
    return [udf_pb2.SealedMapResponse(read=one).SerializeToString() for one in reads]


def found(data: bytes) -> None:
    """The SDK's side of it."""
    with contextlib.suppress(ValueError):
        state_reads.unpack_found(data)


def _found_seeds() -> Sequence[bytes]:
    return (
        state_found.pack_found(3, state_found.Found([b"a", b"b"], [b"1", b"2"], [1, 2], 2, has_more=True)),
        state_found.pack_refusal(4, "there is none"),
    )


def counted(data: bytes) -> None:
    metrics = FunctionMetrics()
    for _ in range(2):
        try:
            metrics.add(series_of(data))
        except (ValueError, DecodeError):
            return
    metrics.snapshot()


def _counted_seeds() -> Sequence[bytes]:
    kinds = udf_pb2.Series
    series = [
        kinds(name="seen", kind=kinds.KIND_COUNTER, labels={"who": "ada"}, value=2),
        kinds(name="level", kind=kinds.KIND_GAUGE, value=-1.5),
        kinds(name="size", kind=kinds.KIND_HISTOGRAM, value=3, bounds=[1, 2], counts=[1, 0, 2]),
    ]
    return (udf_pb2.MetricsResponse(series=series).SerializeToString(),)


def welcome(data: bytes) -> None:
    """What a function declares can be declared to a state that has nothing."""
    try:
        message = udf_pb2.Welcome.FromString(data)
        states = messages.states_of(message, "p/v")
        messages.tables_of(message, "p/v")
    except (DecodeError, UdfError):
        return
    state = KeyedState("p/v/in-v.0", size_max=1, key_size_max=1)
    state.loaded()
    state.declare(states)
    again = KeyedState("p/v/in-v.0", size_max=1, key_size_max=1)
    again.stored_states(state.encoded_states)
    again.loaded()
    again.declare(states)


def _welcome_seeds() -> Sequence[bytes]:
    states = [spec.message() for spec in _SPECS]
    tables = [TableSpec("rates", codec_of(dict)).message()]
    return (udf_pb2.Welcome(protocol_version=1, states=states, tables=tables).SerializeToString(),)


def entries(data: bytes) -> None:
    """What the SDK gets of a vertex: it is read whatever it is, or refused."""
    inputs = FrameInputs(INPUTS.encode())
    try:
        states = CallStates(_SPECS, data, inputs, lambda: 5)
    except ValueError:
        return
    turn = states.begin(0)
    assert turn is not None
    # A stored value or item that is none is the function's failure, as one of its own would be.
    with contextlib.suppress(RuntimeError):
        turn.value("total")
        dict(turn.view("seen", StateMap))
        list(turn.view("last", StateList))
    states.settle(turn)
    assert states.changes() == b""


def _entries_seeds() -> Sequence[bytes]:
    rows = [(0, 0, b"", b"5", 1), (0, 1, b'"a"', b"7", 1), (0, 2, bytes(8), b"x", 1), (1, 3, b"", bytes(8), 1)]
    whole = StateEntries(
        array("I", [0, 1, 0]),
        array("I", [row[0] for row in rows]),
        bytes(row[1] for row in rows),
        [row[2] for row in rows],
        [row[3] for row in rows],
        array("I", [row[4] for row in rows]),
    )
    plain = StateEntries(array("I", [0, 1, 2]), array("I", [1]), b"\0", None, [b"3"], None)
    return [pack_entries(one) for one in (whole, plain)]


def table(data: bytes) -> None:
    tables = LaneTables({"rates": TableSpec("rates", codec_of(dict))})
    with contextlib.suppress(ValueError):
        tables.update(data)
    for one in tables.by_name.values():
        assert len(list(one)) == len(one)


def _table_seeds() -> Sequence[bytes]:
    keys = [(b"EUR",), (b"a", "ü".encode()), ()]
    updates = (
        TableUpdate(0, 1, "rates", keys, [b'{"a":1}', b"x", b""]),
        TableUpdate(1, 2, "rates", [(b"EUR",)], [b""]),
    )
    return [messages.update_message(one) for one in updates]


def step(data: bytes) -> None:
    try:
        decoded = decode_step(data)
    except ValueError:
        return
    state = _state()
    with contextlib.suppress(DamageError):
        state.load(decoded)
        state.loaded()


def _step_seeds() -> Sequence[bytes]:
    state = _state(latest_max=0)
    state.apply(_KEYS, client.map_answer(_changes_seeds()[0], outputs_max=9)[1](3).changes)
    return [data for data, _ in state.take_steps()]


def stored_states(data: bytes) -> None:
    state = KeyedState("p/v/in-v.0", size_max=1, key_size_max=1)
    try:
        state.stored_states(data)
        state.loaded()
        state.declare(_STATES)
    except (DamageError, UdfError):
        return
    KeyedState("p/v/in-v.0", size_max=1, key_size_max=1).stored_states(state.encoded_states)


def _stored_seeds() -> Sequence[bytes]:
    state = _state()
    state.apply(_KEYS, client.map_answer(_changes_seeds()[0], outputs_max=9)[1](3).changes)
    list(state.take_steps())
    return (state.encoded_states,)


def edit(data: bytes) -> None:
    """An edit of the inbox is made or refused, and its result can be read."""
    with contextlib.suppress(ValueError):
        decode_result(data)
    try:
        decoded = decode_edit(data)
    except ValueError:
        return
    made = make_edit(_state(), decoded, 1, _STATES)
    assert decode_result(made.encode()).changed == made.changed


def _edit_seeds() -> Sequence[bytes]:
    states = [state_pb2.StoredState(name="total", kind=StateKind.VALUE, codec="json", version=1, oldest_version=1)]
    entries = [EntryChange(b"a", 0, b"", b"7"), EntryChange(b"b", 0, b"", Versioned(b"8", 99, 1))]
    one = Edit("e", states, entries, [EntryChange(b"a", 0, b"", None)], keeps_expiry=True)
    return one.encode(), make_edit(_state(), one, 1, _STATES).encode()


TARGETS = {
    "state-changes": Target(changes, _changes_seeds),
    "state-read": Target(read, _read_seeds),
    "state-found": Target(found, _found_seeds),
    "function-metrics": Target(counted, _counted_seeds),
    "welcome": Target(welcome, _welcome_seeds),
    "state-entries": Target(entries, _entries_seeds),
    "table-update": Target(table, _table_seeds),
    "state-step": Target(step, _step_seeds),
    "stored-states": Target(stored_states, _stored_seeds),
    "state-edit": Target(edit, _edit_seeds),
}
