"""Targets that keep rows and the position of their lane in one transaction, and what goes wrong on the way to them.

    lane ─► function ─► open(lane, epoch) ─► position                  the target knows the newest epoch of each lane
                    └─► write ... flush(position) ─► rows, position    if it is still that one; all of it, or nothing

A transaction has its effect at the target when it arrives there, whatever has become of its process by then: one that
was killed or paused, or whose function has died, may find it made, or find it made later.

Above it: `outside`, whose functions these are the targets of. Below it: the protocol of sinks that keep positions.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millstream.frame import Frame
from millstream.udf.answers import Outcome, Result, SinkAnswer
from millstream.udf.endings import LostCall
from millstream.udf.streams import SinkFencedError, SinkFunctionError, StreamLostError

T = TypeVar("T")

REFUSED = 0.05
"""Share of records that a function refuses, decided again at each look at one."""
LATE_S = 4.0
"""A transaction that comes late comes within this time: others may own the lane by then."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a target."""

    lane: str
    value: bytes
    epoch: int
    """Of the opening that wrote it."""


@dataclass(slots=True)
class _Kept:
    """What a target keeps of a lane."""

    epoch: int = 0
    position: bytes = b""


@dataclass(slots=True)
class Table:
    """The target of one sink vertex."""

    rows: list[Row] = field(default_factory=list)
    lanes: dict[str, _Kept] = field(default_factory=lambda: defaultdict(_Kept))
    fenced: int = 0
    """Requests of older owners, which had no effect."""

    def open(self, lane: str, epoch: int) -> bytes:
        kept = self.lanes[lane]
        if epoch <= kept.epoch:
            self.fenced += 1
            raise SinkFencedError(f"{lane} is at epoch {kept.epoch}, and this is {epoch}", kept.position)
        kept.epoch = epoch
        return kept.position

    def commit(self, lane: str, epoch: int, rows: Sequence[Row], position: bytes) -> None:
        kept = self.lanes[lane]
        if not self.may_commit(kept.epoch, epoch):
            self.fenced += 1
            raise SinkFencedError(f"{lane} is at epoch {kept.epoch}, and this is {epoch}")
        self.rows.extend(rows)
        kept.position = position

    def may_commit(self, newest: int, epoch: int) -> bool:
        return newest == epoch

    def values_of(self, lane: str) -> list[bytes]:
        return [row.value for row in self.rows if row.lane == lane]


@dataclass(frozen=True, slots=True)
class Losses:
    """How likely a request to a target has which fate."""

    request: float
    """The function dies before it."""
    answer: float
    """It dies before the answer."""
    late: float
    """It dies, and what it asked for is done much later."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Losses:
        return cls(*(rng.choice((0.0, 0.02, 0.1)) for _ in range(3)))


class Way:
    """From functions to targets."""

    def __init__(self, rng: random.Random, losses: Losses, pause_s: Callable[[], float], target: Context) -> None:
        """`target`: what happens there belongs to no process of the pipeline."""
        self.rng = rng
        self._losses = losses
        self._pause_s = pause_s
        self._target = target
        self.is_away = False
        """The targets cannot be reached."""
        self.refuses = True
        """Whether functions refuse records."""

    async def ask(self, do: Callable[[], T]) -> T:
        """Have `do` done at the target, and return its answer."""
        fate, losses, pause_s = self.rng.random(), self._losses, self._pause_s()
        if self.is_away:
            await asyncio.sleep(pause_s)
            raise SinkFunctionError("the target cannot be reached")
        if fate < losses.request:
            await asyncio.sleep(pause_s)
            raise StreamLostError("the function died before it asked")
        if fate < losses.request + losses.answer:
            self._later(pause_s / 2, _quietly, do)
            await asyncio.sleep(pause_s)
            raise StreamLostError("the function died before it was answered")
        if fate < losses.request + losses.answer + losses.late:
            self._later(LATE_S * self.rng.random(), _quietly, do)
            await asyncio.sleep(pause_s)
            raise StreamLostError("the function died, and what it asked for is in flight")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._later(pause_s, _tell, do, answer)
        return await answer

    def _later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, callback, *args, context=self._target)


def _quietly(do: Callable[[], object]) -> None:
    """No function hears the answer."""
    try:
        do()
    except SinkFencedError:
        return


def _tell(do: Callable[[], T], answer: asyncio.Future[T]) -> None:
    try:
        result = do()
    except SinkFencedError as error:
        if not answer.done():
            answer.set_exception(error)
            # Who asked may be dead.
            answer.exception()
    else:
        if not answer.done():
            answer.set_result(result)


class SimPositionSink:
    """`PositionSinkStream`: one life of a function."""

    def __init__(self, way: Way, table: Table, *, checks: bool) -> None:
        self._way = way
        self._table = table
        self._checks = checks
        self._lane = ""
        self._epoch = 0
        self._rows: list[Row] = []
        """Of the open transaction."""

    @property
    def checks(self) -> bool:
        return self._checks

    @asynccontextmanager
    async def alone(self, records: int) -> AsyncIterator[None]:
        yield

    def cause(self, lost: LostCall) -> None:
        return None

    async def open(self, lane: str, epoch: int) -> bytes:
        self._lane, self._epoch, self._rows = lane, epoch, []
        return await self._way.ask(lambda: self._table.open(lane, epoch))

    async def check(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> SinkAnswer:
        random01 = self._way.rng.random
        rows = [row for row in range(frame.records) if self._way.refuses and random01() < REFUSED]
        return SinkAnswer([Outcome(row, Result.DROP, "refused now and then") for row in rows])

    async def write(
        self, frame: Frame, *, id_prefix: str, first_index: int, attempt: int = 0, traceparent: str = ""
    ) -> None:
        self._rows += [Row(self._lane, value, self._epoch) for value in frame.values()]

    async def flush(self, position: bytes) -> None:
        lane, epoch, rows, self._rows = self._lane, self._epoch, self._rows, []
        await self._way.ask(lambda: self._table.commit(lane, epoch, rows, position))
