"""Delivers a lane's records to its sink and tracks every one: retried, sent to the fallback, dropped or written.

    frames ─► primary sink ─► failures? ─no─► written
                 ▲              │ yes
                 └─ pause ◄─ again? ─no─► fallback sink │ dropped │ stop, by the spec's `retryStrategy`

Above it: the sink lane of the vertex process, which commits the result of `take_settled` in its mark. Below it: two
open sinks. It does not know ledgers, marks or watermarks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream import codes
from millstream.account import Account
from millstream.durable import step
from millstream.errors import RetryLaterError, UdfError, UserError
from millstream.limits import FAILURES_NAMED_MAX
from millstream.naming import WITH_VALUES, Naming, Origin, failure_kind
from millstream.pauses import RepeatedFailure
from millstream.plurals import counted
from millstream.record import Position
from millstream.retry import OnFailure, RepeatedAsking, RetryPolicy
from millstream.tracebacks import raised, shortened
from millstream_writer.sink import (
    DivideDeliveryError,
    FinishingLane,
    GatheringLane,
    Guarantee,
    RefusedLateError,
    SinkFailure,
    SinkFrame,
    SinkLane,
    WriteResult,
    exact_end,
)

_log = logging.getLogger(__name__)
_AWAY = "the target cannot take records now"

_GUARANTEES = (
    Guarantee.AT_LEAST_ONCE,
    Guarantee.EXACTLY_ONCE_IDEMPOTENT,
    Guarantee.EXACTLY_ONCE_TRANSACTIONAL,
)
"""The guarantees, weakest first."""


class Settlement(NamedTuple):
    """What the lane may commit in its mark."""

    position: Position
    """Every record up to this position has permanently reached its destination."""
    account: Account
    """Account of the records since the last `Settlement`."""


@dataclass(slots=True)
class DeliveryStatistics:
    """Statistics for metrics, tests and the screen."""

    retries: int = 0
    """Records retried since this process started."""
    errors: int = 0
    """Failures that the sinks returned since this process started."""
    unsettled_records: int = 0
    """Records accepted and not yet durable in the target."""
    unsettled_bytes: int = 0
    waiting: str = ""
    """Why the lane is waiting now; empty if it is not."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """How much may be accepted before it is made durable: half of what the upstream buffer may hold, so that it does
    not fill up."""

    unsettled_records_max: int = sys.maxsize
    unsettled_bytes_max: int = sys.maxsize


class _Write(NamedTuple):
    """One call of `write`, until its records are durable."""

    exact_end: Position
    end: Position
    account: Account
    size: int


class _Pending(NamedTuple):
    """Unfinished rows of one frame."""

    number: int
    """Index of the frame in the write."""
    rows: Sequence[int]
    tries: int


@dataclass(slots=True)
class _Aside:
    """Rows of the frames that the sink did not write."""

    fallback: dict[int, list[int]] = field(default_factory=dict)
    """By index of the frame: rows for the fallback sink."""
    dropped: list[str] = field(default_factory=list)
    """The reason for each dropped record."""
    rows: dict[int, set[int]] = field(default_factory=dict)
    """By index of the frame: all these rows."""


class Delivery:
    """The open sinks of one lane, with the policy for records that they refuse. Used by one task."""

    def __init__(
        self,
        primary: SinkLane,
        fallback: SinkLane | None,
        policy: RetryPolicy,
        limits: DeliveryLimits,
        *,
        where: str,
        rng: random.Random,
        stop_error: type[UserError] = UserError,
        naming: Naming = WITH_VALUES,
    ) -> None:
        """`where` names pipeline, vertex and lane in messages, `naming` the records. `stop_error` is raised if the
        policy says stop."""
        self._primary = primary
        self._fallback = fallback
        self._lanes = (primary,) if fallback is None else (primary, fallback)
        self._policy = policy
        # The fallback has no fallback: retryable failures are retried forever.
        self._fallback_policy = RetryPolicy(policy.backoff, OnFailure.RETRY)
        self._limits = limits
        self._where = where
        self._rng = rng
        self._stop_error = stop_error
        self._stop_code = codes.SINK_FUNCTION_FAILED if issubclass(stop_error, UdfError) else codes.SINK_REFUSED
        self._naming = naming
        self._unsettled: deque[_Write] = deque()
        self._statistics = DeliveryStatistics()
        self._failure = RepeatedFailure()
        self._named_failures: set[tuple[str, str]] = set()
        """Kinds of failures that were logged."""
        self.set_aside: Mapping[int, Collection[int]] = {}
        """Rows of the last write that were dropped or sent to the fallback sink, by index of the frame."""

    @property
    def guarantee(self) -> Guarantee:
        """The weaker guarantee of the two sinks."""
        return min((lane.guarantee for lane in self._lanes), key=_GUARANTEES.index)

    @property
    def gathers(self) -> bool:
        """Whether a write of several small frames costs less than a write of each, and is as exact.

        The fallback gets at once what the primary refuses of a write, so its repeated writes must have no effect, too.
        """
        fallback = self._fallback
        return _gathers(self._primary) and (
            fallback is None or fallback.guarantee is Guarantee.EXACTLY_ONCE_TRANSACTIONAL or _gathers(fallback)
        )

    def statistics(self) -> DeliveryStatistics:
        return self._statistics

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> Account:
        """Deliver these records (at least one frame, in order), after which the lane is at `end`.

        Returns when a sink has accepted each record or it was dropped, with any number of attempts. The returned
        account is the one that `take_settled` returns once the records are durable. Raises `UserError` or `UdfError`
        with the record's name if the policy says stop, and what the sinks raise.
        """
        self.set_aside = {}
        exact = exact_end(frames, end)
        aside = await self._deliver(self._primary, self._policy, frames, exact)
        self.set_aside = aside.rows
        account = Account(inputs=sum(item.frame.records for item in frames))
        if self._fallback is not None:
            set_aside = [frames[number].take(rows) for number, rows in sorted(aside.fallback.items())]
            account.fallback = sum(item.frame.records for item in set_aside)
            refused = await self._deliver(self._fallback, self._fallback_policy, set_aside, exact)
            account.fallback -= len(refused.dropped)
            aside.dropped.extend(refused.dropped)
        for reason in aside.dropped:
            account.drop(reason)
        account.processed = account.inputs - len(aside.dropped)
        self._remember(_Write(exact, end, account, sum(item.frame.size for item in frames)))
        if self._over_limits():
            await self.flush()
        return account

    def take_settled(self) -> Settlement | None:
        """What has become durable since the last call; None if nothing has."""
        durable = self._durable()
        settled: Settlement | None = None
        while self._unsettled and (durable is None or self._unsettled[0].exact_end <= durable):
            write = self._unsettled.popleft()
            account = Account() if settled is None else settled.account
            account.add(write.account)
            settled = Settlement(write.end, account)
            self._statistics.unsettled_records -= write.account.inputs
            self._statistics.unsettled_bytes -= write.size
        return settled

    async def flush(self) -> None:
        """Make all accepted records durable; waits as long as the target needs."""
        # The fallback first, so that the primary's position does not pass records that are not stored yet.
        if self._fallback is not None:
            await self._until_done(self._fallback.flush)
        try:
            await self._until_done(self._primary.flush)
        except (RefusedLateError, DivideDeliveryError):
            # The last write was a whole delivery, and the target has nothing of it.
            write = self._unsettled.pop()
            self._statistics.unsettled_records -= write.account.inputs
            self._statistics.unsettled_bytes -= write.size
            raise

    async def tick(self) -> None:
        """Call at least every second. If the target is away, the next tick tries again."""
        for lane in self._lanes:
            try:
                await lane.tick()
            except RetryLaterError as error:
                _log.warning("%s: %s", self._where, error)

    def _durable(self) -> Position | None:
        """The position that both sinks certainly have reached; None if neither lags behind the accepted records."""
        known = [lane.durable for lane in self._lanes]
        return min((position for position in known if position is not None), default=None)

    def _in_progress(self) -> Position | None:
        """The same for the position that they will reach by themselves."""
        known = [lane.in_progress if isinstance(lane, FinishingLane) else lane.durable for lane in self._lanes]
        return min((position for position in known if position is not None), default=None)

    def _remember(self, write: _Write) -> None:
        self._unsettled.append(write)
        self._statistics.unsettled_records += write.account.inputs
        self._statistics.unsettled_bytes += write.size

    def _over_limits(self) -> bool:
        if not self._reached(self._statistics.unsettled_records, self._statistics.unsettled_bytes):
            return False
        # Some of it may be durable already, although the lane has not committed it yet, or will be soon: a flush would
        # only end the next file early.
        durable = self._in_progress()
        if durable is None:
            return False
        records = size = 0
        for write in reversed(self._unsettled):
            if write.exact_end <= durable:
                break
            records += write.account.inputs
            size += write.size
        return self._reached(records, size)

    def _reached(self, records: int, size: int) -> bool:
        return records >= self._limits.unsettled_records_max or size >= self._limits.unsettled_bytes_max

    async def _deliver(self, lane: SinkLane, policy: RetryPolicy, frames: Sequence[SinkFrame], end: Position) -> _Aside:
        """Offer the records to one sink until each is written or set aside."""
        aside = _Aside()
        pending: list[_Pending] = [_Pending(n, range(item.frame.records), 0) for n, item in enumerate(frames)]
        attempts: dict[tuple[int, int], int] = {}
        asked: dict[tuple[int, int], RepeatedAsking] = {}
        while True:
            parts = [self._part(frames[number], rows, tries) for number, rows, tries in pending]
            result = await self._offer(lane, policy, parts, end)
            again: list[_Pending] = []
            delay_s = 0.0
            for (number, rows, tries), failures in zip(pending, result.failures, strict=bool(result.failures)):
                rows_again, tried = [], 0
                for answered in sorted(failures, key=lambda item: item.index):
                    row = rows[answered.index]
                    made = attempts.get((number, row), 0) + answered.attempted
                    attempts[number, row] = made
                    waiting = asked.setdefault((number, row), RepeatedAsking()) if answered.asked else None
                    failure = (
                        self._ask(answered, policy, frames[number], row, waiting) if waiting is not None else answered
                    )
                    if self._is_final(failure, policy, made):
                        self._set_aside(failure, policy, frames[number], number, row, made, aside)
                        continue
                    rows_again.append(row)
                    tried += not failure.untried
                    delay_s = max(delay_s, failure.delay_s)
                    if failure.attempted:
                        delay_s = max(delay_s, policy.backoff.delay_s(made, self._rng))
                if rows_again:
                    self._statistics.retries += tried
                    again.append(_Pending(number, rows_again, tries + bool(tried)))
            if not again:
                self._waited()
                return aside
            pending = again
            await asyncio.sleep(delay_s)

    @staticmethod
    def _part(item: SinkFrame, rows: Sequence[int], tries: int) -> SinkFrame:
        part = item.take(rows)
        return part if tries == 0 else replace(part, attempt=tries)

    async def _offer(
        self, lane: SinkLane, policy: RetryPolicy, parts: Sequence[SinkFrame], end: Position
    ) -> WriteResult:
        """One attempt. A target that cannot take anything now counts as a failure of every record.

        Where the target keeps a position, records are not set aside for that. Whether the last attempt had its effect
        is unknown until the target answers, and its next position would pass these records before the lane's mark
        says what became of them.
        """
        try:
            with step("sink.write"):
                result = await lane.write(parts, end)
        except RetryLaterError as error:
            if not parts:
                # There are no records for this sink: the next write tells it the position `end`.
                return WriteResult()
            self._waits(str(error))
            counts = lane.durable is None or policy.on_failure is OnFailure.STOP
            result = WriteResult([self._away(part, policy, str(error), counts=counts) for part in parts])
        self._statistics.errors += sum(failure.attempted for failures in result.failures for failure in failures)
        some = (failure for failures in result.failures for failure in failures)
        first = next((failure for failure in some if failure.retryable and not failure.untried), None)
        if first is not None:
            self._waits(f"{first.reason}: {first.detail}" if first.detail else first.reason)
        return result

    def _away(self, part: SinkFrame, policy: RetryPolicy, detail: str, *, counts: bool) -> list[SinkFailure]:
        """A failure of each record. `counts`: as one of its attempts."""
        pause_s = 0.0 if counts else policy.backoff.delay_s(part.attempt + 1, self._rng)
        failure = SinkFailure(0, _AWAY, retryable=True, attempted=counts, detail=detail, delay_s=pause_s)
        return [replace(failure, index=row) for row in range(part.frame.records)]

    def _ask(
        self, failure: SinkFailure, policy: RetryPolicy, frame: SinkFrame, row: int, waiting: RepeatedAsking
    ) -> SinkFailure:
        """A function asks for a record again: log it after a while, and stop after too many times."""
        if waiting.again(failure.delay_s):
            _log.warning(
                "%s: the function has returned Retry %d times for %s, which holds up the lane: %s",
                self._where,
                waiting.times,
                self._named(frame, row),
                failure.reason,
            )
        if policy.on_failure is OnFailure.RETRY or waiting.times <= policy.asked_max:
            return failure
        return replace(failure, retryable=False, detail=f"the function returned Retry {waiting.times} times")

    def _named(self, frame: SinkFrame, row: int) -> str:
        origin = Origin(frame.id_prefix, frame.indexes()[row])
        return self._naming.of(frame.frame.take([row]), 0, origin)

    def _is_final(self, failure: SinkFailure, policy: RetryPolicy, attempts: int) -> bool:
        if failure.drop or failure.fallback or not failure.retryable:
            return True
        return (
            failure.attempted > 0 and policy.on_failure is not OnFailure.RETRY and not policy.backoff.allows(attempts)
        )

    def _set_aside(
        self,
        failure: SinkFailure,
        policy: RetryPolicy,
        frame: SinkFrame,
        number: int,
        row: int,
        attempts: int,
        aside: _Aside,
    ) -> None:
        """The destination of a record that will not be retried.

        1. The sink asks to drop it: dropped.
        2. The sink or the policy says fallback: to the fallback sink; without one, this is an error.
        3. The policy says drop: dropped.
        4. The policy says stop, or retry although a retry cannot help: stop, so that nothing is lost.
        """
        aside.rows.setdefault(number, set()).add(row)
        wants_fallback = failure.fallback or policy.on_failure is OnFailure.FALLBACK
        if failure.drop:
            aside.dropped.append(failure.reason)
        elif wants_fallback and self._fallback is not None and policy is not self._fallback_policy:
            aside.fallback.setdefault(number, []).append(row)
            self._warn(failure, frame, row, "goes to the fallback sink")
        elif policy.on_failure is OnFailure.DROP and not failure.fallback:
            aside.dropped.append(failure.reason)
            self._warn(failure, frame, row, "is dropped")
        else:
            which = "fallback sink" if policy is self._fallback_policy else "sink"
            why = "it asks for a fallback sink, but there is none" if failure.fallback else failure.reason
            detail, short = self._detail(failure)
            raise self._stop_error(
                failure.code or self._stop_code,
                f"{self._where}: the {which} did not take {self._named(frame, row)} "
                f"after {counted(attempts, 'attempt')}: {why}{f': {short}' if short else ''}\n"
                "Nothing was lost. Fix the cause and start again, or set sink.retryStrategy.onFailure to fallback "
                "or drop.",
                detail=detail if short != detail else "",
            )

    def _warn(self, failure: SinkFailure, frame: SinkFrame, row: int, fate: str) -> None:
        """Log the first failure of each kind: otherwise a mistake would appear only in the account. A record that a
        function sends to the fallback sink is not a failure."""
        if failure.fallback or len(self._named_failures) >= FAILURES_NAMED_MAX:
            return
        kind = failure.reason, failure_kind(failure.detail, misfit=failure.code is codes.RECORD_MISFIT)
        if kind in self._named_failures:
            return
        self._named_failures.add(kind)
        _, short = self._detail(failure)
        _log.warning(
            "%s: the sink did not take %s, so it %s: %s%s\nOthers like it are counted and not logged.",
            self._where,
            self._named(frame, row),
            fate,
            failure.reason,
            f": {short}" if short else "",
        )

    def _detail(self, failure: SinkFailure) -> tuple[str, str]:
        """What happened to the record, without parts that must not be shown; and the same with only the function's own
        frames of the traceback."""
        detail = failure.detail if self._naming.values or not failure.shows_value else ""
        return detail, "\n".join(shortened(detail)) if raised(detail) else detail

    async def _until_done(self, call: Callable[[], Awaitable[None]]) -> None:
        attempt = 0
        while True:
            try:
                await call()
            except RetryLaterError as error:
                self._waits(str(error))
            else:
                self._waited()
                return
            attempt += 1
            await asyncio.sleep(self._policy.backoff.delay_s(attempt, self._rng))

    def _waits(self, why: str) -> None:
        """Log why the lane waits: each new reason, and again how long it has been waiting."""
        self._failure.warn(_log, f"{self._where}: ", f"waiting to retry: {why}")
        self._statistics.waiting = why

    def _waited(self) -> None:
        self._failure.over(_log, f"{self._where}: ")
        self._statistics.waiting = ""


def _gathers(lane: SinkLane) -> bool:
    return isinstance(lane, GatheringLane) and lane.gathers
