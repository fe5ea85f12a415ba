"""A user-defined sink that keeps positions: its function stores the lane's position in the transaction of the records.

    write ─► check: which records does it refuse? ─► the records after the position ─► write ... flush(position)

Each opening gives the function a number, which it stores in its target with the position. The number combines the epoch
of the lane's mark with the number of the opening, so it is higher than in every earlier opening. A transaction of an
older opening, in this process or another, can therefore no longer commit. When the function dies or fails, the lane is
opened again, and the position says whether the last transaction was committed.

The position is opaque to the function. It also contains the records that were refused since the lane's mark: a function
may refuse other records when it checks them again, but decisions about records before the position are final.

A transaction that ends the process of its function is repeated in halves, until one record is left, which is then
refused. A delivery that has to be whole is never committed in parts, so its owner makes smaller deliveries instead.

Above it: the delivery. Below it: the stream of a sidecar (`millstream.udf.streams`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple, NoReturn, TypeVar

from millstream import codes
from millstream.clock import MICROSECONDS
from millstream.durable import step
from millstream.errors import DamageError, FencedError, RetryLaterError, UdfError
from millstream.limits import SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S
from millstream.pauses import Pauses, pause
from millstream.record import Position
from millstream.retry import RepeatedAsking
from millstream.udf.answers import Outcome, Result
from millstream.udf.endings import Ending, LostCall
from millstream.udf.protocol import UdfClient
from millstream.udf.streams import PositionSinkStream, SinkFencedError, SinkFunctionError, StreamLostError
from millstream.udf.suspects import DEATHS_MAX, Suspects, outcome_of
from millstream_connectors.shared.first_try import opened
from millstream_connectors.shared.kept import ConvertedRecords, KeptLane, TargetPosition, check_kept, fenced, unknown
from millstream_connectors.user_defined.sink.outcomes import failure_of
from millstream_connectors.user_defined.sink.positions import StoredPosition, position_of, text_of
from millstream_writer.connector import SinkOwner
from millstream_writer.sink import (
    DivideDeliveryError,
    RefusedLateError,
    SinkFailure,
    SinkFrame,
    SinkLane,
    WriteResult,
    exact_position,
)

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

TARGET = "the target of the function"
OPENINGS_BITS = 20
"""The bits of an epoch that count the openings of a lane by one owner. The epoch has at most 63 bits in total."""
_RECORDS_MAX = 2**31
"""No limit for a transaction: the bytes of a write already limit its records."""


class _AskedAgainError(Exception):
    """The function has returned Retry for a record, with a delay."""

    def __init__(self, delay_s: float, reason: str) -> None:
        super().__init__(reason or "no reason given")
        self.delay_s = delay_s


_OPENING = (0,)
"""The opening of a lane, for `Suspects`: only one is in flight."""
_ALL = (-1,)
"""A transaction that cannot be divided, for `Suspects`."""
_NOT_TRIED = "not written yet, because an earlier record was refused"


class _Row(NamedTuple):
    """A record to write."""

    item: SinkFrame
    row: int

    @property
    def end(self) -> Position:
        """The lane's position after it."""
        return exact_position(self.item, self.item.indexes()[self.row] + 1)


class _Again(NamedTuple):
    """A write whose last records are offered again, because an earlier one was refused."""

    asked: Position
    """The end that was given."""
    end: Position
    frame: str
    checked: frozenset[Position]
    """The positions after these records. The function has not refused them."""


class UdfPositionLane(KeptLane[_Row]):
    """The stream to the function, which is opened when it is needed, and reopened when it ends."""

    divides = True

    def __init__(self, client: UdfClient, owner: SinkOwner) -> None:
        super().__init__(owner, _RECORDS_MAX)
        self._client = client
        self._name = f"{owner.pipeline}/{owner.name}"
        self._openings = 0
        self._stored = False
        """Whether the function has confirmed that it stored a position."""
        self._stream: PositionSinkStream | None = None
        self._stack = AsyncExitStack()
        """Closing it ends the stream."""
        self._is_open = False
        """Whether the function has opened the lane on that stream, and nothing has failed since."""
        self._lost_call: LostCall | None = None
        """The opening that was in flight when the last stream ended."""
        self._suspects = Suspects()
        """Has `_OPENING`, if that ended the process."""
        self._decided: dict[Position, SinkFailure] = {}
        """Records that the function refused, by the position after them."""
        self._deadly: dict[Position, SinkFailure] = {}
        """Records after the position that have ended the process when they were written, in the same form."""
        self._again: _Again | None = None
        self._offered = 0
        """Records of the last write."""
        self._suspected = 0
        """How many of the next records belong to a whole delivery that has ended the process."""

    async def open(self) -> None:
        await self._over_breaks(super().open)

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        if self._again is not None and self._again.asked != end:
            self._again = None
        self._offered = sum(item.frame.records for item in frames)
        while True:
            try:
                result = await self._over_breaks(partial(super().write, frames, end))
            except RefusedLateError:
                # Nothing after the record is in the target.
                continue
            return result if self._owner.whole else self._without_rest(end, result)

    def _without_rest(self, end: Position, result: WriteResult) -> WriteResult:
        """The result of a write of which nothing is left for the next call: records after one that was refused are
        offered again. They may be refused, too, if they end the process."""
        rest, self._again = self._rest, None
        if rest is None or not any(piece.rows for piece in rest.pieces):
            return result
        left = [piece.rows for piece in rest.pieces]
        failures = [
            [*failures, *(SinkFailure(row, _NOT_TRIED, retryable=True, attempted=0) for row in rows)]
            for failures, rows in zip(result.failures, left, strict=True)
        ]
        checked = frozenset(_Row(piece.item, row).end for piece in rest.pieces for row in piece.rows)
        self._rest, self._again = None, _Again(end, rest.end, rest.frame, checked)
        return WriteResult(failures)

    def _reached(self, frames: Sequence[SinkFrame], end: Position) -> tuple[Position, str]:
        # The last frame may be missing among those that are offered again.
        return super()._reached(frames, end) if self._again is None else (self._again.end, self._again.frame)

    async def flush(self) -> None:
        try:
            await self._over_breaks(super().flush)
        except (RefusedLateError, DivideDeliveryError):
            # All of it is offered again.
            self._rest = None
            raise

    async def reach(self) -> Position:
        return await self._over_breaks(super().reach)

    async def close(self) -> None:
        """End the stream. Calls in progress may still have their effect."""
        self._stream, self._is_open = None, False
        await self._stack.aclose()

    async def _over_breaks(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat `call` after the function has died, or when it has returned Retry. Neither counts as an attempt to
        write the records."""
        pauses, waiting = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S), RepeatedAsking()
        while True:
            try:
                return await call()
            except _AskedAgainError as asked:
                if waiting.again(asked.delay_s):
                    _log.warning(
                        "%s: the function has returned Retry %d times for records of one write, which holds up the "
                        "lane: %s",
                        self._owner.where,
                        waiting.times,
                        asked,
                    )
                await pause(asked.delay_s)
            except StreamLostError as lost:
                self._lost_call = lost.lost
                _log.log(
                    # If the process has ended, its supervisor reports it; an end for a change is not a fault.
                    logging.INFO if pauses.none_yet else logging.WARNING,
                    "%s: the stream to the function ended (%s); the lane is opened again in %.1f s",
                    self._owner.where,
                    lost,
                    pauses.next_s,
                )
                await pauses.wait()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        try:
            if not self._is_open:
                await self._take_over()
            yield
        except SinkFencedError as error:
            await self.close()
            raise FencedError(
                codes.OUTPUT_TAKEN_OVER,
                f"{fenced(self._owner, TARGET)} ({error}). If no other run writes there, because this one was started "
                f"over: {self._remedy}",
            ) from error
        except SinkFunctionError as error:
            # The stream continues. Records that were not flushed are discarded, and the lane is opened again.
            self._is_open = False
            what = f"{self._owner.where}: the function failed, and nothing of this is in its target: {error}"
            raise RetryLaterError(codes.TARGET_AWAY, what) from error
        except (_AskedAgainError, RefusedLateError, DivideDeliveryError):
            # Nothing that was written is uncommitted.
            raise
        except BaseException:
            # A call may have no answer yet.
            await self.close()
            raise

    async def _take_over(self) -> PositionSinkStream:
        """Fence every earlier opening, and read the target's position. Returns the open stream."""
        if self._stream is None:
            opening = self._client.open_position_sink(self._owner.stream_name)
            self._stream = await self._stack.enter_async_context(opening)
            self._judge(self._stream)
        stream = self._stream
        async with stream.alone(1) if self._suspects.must_be_alone(_OPENING) else nullcontext():
            await self._open_lane(stream)
        self._suspects.answered(_OPENING)
        self._is_open = True
        return stream

    async def _open_lane(self, stream: PositionSinkStream) -> None:
        owner = self._owner
        self._openings += 1
        epoch = (owner.epoch << OPENINGS_BITS) + self._openings
        try:
            with step("udsink.open", owner.lane.vertex):
                data = await stream.open(self._name, epoch)
        except SinkFencedError as error:
            if (stored := self._stored_in(error.position)) is not None:
                await self._check(stored)
            raise
        stored = self._stored_in(data)
        if stored is not None:
            await self._check(stored)
            self._durable = max(self._durable, stored.kept.position)
            if not owner.fallback and not owner.whole:
                self._decided.update(stored.refused)
        elif owner.must_be_known:
            raise unknown(owner, TARGET, self._remedy)
        elif self._stored:
            self._lost("has no position")
        await self._begin(stream, is_new=stored is None)

    async def _begin(self, stream: PositionSinkStream, *, is_new: bool) -> None:
        """The mark names the target before it has the first record, and the target has a position before that."""
        owner = self._owner
        if owner.known is None or owner.must_be_known:
            return
        if is_new:
            kept = TargetPosition(owner.ledger_id, owner.epoch, owner.identity, self._durable, "")
            with step("udsink.begin", owner.lane.vertex):
                await stream.flush(text_of(StoredPosition(kept, {})))
            self._stored = True
        await owner.note_target()

    def _judge(self, stream: PositionSinkStream) -> None:
        """Raises `RetryLaterError` if the last opening was certainly the cause of the end of its process: an opening
        that has failed."""
        lost, self._lost_call = self._lost_call, None
        ending = None if lost is None else stream.cause(lost)
        if lost is None or ending is None or self._suspects.ended(_OPENING, alone=lost.alone):
            return
        raise self._failed(ending, "opened the lane")

    def _failed(self, ending: Ending, when: str) -> RetryLaterError:
        """The error if a call that is not about one record has ended the process again and again."""
        what = (
            f"{self._owner.where}: the function failed, and nothing of this is in its target: its process "
            f"{ending.why}, {DEATHS_MAX} times in a row, when it {when}"
        )
        return RetryLaterError(codes.TARGET_AWAY, f"{what}\n{ending.tail}" if ending.tail else what)

    async def _reopened(self, lost: StreamLostError, pauses: Pauses) -> Ending | None:
        """Open the lane again after a call has lost its stream. Returns the end of the process, if that call may be
        the cause."""
        await self.close()
        await pauses.wait()
        stream = await self._take_over()
        ending = None if lost.lost is None else stream.cause(lost.lost)
        if ending is not None:
            # The supervisor of the process has paused.
            pauses.begin_again()
        return ending

    @property
    def _remedy(self) -> str:
        owner = self._owner
        if not owner.must_be_known:
            return f"remove what the function stores of lane {self._name}"
        position = text_of(StoredPosition(TargetPosition(owner.ledger_id, 0, "", owner.mark, ""), {})).decode()
        return f"store this position of lane {self._name} where the function keeps it: `{position}`"

    def _stored_in(self, data: bytes) -> StoredPosition | None:
        try:
            return position_of(data)
        except ValueError as error:
            raise UdfError(
                codes.FUNCTION_PROTOCOL,
                f"{self._owner.where}: the function breaks its protocol: it opened lane {self._name} at a position "
                f"that Millstream never gave it ({error}). It has to return what the last flush stored, unchanged, "
                "and nothing if there was none",
            ) from error

    async def _check(self, stored: StoredPosition) -> None:
        await check_kept(self._owner, stored.kept, TARGET, self._remedy, ours=stored.kept.owner == self._owner.identity)
        if self._stored and stored.kept.position < self._durable:
            self._lost(f"is at sequence {stored.kept.position.sequence}, record {stored.kept.position.record_index},")

    def _lost(self, what: str) -> NoReturn:
        raise DamageError(
            codes.SINK_BEHIND,
            f"{self._owner.where}: {TARGET} {what} of lane {self._name}, but the function had confirmed sequence "
            f"{self._durable.sequence}, record {self._durable.record_index}. Nothing was written now. Check that "
            "flush stores the position and commits before it returns, and that open returns the stored position",
        )

    def _convert(self, item: SinkFrame) -> ConvertedRecords[_Row]:
        rows = range(item.frame.records)
        return ConvertedRecords(rows, [_Row(item, row) for row in rows], ())

    async def _made_of(self, item: SinkFrame) -> ConvertedRecords[_Row]:
        """The function checks the records after the position. Its decisions about earlier records are final."""
        ends = [exact_position(item, index + 1) for index in item.indexes()]
        failures: list[SinkFailure] = []
        new: list[int] = []
        for row, end in enumerate(ends):
            if end > self._durable or self._owner.fallback:
                if (failure := self._deadly.get(end)) is None:
                    new.append(row)
                else:
                    self._decided[end] = failure
                    failures.append(replace(failure, index=row))
            elif (failure := self._decided.get(end)) is not None:
                failures.append(replace(failure, index=row))
        failures += await self._check_records(item, new, ends)
        failures.sort(key=lambda failure: failure.index)
        if not failures:
            return self._convert(item)
        refused = {failure.index for failure in failures}
        rows = [row for row in range(len(ends)) if row not in refused]
        return ConvertedRecords(rows, [_Row(item, row) for row in rows], failures)

    async def _check_records(self, item: SinkFrame, rows: Sequence[int], ends: Sequence[Position]) -> list[SinkFailure]:
        stream = self._stream
        assert stream is not None, "it is used in a session"
        if self._again is not None:
            rows = [row for row in rows if ends[row] not in self._again.checked]
        if not stream.checks or not rows:
            return []
        outcomes = await self._outcomes(item, rows)
        for row in rows:
            # It may have refused them at an earlier attempt.
            self._decided.pop(ends[row], None)
        failures = [self._refusal(outcome, outcome.index) for outcome in outcomes]
        self._decided.update({ends[failure.index]: failure for failure in failures})
        return failures

    async def _outcomes(self, item: SinkFrame, rows: Sequence[int]) -> list[Outcome]:
        """What the function says of these rows of a frame. A row that ends its process is refused."""
        suspects = Suspects()
        waiting: deque[Sequence[int]] = deque([rows])
        outcomes: list[Outcome] = []
        pauses = Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        while waiting:
            some = waiting.popleft()
            stream = self._stream
            assert stream is not None, "it is used in a session"
            try:
                async with stream.alone(len(some)) if suspects.must_be_alone(some) else nullcontext():
                    part = item.take(some)
                    answer = await stream.check(
                        part.frame,
                        id_prefix=part.id_prefix,
                        first_index=part.first_index,
                        attempt=part.attempt,
                        traceparent=part.frame.traceparent,
                    )
            except StreamLostError as error:
                # Nothing was written, so the lane is opened again here.
                ending = await self._reopened(error, pauses)
                if error.lost is None or ending is None:
                    waiting.appendleft(some)
                    continue
                pieces = suspects.ended(some, alone=error.lost.alone)
                waiting.extendleft(reversed(pieces))
                if not pieces:
                    outcomes.append(outcome_of(ending, some[0]))
                continue
            pauses.begin_again()
            suspects.answered(some)
            outcomes += [replace(outcome, index=some[outcome.index]) for outcome in answer.outcomes]
        return outcomes

    def _refusal(self, outcome: Outcome, row: int) -> SinkFailure:
        if outcome.result is Result.RETRY:
            raise _AskedAgainError(outcome.delay_us / MICROSECONDS, outcome.reason)
        # The check depends on the record alone, so another attempt would not help.
        return replace(failure_of(outcome), index=row, retryable=False)

    async def _commit(self, made: Sequence[_Row], end: Position, frame: str) -> None:
        """One transaction of the function: these records, and the position after them.

        If it ends the process, it is repeated in halves, one after the other. Raises `RefusedLateError` when the
        record that is the cause is found: all records before it are in the target. A whole delivery is not repeated in
        halves: raises `DivideDeliveryError` if it has several records, and the target has none of them.
        """
        if len(made) < 2 or self._owner.whole:
            await self._commit_undivided(made, end, frame)
            return
        suspects, pauses = Suspects(), Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        waiting: deque[Sequence[int]] = deque([range(len(made))])
        while waiting:
            rows = waiting.popleft()
            at, name = (end, frame) if not waiting else (made[rows[-1]].end, made[rows[-1]].item.name)
            if at < self._durable:
                # As in `_move`.
                at, name = self._durable, ""
            if (lost := await self._transacted(made, rows, at, name, pauses, suspects)) is None:
                pauses.begin_again()
                suspects.answered(rows)
                self._durable = at
                continue
            ending, alone = lost
            pieces = [rows] if ending is None else suspects.ended(rows, alone=alone)
            waiting.extendleft(reversed(pieces))
            if not pieces and ending is not None:
                self._refuse(made[rows[0]], ending)
                raise RefusedLateError

    async def _commit_undivided(self, made: Sequence[_Row], end: Position, frame: str) -> None:
        suspects, pauses = Suspects(), Pauses(SIDECAR_BACKOFF_FIRST_S, SIDECAR_BACKOFF_LAST_S)
        if self._suspected:
            suspects.ended(_ALL, alone=False)
        while (lost := await self._transacted(made, _ALL, end, frame, pauses, suspects)) is not None:
            ending, alone = lost
            if ending is None:
                continue
            if alone and made and self._owner.whole and self._offered > 1:
                # Also if only one of them is not refused: the others would be offered again with it.
                self._suspected = self._suspected or self._offered
                raise DivideDeliveryError(f"the function's process {ending.why}")
            if suspects.ended(_ALL, alone=alone):
                continue
            if not made:
                raise self._failed(ending, "stored a position, without records")
            self._refuse(made[0], ending)
            raise RefusedLateError
        self._suspected = max(0, self._suspected - self._offered)

    async def _transacted(
        self, made: Sequence[_Row], rows: Sequence[int], end: Position, frame: str, pauses: Pauses, suspects: Suspects
    ) -> tuple[Ending | None, bool] | None:
        """Make a transaction of these records; `rows`: their indexes, or `_ALL`. Returns None if the target has it.
        Otherwise, the lane was opened again, and what is returned is the end of the process if the transaction may be
        the cause, and whether the function had no other call."""
        stream = self._stream
        assert stream is not None, "it is used in a session"
        some = made if rows is _ALL else [made[row] for row in rows]
        try:
            async with stream.alone(len(some)) if suspects.must_be_alone(rows) else nullcontext():
                await self._write(stream, some)
                await self._flush(stream, end, frame)
        except StreamLostError as error:
            before = self._durable
            ending = await self._reopened(error, pauses)
            if before < end <= self._durable:
                return None
            return ending, error.lost is not None and error.lost.alone
        return None

    def _refuse(self, one: _Row, ending: Ending) -> None:
        """Note that a record ends the process: it is refused when it is offered again."""
        # Those before the position cannot come again, except in a fallback.
        self._deadly = {at: failure for at, failure in self._deadly.items() if at > self._durable}
        self._deadly[one.end] = self._refusal(outcome_of(ending), 0)

    async def _write(self, stream: PositionSinkStream, made: Sequence[_Row]) -> None:
        for _, rows in groupby(made, key=lambda one: id(one.item)):
            first, *others = rows
            part = first.item.take([first.row, *(other.row for other in others)])
            await stream.write(
                part.frame,
                id_prefix=part.id_prefix,
                first_index=part.first_index,
                attempt=part.attempt,
                traceparent=part.frame.traceparent,
            )

    async def _flush(self, stream: PositionSinkStream, end: Position, frame: str) -> None:
        owner = self._owner
        kept = TargetPosition(owner.ledger_id, owner.epoch, self._owner.identity, end, frame)
        with step("udsink.flush", owner.lane.vertex):
            await stream.flush(text_of(StoredPosition(kept, self._passed(end))))
        self._stored = True

    def _passed(self, end: Position) -> dict[Position, SinkFailure]:
        """The refused records between the lane's mark and a position."""
        if self._owner.whole or self._owner.fallback:
            # The mark has the outcomes of a delivery before it is made, and a fallback gets other records anyway.
            return {}
        mark = self._owner.mark
        self._decided = {at: failure for at, failure in self._decided.items() if at > mark}
        return {at: failure for at, failure in self._decided.items() if at <= end}


def open_position_lane(client: UdfClient, owner: SinkOwner) -> AbstractAsyncContextManager[SinkLane]:
    """The lane, with every former owner fenced. If the target is away, the first write waits for it."""
    return opened(UdfPositionLane(client, owner), _log)
