"""Streams of calls to a user-defined function: the interface for lanes, in frames and answers.

Above it: the lanes. Below it: the protocols, which open streams (`protocol.py`). It knows no process, buffer, mark or
policy.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from millstream.frame import Frame
from millstream.udf.answers import MapAnswer, ReadBatch, SinkAnswer
from millstream.udf.endings import Ending, LostCall
from millstream.udf.states import DeclaredState, StateEntries, StateReader, TableUpdate


class MapStream(Protocol):
    """One open stream for one lane: map or source transform."""

    @property
    def calls_max(self) -> int:
        """How many unanswered calls the function allows."""

    @property
    def takes_arrow(self) -> bool:
        """Whether frames may have Arrow columns in place of values. The stream stays usable for them if the function is
        replaced by one that takes none."""

    async def call(
        self,
        frame: Frame,
        *,
        watermark_us: int,
        attempt: int = 0,
        traceparent: str = "",
        id_prefix: str = "",
        first_index: int = 0,
        alone: bool = False,
    ) -> MapAnswer:
        """Sends one frame and waits for its answer. Many calls may wait at once; they are sent in order. With `alone`,
        the function has no other call until this one is answered.

        When the stream breaks or the sidecar is killed, the call is sent again on the next stream. If the sidecar has
        ended by its own doing, the call raises `ProcessEndedError`: its records may be the cause. Only the returned
        answer counts, and every column of it fits the call: one that does not fit is replaced by one with an `error`.
        Raises `UdfError` with the cause when the function breaks the protocol in another way (invalid message, unknown
        call id, duplicate answer). The caller handles `answer.error` and `answer.outcomes`.
        """


@runtime_checkable
class KeyedMapStream(MapStream, Protocol):
    """A `MapStream` to a function that may have states. Not every protocol has them."""

    @property
    def states(self) -> Sequence[DeclaredState]:
        """The states of the function; none for one without. Another function in its place must have the same."""

    async def keyed_call(
        self,
        frame: Frame,
        states: StateEntries,
        *,
        reader: StateReader | None = None,
        meanwhile: Callable[[], None] | None = None,
        **options: Any,
    ) -> MapAnswer:
        """As `MapStream.call`, with what is remembered for the keys of the records. No two calls may wait that have a
        key in common. `reader`: what the function reads from until it has answered, if it has lazy states. `meanwhile`:
        called once while the function may be working, for each time that the call is made. `options`:
        those of `MapStream.call`; `edge`, by which the records came, if the name of the stream does not say it;
        `timers`: the records are timers; and `tables_version`: of the tables that the function has to have."""


@runtime_checkable
class TableStream(KeyedMapStream, Protocol):
    """A `KeyedMapStream` to a function that may read tables. Not every protocol has them."""

    @property
    def takes_tables(self) -> bool:
        """Whether it can have tables."""

    @property
    def tables(self) -> Sequence[str]:
        """The names of the tables that the function says it reads; it may read others, too."""

    async def update_tables(self, update: TableUpdate) -> MapAnswer:
        """Bring a function, which `takes_tables`, a part of its tables. No other call may wait. As for a call, the
        answer may say that it `lacks_tables`: then all of them have to be sent again."""


@runtime_checkable
class StreamedMapStream(MapStream, Protocol):
    """A `MapStream` to a function that sends its outputs as it makes them. Not every protocol has them. The answer of a
    `call` has its parts in `before`."""

    async def streamed_call(
        self, frame: Frame, take: Callable[[MapAnswer], Awaitable[None]], **options: Any
    ) -> MapAnswer:
        """As `MapStream.call`, with `take` for every part of the answer except for the last one, which is returned. An
        input with outputs in a part may have an outcome in a later one; then these do not count. Nothing of the parts
        counts if the last one has an `error`. The function waits while `take` does. If the stream ends in the middle of
        the answer, the call is not sent again: it raises `PiecesLostError`."""


class SinkStream(Protocol):
    """One open stream for one lane of a user-defined sink."""

    @property
    def calls_max(self) -> int:
        """How many unanswered calls the function allows."""

    async def call(
        self,
        frame: Frame,
        *,
        id_prefix: str,
        first_index: int,
        attempt: int = 0,
        traceparent: str = "",
        alone: bool = False,
    ) -> SinkAnswer:
        """Sends one frame and waits for its answer, like `MapStream.call`."""


class StreamLostError(Exception):
    """The stream of a sink that keeps positions has ended; the text gives the reason. Records that were not flushed are
    lost, and the target may or may not contain those of an unfinished flush: the lane has to be reopened."""

    def __init__(self, why: str, lost: LostCall | None = None) -> None:
        """`lost`: the call that was in flight."""
        super().__init__(why)
        self.lost = lost


class SinkFencedError(Exception):
    """The target already has the lane's epoch or a higher one: another owner, or another run, has opened the lane."""

    def __init__(self, said: str, position: bytes = b"") -> None:
        super().__init__(said)
        self.position = position
        """The position of the target, if the function has returned it."""


class SinkFunctionError(Exception):
    """The function failed, and nothing of the transaction remains: the lane has to be reopened. The text is the
    function's message."""


class PositionSinkStream(Protocol):
    """One lane of a user-defined sink that keeps positions. One call at a time; each raises `StreamLostError` when the
    stream ends, `SinkFunctionError` when the function fails, and `UdfError` when it breaks the protocol."""

    @property
    def checks(self) -> bool:
        """Whether the sink may refuse records, so that they have to be checked before they are written."""

    def alone(self, records: int) -> AbstractAsyncContextManager[None]:
        """In the block, the function has no other calls than those of this stream, with so many records."""

    def cause(self, lost: LostCall) -> Ending | None:
        """The end of the process that had a call of an earlier stream, if the call may be the cause."""

    async def open(self, lane: str, epoch: int) -> bytes:
        """Takes over the lane. Returns the target's position; empty if it has none. Raises `SinkFencedError`."""

    async def check(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        """Returns which of these records the sink refuses. Writes nothing."""

    async def write(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> None:
        """Adds records to the transaction."""

    async def flush(self, position: bytes) -> None:
        """Commits the transaction and the position together. Raises `SinkFencedError`."""


class SourceStream(Protocol):
    """One open stream for one lane of a user-defined source. One read at a time."""

    @property
    def is_away(self) -> bool:
        """Whether a read is waiting for the source's process, because its stream has ended."""

    async def read(self, records_max: int, bytes_max: int, timeout_s: float) -> ReadBatch:
        """Like `SourceLane.read`. A batch that does not fit is replaced by one with an `error`. After a break, and
        after such a batch, the stream is reopened at the position of the last batch that was read: earlier records are
        still in this process, and reopening at the last committed position would repeat them."""

    async def committed(self, position: bytes) -> None:
        """Tells the source that everything up to a position is committed, at once or when its stream is open again."""
