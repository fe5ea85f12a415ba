"""What a function gets and returns: records, messages, outcomes. Plain values.

Above it: users' functions. Below it: the context of a call. It does not know gRPC or how a function is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from millstream_udf.context import CURRENT, Context

if TYPE_CHECKING:
    # For type checkers only; nothing is imported at run time.
    from typing_extensions import TypeVar

    V = TypeVar("V", default=bytes)

    class _OfValues(Generic[V]):
        pass
else:
    V = bytes

    class _OfValues:
        """A generic class in name only: creating instances of generics from `typing` takes a third longer."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_NO_HEADERS: Mapping[str, bytes] = {}


def to_us(time: datetime | int) -> int:
    """Microseconds since the epoch. A `datetime` must have a time zone; an `int` is microseconds already."""
    if isinstance(time, int) and not isinstance(time, bool):
        return time
    if not isinstance(time, datetime):
        raise TypeError(f"an event time must be a datetime with a time zone, or microseconds as an int, not {time!r}")
    if time.tzinfo is None:
        raise ValueError(f"the event time {time!r} has no time zone; for UTC use {time!r}.replace(tzinfo=UTC)")
    return (time - _EPOCH) // _MICROSECOND


class _Compared:
    """Equal if all members are."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # headers may be a dictionary


class _OfCall:
    """What a record has of the call in which it came: a part of it that is not compared, and not passed on."""

    __slots__ = ("_context",)

    _context: Context | None

    @property
    def attempt(self) -> int:
        """0 at the first attempt at the records of its call; then the number of times that the function has failed on
        one of them or raised `Retry`. In a reduce, 0: see the context."""
        return 0 if self._context is None else self._context.attempt

    @property
    def watermark(self) -> datetime | None:
        """No record older than this will follow, except for late data. None where there is no watermark: before the
        first, after the last, in a sink, in a reduce, and in a record that the function itself has made."""
        return None if self._context is None else self._context.watermark


class Record(_OfCall, _Compared, _OfValues[V]):
    """One record: the input of a function, and the output of a source. `Record[Order]` has an `Order` as its value."""

    __slots__ = ("event_time_us", "headers", "id", "keys", "value")

    value: V
    """The value: bytes, unless the function takes another type."""
    event_time_us: int
    """The event time: microseconds since the epoch, UTC."""
    keys: tuple[str, ...]
    """Parts of the key; empty if the record has none."""
    headers: Mapping[str, bytes]
    """Metadata that travels with the record."""
    id: str | None
    """The same at every attempt: the id that the source gave, if it gave one and the record is not the output of a
    function; otherwise the record's place in the buffer. In a source transform, None if the source gave none."""

    def __init__(
        self,
        value: V,
        event_time: datetime | int = 0,
        keys: tuple[str, ...] = (),
        headers: Mapping[str, bytes] = _NO_HEADERS,
        id: str | None = None,
        _context: Context | None = None,
    ) -> None:
        self._context = _context
        self.value = value
        self.event_time_us = event_time if type(event_time) is int else to_us(event_time)
        self.keys = keys
        self.headers = headers
        self.id = id

    @property
    def edge(self) -> str:
        """While a function works on the record: the name of the edge by which it came, which is that of
        `Context.edge`."""
        # All records of a call come by one edge, so none has to carry it.
        context = CURRENT.get()
        return "" if context is None else context.edge

    @property
    def event_time(self) -> datetime:
        """The event time, in UTC."""
        return _EPOCH + self.event_time_us * _MICROSECOND

    def __repr__(self) -> str:
        return (
            f"Record({self.value!r}, event_time={self.event_time.isoformat()}, keys={self.keys!r}, "
            f"headers={dict(self.headers)!r}, id={self.id!r})"
        )


class Message(_Compared):
    """One output. Fields that are omitted are those of the input record; tags are empty."""

    __slots__ = ("event_time_us", "headers", "keys", "tags", "value")

    value: bytes
    """An object instead of bytes is encoded when the message is sent, as JSON or with the function's `encode`."""
    keys: tuple[str, ...] | None
    tags: tuple[str, ...]
    headers: Mapping[str, bytes] | None
    event_time_us: int | None

    def __init__(
        self,
        value: Any,
        keys: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        headers: Mapping[str, bytes] | None = None,
        event_time: datetime | int | None = None,
    ) -> None:
        if type(value) is not bytes:
            value = value.encode() if isinstance(value, str) else _as_value(value)
        if isinstance(keys, str) or isinstance(tags, str):
            raise TypeError("keys and tags must be sequences of strings: keys=[key], not keys=key")
        self.value = value
        self.keys = None if keys is None else tuple(keys)
        self.tags = tuple(tags)
        self.headers = headers
        self.event_time_us = None if event_time is None else to_us(event_time)

    def __repr__(self) -> str:
        return (
            f"Message({self.value!r}, keys={self.keys!r}, tags={self.tags!r}, headers={self.headers!r}, "
            f"event_time={self.event_time_us!r})"
        )


class Window(NamedTuple):
    """A range of event time, [start, end), whose records are reduced."""

    start_us: int
    """Microseconds since the epoch, UTC."""
    end_us: int
    early: int = 0
    """Number of the early result, from 1; 0 for the final result."""

    @property
    def start(self) -> datetime:
        """The start in UTC; a time outside the range of `datetime` becomes the nearest one in it."""
        return _datetime(self.start_us)

    @property
    def end(self) -> datetime:
        """The end in UTC, with the same limits as `start`."""
        return _datetime(self.end_us)

    def __str__(self) -> str:
        early = f", early {self.early}" if self.early else ""
        return f"[{_text(self.start)}, {_text(self.end)}{early})"


class Batch:
    """The result of one read of a source."""

    __slots__ = ("ended", "pending", "position", "records")

    def __init__(
        self, records: Iterable[Record[Any]] = (), *, position: bytes, ended: bool = False, pending: int | None = None
    ) -> None:
        """`position`: the source's position after these records, in its own encoding; after a restart, reading
        continues there. `ended`: this is the last batch. `pending`: the number of records known to wait after these."""
        self.records = list(records)
        self.position = position
        self.ended = ended
        self.pending = pending


class RecordOutcome(Exception):
    """Base of what a function raises to say what happens to the record that it was called with."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(RecordOutcome):
    """Raise it to get this record again after `delay` (seconds or a `timedelta`). It does not count as an attempt of
    the vertex's `retryStrategy`, whose `maxRetries` limits how often a function may ask. `context.attempt` counts
    it."""

    def __init__(self, delay: float | timedelta = 1.0, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_us = max(0, round((delay.total_seconds() if isinstance(delay, timedelta) else delay) * 1_000_000))


class DeadLetter(RecordOutcome):
    """Raise it to send this record to the dead-letter edge without another attempt."""


class Drop(RecordOutcome):
    """Raise it to drop this record. It is counted under `reason`, so use few different reasons."""


class Fallback(RecordOutcome):
    """Raise it in a sink to send this record to the fallback sink."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class SinkLane:
    """One opening of a lane of a sink that keeps positions."""

    name: str
    """Identifies the lane among all that write to the target: the key under which the target keeps its position."""
    epoch: int
    """The number of this opening: higher than that of every earlier opening of the lane, in any process."""
    context: Context
    """The pipeline, the vertex and the replica."""


class Fenced(Exception):
    """Raise it in `open` if the target already has this epoch of the lane or a higher one, and in `flush` if it has
    another: a newer owner has taken the lane over."""

    def __init__(self, reason: str = "", *, position: bytes | None = None) -> None:
        """`position`: in `open`, the stored one, if there is one. With it, the pipeline can tell another run from
        another owner."""
        super().__init__(reason)
        self.position = position


def _datetime(time_us: int) -> datetime:
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        return _FIRST if time_us < 0 else _LAST


def _text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _as_value(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else value
