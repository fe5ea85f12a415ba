"""Changes of states in an answer that do not fit the call or the function are refused before anything is stored."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from millstream import codes
from millstream.udf.answers import MapAnswer, Outcome, Result
from millstream.udf.checks import check_changes
from millstream.udf.native.messages import states_of
from millstream.udf.states import DeclaredState, StateChanges, StateKind
from millstream_udf.timer_entries import EVENT, TimerTime, pack_timer
from millstream_udf.wire.udf.v1 import udf_pb2
from tests.support.errors import raises

VALUE, MAP = DeclaredState("value", StateKind.VALUE, "json"), DeclaredState("map", StateKind.MAP, "json", "json")
LIST, COUNTER = DeclaredState("list", StateKind.LIST, "json"), DeclaredState("counter", StateKind.COUNTER, "")
STATES = (VALUE, MAP, LIST, COUNTER, DeclaredState("timers", StateKind.TIMER, ""))
PLACE = bytes(8)


def answer(*rows: tuple[int, int, bytes, bytes], **columns: Any) -> MapAnswer:
    """`rows`: key, state, item and value of each change. `columns`: in place of theirs."""
    given: dict[str, Any] = {"keys": array("I", [row[0] for row in rows]), "states": bytes(row[1] for row in rows)}
    given |= {"items": [row[2] for row in rows], "values": [row[3] for row in rows], **columns}
    return MapAnswer(changes=StateChanges(**given))


def test_changes_that_fit() -> None:
    rows = ((0, 0, b"", b"1"), (0, 1, b"a", b"1"), (0, 1, b"b", b"1"), (1, 2, PLACE, b"1"), (1, 3, b"", bytes(8)))
    check_changes(answer(*rows), 2, STATES)
    check_changes(answer((0, 3, b"", b""), deleted=b"\1"), 1, STATES)
    check_changes(answer((0, 0, b"", b"1"), (1, 0, b"", b"1"), items=()), 2, STATES)
    check_changes(MapAnswer(), 0, ())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (answer((2, 0, b"", b"1")), "of a key or a state that there is not"),
        (answer((0, 5, b"", b"1")), "of a key or a state that there is not"),
        (answer((0, 0, b"", b"1"), states=b""), "its 1 changes have 0 states"),
        (answer((0, 0, b"", b"1"), values=[]), "its 1 changes have 0 values"),
        (answer((0, 0, b"", b"1"), items=[b"", b""]), "its 1 changes have 2 items"),
        (answer((0, 0, b"", b"1"), deleted=b"\0\0"), "its 1 changes have 2 deleted"),
        (answer((0, 0, b"", b"1"), expires_us=[1, 2]), "its 1 changes have 2 expires_us"),
        (answer((0, 0, b"a", b"1")), "a change of the state value has an item"),
        (answer((0, 3, b"a", bytes(8))), "a change of the state counter has an item"),
        (answer((0, 1, b"a", b"1"), (0, 1, b"a", b"2")), "two changes are of one entry"),
        (answer((0, 0, b"", b"1"), (0, 0, b"", b"2"), items=()), "two changes are of one entry"),
        (answer((0, 3, b"", b"1")), "a value of the counter counter is not a number of 8 bytes"),
        (answer((0, 3, b"", bytes(8)), (1, 3, b"", bytes(9)), items=()), "a value of the counter counter"),
        (answer((0, 4, b"idle", pack_timer(TimerTime(EVENT, 5))), expires_us=[7]), "a timer does not expire"),
        (answer((0, 2, b"first", b"1")), "an item of the list list is not a number of 8 bytes"),
        (answer((0, 2, b"", b"1"), items=()), "an item of the list list is not a number of 8 bytes"),
    ],
)
def test_changes_that_do_not_fit(changes: MapAnswer, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_changes(changes, 2, STATES)


def test_a_function_without_states_changes_nothing_and_holds_nothing_up() -> None:
    for one in (answer((0, 0, b"", b"1")), MapAnswer(outcomes=[Outcome(0, Result.HELD_UP)])):
        with pytest.raises(ValueError, match="and the function has no states"):
            check_changes(one, 0, ())


def test_timers_have_no_versions() -> None:
    declared = udf_pb2.State(name="timers", kind=udf_pb2.State.KIND_TIMER, version=1)
    assert states_of(udf_pb2.Welcome(states=[declared]), "p/v")[0].version == 1
    for version, oldest in ((2, 0), (1, 3)):
        wrong = udf_pb2.State(name="timers", kind=udf_pb2.State.KIND_TIMER, version=version, oldest_version=oldest)
        with raises(codes.FUNCTION_PROTOCOL, "is of timers, which have no versions"):
            states_of(udf_pb2.Welcome(states=[wrong]), "p/v")
