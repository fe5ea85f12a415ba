"""What happens to the records of one vertex in a lane: its stage.

    on_frame, on_watermark, on_timer, on_end ─► frames, account, state

Above it: `stages`, which passes records through the stages of a lane, and the lane, which owns everything else: calls
in progress, order, halves, spans, counters, dead letters, commit and clock. Below it: nothing. A stage has no effect of
its own: only the commit of its result counts, so it may get the same records any number of times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from millstream.account import Account
from millstream.clock import END_OF_TIME_US
from millstream.frame import Frame
from millstream.ledger.protocol import StoredFrame
from millstream.naming import NO_ORIGIN, Origin
from millstream.record import BufferId
from millstream.udf.states import StateClock
from millstream_writer.committer import Unit
from millstream_writer.routing import Tags


class TakenBackError(Exception):
    """Outputs that a stage has passed on while it worked do not count: its records have to pass again as a whole."""


Put: TypeAlias = "Callable[[StageResult], Awaitable[None]]"
"""Passes outputs on."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """Consecutive records for a stage."""

    frame: Frame
    watermark_us: int
    """The watermark that is valid before these records."""
    origin: Origin = NO_ORIGIN
    """Names the records."""
    _: KW_ONLY
    edge: str = ""
    """The edge by which they came, in a lane that reads all edges into its vertex; otherwise empty."""
    traceparent: str = ""
    """Of the span in which the stage works; empty if the frame is not sampled."""
    put: Put | None = None
    """Passes outputs on while the stage works, in the order of their inputs, before those in its result. They are not
    accounted for here, and count only with that result. After any of them it may raise `TakenBackError`. None: all
    outputs have to be in the result."""


@dataclass(slots=True)
class StageResult:
    """What a stage made of records, of the watermark, or of a timer."""

    account: Account = field(default_factory=Account)
    """What became of the records; of none, for a watermark or a timer."""
    frame: Frame | None = None
    """Outputs in the order of their inputs; None if there are none."""
    tags: Tags | None = None
    """Tags of each output; None if no output has tags."""
    parents: Sequence[int] | None = None
    """Index of the input of each output; None if each input has one output, in order."""
    begun: int = 0
    """How many outputs of the first of these inputs were passed on before."""
    dead_letters: Frame | None = None
    """Inputs that could not be processed, with the reason in their headers."""
    kept: Sequence[tuple[BufferId, Frame]] = ()
    """What the stage keeps in the ledger of its lane, in a buffer of its own."""
    retries: int = 0
    errors: int = 0
    state_reads: int = 0
    """How often the function has read of its lazy states."""


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers whose time has come, as records."""

    frame: Frame
    names: Sequence[str]
    """The name of each among those of its lane, the same at every attempt."""


class Stage(ABC):
    """What happens to the records of one vertex in one lane. Used by one task if it `is_stateful`; otherwise several
    calls of `on_frame` may be in progress."""

    concurrency: int = 1
    """How many records it processes concurrently; 0: unknown. 1 for what answers at once."""
    waits: bool = True
    """Whether `on_frame` waits for something outside, such as a function."""
    takes_arrow: bool = False
    """Whether it takes frames with Arrow columns in place of values."""
    is_stateful: bool = False
    """Whether it has a state: `state`, which is committed with its results, and restored by the next owner of the
    lane. The records of its lane then pass one after another."""
    _before: bytes = b""

    @abstractmethod
    async def on_frame(self, given: StageInput) -> StageResult:
        """Process records. An error ends the lane, which starts again at its last commit."""

    async def on_watermark(self, watermark_us: int) -> StageResult | None:
        """No record older than this follows, except late ones. Called before the next records, if it has advanced, and
        while there are none. Only for stages with a state."""
        return None

    def take_timers(self, clock: StateClock, until_us: int, floor_us: int, most: int) -> DueTimers | None:
        """Take the next timers that are due by a clock out of the state, at most so many, in order. The next call is
        `on_timers`, or `undo`. `floor_us`: the watermark that the lane has promised, which no output may be behind.
        Only for stages with a state."""
        return None

    async def on_timers(self, given: StageInput) -> StageResult:
        """Process the timers that were just taken, as `on_frame` does records."""
        raise NotImplementedError

    async def on_timer(self, now_us: int) -> StageResult | None:
        """It is `timer_us`, by the clock. Only for stages with a state."""
        return None

    def edits(self) -> AbstractAsyncContextManager[AsyncIterator[StoredFrame]] | None:
        """Changes of its state that others ask for, as they come, without end; None if nobody can. Each is for
        `on_edit`."""
        return None

    async def on_edit(self, edit: StoredFrame) -> StageResult | None:
        """Make such a change, or refuse it."""
        return None

    async def on_end(self) -> StageResult | None:
        """The input has ended. Only for stages with a state."""
        return None

    def taken_of(self, edge: str) -> int:
        """How many records of an edge that is a table the state has: this lane has read them, or another one, from
        which it is. Only for stages with a state."""
        return 0

    @property
    def timer_us(self) -> int | None:
        """When to call `on_timer`, by the clock; None: not as long as nothing happens."""
        return None

    @property
    def holds_us(self) -> int:
        """The event time of the oldest record that it may still put out without further input. The lane's watermark
        does not pass it."""
        return END_OF_TIME_US

    @property
    def state(self) -> bytes:
        """Everything that the next owner of the lane needs, at most `STAGE_STATE_BYTES_MAX` bytes; empty for none. It
        is stored again with every commit, so it has to be small."""
        return b""

    def restore(self, state: bytes) -> None:
        """Continue from a state, when the lane is opened. Raises `DamageError` for bytes that are not a state."""
        assert not state, "a stage without a state never had one"

    def begin(self) -> None:
        """The next result may be taken back. Only for stages with a state."""
        self._before = self.state

    def undo(self) -> None:
        """Results since `begin` are discarded, because they do not fit into a commit: be as before them."""
        self.restore(self._before)

    def committed(self, units: Sequence[Unit], sequences: Mapping[BufferId, int]) -> None:
        """These units are durable, some perhaps with what the stage keeps. `sequences`: of the last frame in each
        buffer."""
        return
