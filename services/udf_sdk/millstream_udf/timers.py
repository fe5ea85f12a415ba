"""Timers of keys: a function sets one by name, and gets it when its time has come.

    udf.timer("idle", at=record.event_time + timedelta(minutes=30))   # sets it, or moves it
    udf.cancel_timer("idle")

    def on_timer(self, timer: udf.Timer) -> str:
        return f"{timer.keys[0]} has been idle since {timer.at}"

Above it: users' functions, and `defining`. Below it: `key_states`, which has what a record sets until that counts. A
timer belongs to the key of the record that sets it, and is a part of what is remembered for it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

from millstream_udf.inputs import FrameInputs
from millstream_udf.key_states import BATCH, CURRENT_TURN, Turn
from millstream_udf.state_specs import Clock, StateError
from millstream_udf.timer_entries import CLOCKS, PROCESSING, TIMER_NAME_BYTES_MAX, TimerTime, pack_timer, unpack_due
from millstream_udf.values import to_us

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_YEAR_1_US, _YEAR_10000_US = -62_135_596_800_000_000, 253_402_300_800_000_000
NO_HANDLER = (
    "timers need what gets them when their time has come: a method on_timer(self, timer) of the class, or "
    "@udf.map(on_timer=...) for a plain function"
)


class Timer:
    """A timer whose time has come: the input of `on_timer`."""

    __slots__ = ("at_us", "clock", "event_time_us", "id", "keys", "name")

    name: str
    at_us: int
    """The time for which it was set: microseconds since the epoch, UTC."""
    clock: Clock
    """Whether that is event time, or processing time."""
    keys: tuple[str, ...]
    """Parts of the key for which it was set."""
    event_time_us: int
    """The event time of what it puts out, unless a `Message` has a later one: its `output_at`, if it was set with one.
    Otherwise, by event time, the time for which it was set, and by processing time, that of the record that set it.
    Later if the watermark had passed that."""
    id: str | None
    """The same at every attempt, and of no other timer or record."""

    def __init__(
        self,
        name: str,
        at: datetime | int,
        keys: tuple[str, ...] = (),
        *,
        clock: Clock = "event",
        event_time: datetime | int | None = None,
        id: str | None = None,
    ) -> None:
        self.name = name
        self.at_us = to_us(at)
        self.clock = clock
        self.keys = keys
        self.event_time_us = self.at_us if event_time is None else to_us(event_time)
        self.id = id

    @property
    def at(self) -> datetime:
        """The time for which it was set, in UTC."""
        return _EPOCH + self.at_us * _MICROSECOND

    @property
    def event_time(self) -> datetime:
        """The event time of what it puts out, in UTC."""
        return _EPOCH + self.event_time_us * _MICROSECOND

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timer):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # as of a record

    def __repr__(self) -> str:
        return f"Timer({self.name!r}, {self.at.isoformat()}, keys={self.keys!r}, clock={self.clock!r})"


def timer(
    name: str,
    *,
    at: datetime | int | None = None,
    after: timedelta | None = None,
    clock: Clock = "event",
    output_at: datetime | int | None = None,
) -> None:
    """Set the timer of this name for the key of the record, or move it.

    `at`: when, as a `datetime` with a time zone, or as microseconds since the epoch. `after`: in place of it, how long
    after the event time of the record (in `on_timer`: of the timer). `clock`: with "event" (the default) it fires when
    the watermark has reached that time; with "processing" when the vertex's clock has, and `after` counts from now.
    `output_at`: the earliest event time of what it puts out, for outputs that belong to an earlier time than `at`.
    Until it has fired, or is moved or cancelled, the watermark that those who follow see stays at that time or below.
    Raises `StateError` where no record is processed, or if the function has no `on_timer`.
    """
    set_timer(CURRENT_TURN.get(), name, at, after, clock, output_at)


def cancel_timer(name: str) -> None:
    """Cancel the timer of this name of the record's key, if there is one. Raises `StateError` as `timer` does."""
    _checked(CURRENT_TURN.get(), name).set_timer(name, None)


def set_timer(
    turn: Turn,
    name: str,
    at: datetime | int | None,
    after: timedelta | None,
    clock: Clock,
    output_at: datetime | int | None,
) -> None:
    """As `timer`, for one key."""
    _checked(turn, name)
    if clock not in CLOCKS:
        raise TypeError(f"clock={clock!r} must be 'event' or 'processing'")
    if (at is None) == (after is None):
        raise TypeError("a timer needs a time: at=..., or after=timedelta(...)")
    by_processing_time = CLOCKS[clock] == PROCESSING
    event_us = turn.event_time_us
    if at is not None:
        at_us = to_us(at)
    elif isinstance(after, timedelta):
        at_us = (turn.call.now_us() if by_processing_time else event_us) + after // _MICROSECOND
    else:
        raise TypeError(f"after must be a timedelta, such as timedelta(minutes=30), not {after!r}")
    output_us = None if output_at is None else to_us(output_at)
    for what, time_us in (("time", at_us), ("output_at", output_us)):
        if time_us is not None and not _YEAR_1_US <= time_us < _YEAR_10000_US:
            raise ValueError(f"the {what} of timer {name} is not in the years 1 to 9999")
    if output_us is None:
        time = TimerTime(CLOCKS[clock], at_us, event_us if by_processing_time else 0)
    elif output_us > at_us and not by_processing_time:
        raise ValueError(
            f"the output_at of timer {name} is later than its time: leave it out, and give outputs that belong to a "
            "later time one of their own (udf.Message(..., event_time=...))"
        )
    else:
        time = TimerTime(CLOCKS[clock], at_us, output_us, holds=True)
    turn.set_timer(name, pack_timer(time))


def cancel(turn: Turn, name: str) -> None:
    """As `cancel_timer`, for one key."""
    _checked(turn, name).set_timer(name, None)


def _checked(turn: Turn, name: str) -> Turn:
    """The turn, in which this timer may be set. Raises with what to change."""
    if turn is BATCH:
        raise StateError(f"timer {name} belongs to a key: in a batch function use states[i].timer, for record i")
    if not turn.is_open:
        raise StateError(
            f"timer {name} can only be set or cancelled while a function with on_timer processes a record: not in "
            f"setup or close, not in a thread of your own, not after the function has returned for its record. "
            f"{NO_HANDLER[0].upper()}{NO_HANDLER[1:]}"
        )
    if not turn.call.has_timers:
        raise StateError(f"timer {name} cannot be set: {NO_HANDLER}")
    if not isinstance(name, str):
        raise TypeError(f"the name of a timer is a text, not {type(name).__name__}")
    if not name or len(name.encode()) > TIMER_NAME_BYTES_MAX:
        raise ValueError(f"the name of a timer has 1 to {TIMER_NAME_BYTES_MAX} bytes")
    return turn


def timers_of(inputs: FrameInputs) -> list[Timer]:
    """The timers of a call. Raises `ValueError` for records that are none."""
    found = []
    for value, keys, event_us, id in zip(inputs.values, inputs.keys, inputs.event_times_us, inputs.ids, strict=True):
        name, clock, at_us = unpack_due(value)
        found.append(
            Timer(name, at_us, keys, clock="event" if clock == "event" else "processing", event_time=event_us, id=id)
        )
    return found


def sets_timers(function: Callable[..., Any]) -> bool:
    """Whether the code of a function certainly sets a timer: whether it names `udf.timer`, or `timer` that is it."""
    function = inspect.unwrap(function)
    code, scope = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return False
    before: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL":
            before = scope.get(name)
            if before is timer:
                return True
        else:
            is_ours = isinstance(before, ModuleType) and before.__name__ == "millstream_udf"
            if is_ours and name == "timer":
                return True
            before = None
    return False
