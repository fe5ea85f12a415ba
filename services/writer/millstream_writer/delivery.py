"""Hands a lane's records to its sink and knows what became of every one: retried, set aside, dropped or written.

    frames ─► primary sink ─► failures? ─no─► written
                 ▲              │ yes
                 └─ pause ◄─ again? ─no─► fallback sink │ dropped │ stop, by the spec's `retryStrategy`

Above it: the sink lane of the vertex process, which commits what `take_settled` gives into its mark. Below it: two
open sinks. It does not know ledgers, marks or watermarks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream import codes
from millstream.account import Account
from millstream.codes.code import Code
from millstream.durable import step
from millstream.errors import RetryLaterError, UdfError, UserError
from millstream.limits import FAILURES_NAMED_MAX
from millstream.naming import WITH_VALUES, Naming, Origin, failure_kind
from millstream.plurals import counted
from millstream.record import Position
from millstream.retry import OnFailure, RetryPolicy, Waiting
from millstream.tracebacks import raised, shortened
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, SinkLane, WriteResult, exact_end

_log = logging.getLogger(__name__)

_GUARANTEES = (Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE_IDEMPOTENT, Guarantee.EXACTLY_ONCE_TRANSACTIONAL)
"""Weakest first."""


class Settled(NamedTuple):
    """What the lane may put into its mark."""

    position: Position
    """Every record up to here is where it belongs, permanently."""
    account: Account
    """Of the records since the last `Settled`."""


@dataclass(slots=True)
class DeliveryStatistics:
    """Read by metrics, tests and the screen."""

    retries: int = 0
    """Records tried again, since this process started."""
    errors: int = 0
    """Failures the sinks gave, since this process started."""
    unsettled_records: int = 0
    """Taken, and not yet durable in the target."""
    unsettled_bytes: int = 0
    waiting: str = ""
    """Why the lane waits at this moment; empty when it does not."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """How much may be taken before it is made durable. Half of what the buffer upstream may hold, or it would stop."""

    unsettled_records_max: int = sys.maxsize
    unsettled_bytes_max: int = sys.maxsize


class _Write(NamedTuple):
    """One call of `write`, until it is durable."""

    exact_end: Position
    end: Position
    account: Account
    size: int


class _Pending(NamedTuple):
    """Rows of one frame that are not done."""

    number: int
    """Of the frame, in the write."""
    rows: Sequence[int]
    tries: int


@dataclass(slots=True)
class _Aside:
    """Rows of the frames given that did not go where they were sent."""

    fallback: dict[int, list[int]] = field(default_factory=dict)
    """By number of the frame: rows for the fallback sink."""
    dropped: list[str] = field(default_factory=list)
    """A reason for each record left out."""


class Delivery:
    """The open sinks of one lane, with the policy for what they refuse. Used by one task."""

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
        """`where` names pipeline, vertex and lane in messages, `naming` the records; `stop_error` is raised when the
        policy says stop."""
        self._primary = primary
        self._fallback = fallback
        self._policy = policy
        # The last resort has no resort of its own: what can be tried again is tried forever.
        self._fallback_policy = RetryPolicy(policy.backoff, OnFailure.RETRY)
        self._limits = limits
        self._where = where
        self._rng = rng
        self._stop_error = stop_error
        self._naming = naming
        self._unsettled: deque[_Write] = deque()
        self._statistics = DeliveryStatistics()
        self._told: set[tuple[str, str]] = set()
        """Kinds of failures that a warning has named."""

    @property
    def guarantee(self) -> Guarantee:
        """The weaker of the two sinks'."""
        lanes = (self._primary,) if self._fallback is None else (self._primary, self._fallback)
        return min((lane.guarantee for lane in lanes), key=_GUARANTEES.index)

    def statistics(self) -> DeliveryStatistics:
        return self._statistics

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> Account:
        """Deliver these records (at least one frame, in order), after which the lane is at `end`.

        Returns when each has been taken by a sink or dropped, however often that has to be tried. The account that is
        returned is the same that `take_settled` gives once the records are durable. Raises `UserError` or `UdfError`
        naming the record when the policy says stop, and what the sinks raise.
        """
        exact = exact_end(frames, end)
        aside = await self._deliver(self._primary, self._policy, frames, exact)
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

    def take_settled(self) -> Settled | None:
        """What has become durable since the last call; None when nothing has."""
        durable = self._durable()
        settled: Settled | None = None
        while self._unsettled and (durable is None or self._unsettled[0].exact_end <= durable):
            write = self._unsettled.popleft()
            account = Account() if settled is None else settled.account
            account.add(write.account)
            settled = Settled(write.end, account)
            self._statistics.unsettled_records -= write.account.inputs
            self._statistics.unsettled_bytes -= write.size
        return settled

    async def flush(self) -> None:
        """Make everything taken durable; waits as long as the target takes."""
        # The fallback first: where the primary's position is what counts, it passes nothing that is not stored.
        if self._fallback is not None:
            await self._until_done(self._fallback.flush)
        await self._until_done(self._primary.flush)

    async def tick(self) -> None:
        """Call at least every second. A target that is away is tried again at the next tick."""
        for lane in (self._primary, self._fallback):
            if lane is None:
                continue
            try:
                await lane.tick()
            except RetryLaterError as error:
                _log.warning("%s: %s", self._where, error)

    def _durable(self) -> Position | None:
        """How far both sinks are for sure; None when neither lags behind what it has taken."""
        lanes = (self._primary,) if self._fallback is None else (self._primary, self._fallback)
        known = [lane.durable for lane in lanes]
        return min((position for position in known if position is not None), default=None)

    def _remember(self, write: _Write) -> None:
        self._unsettled.append(write)
        self._statistics.unsettled_records += write.account.inputs
        self._statistics.unsettled_bytes += write.size

    def _over_limits(self) -> bool:
        if not self._reached(self._statistics.unsettled_records, self._statistics.unsettled_bytes):
            return False
        # Some of it may be durable already: the lane has not taken it yet.
        durable = self._durable()
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
        asked: dict[tuple[int, int], Waiting] = {}
        while True:
            parts = [self._part(frames[number], rows, tries) for number, rows, tries in pending]
            result = await self._offer(lane, parts, end)
            again: list[_Pending] = []
            delay_s = 0.0
            for (number, rows, tries), failures in zip(pending, result.failures, strict=bool(result.failures)):
                rows_again = []
                for answered in sorted(failures, key=lambda item: item.index):
                    row = rows[answered.index]
                    made = attempts.get((number, row), 0) + answered.attempted
                    attempts[number, row] = made
                    waiting = asked.setdefault((number, row), Waiting()) if answered.asked else None
                    failure = (
                        self._ask(answered, policy, frames[number], row, waiting) if waiting is not None else answered
                    )
                    if self._is_final(failure, policy, made):
                        self._set_aside(failure, policy, frames[number], number, row, made, aside)
                        continue
                    rows_again.append(row)
                    delay_s = max(delay_s, failure.delay_s)
                    if failure.attempted:
                        delay_s = max(delay_s, policy.backoff.delay_s(made, self._rng))
                if rows_again:
                    again.append(_Pending(number, rows_again, tries + 1))
            if not again:
                self._statistics.waiting = ""
                return aside
            self._statistics.retries += sum(len(item.rows) for item in again)
            pending = again
            await asyncio.sleep(delay_s)

    @staticmethod
    def _part(item: SinkFrame, rows: Sequence[int], tries: int) -> SinkFrame:
        return item if tries == 0 else replace(item.take(rows), attempt=tries)

    async def _offer(self, lane: SinkLane, parts: Sequence[SinkFrame], end: Position) -> WriteResult:
        """One attempt. A target that cannot take anything now counts as a failure of every record."""
        try:
            with step("sink.write"):
                result = await lane.write(parts, end)
        except RetryLaterError as error:
            if not parts:
                # Nothing is for this sink: it learns with the next write that it stands at `end`.
                return WriteResult()
            self._waits(str(error))
            away = "the target cannot take records now"
            result = WriteResult(
                [
                    [SinkFailure(row, away, retryable=True, detail=str(error)) for row in range(part.frame.records)]
                    for part in parts
                ]
            )
        self._statistics.errors += sum(failure.attempted for failures in result.failures for failure in failures)
        first = next((failure for failures in result.failures for failure in failures if failure.retryable), None)
        if first is not None:
            self._waits(f"{first.reason}: {first.detail}" if first.detail else first.reason)
        return result

    def _ask(
        self, failure: SinkFailure, policy: RetryPolicy, frame: SinkFrame, row: int, waiting: Waiting
    ) -> SinkFailure:
        """A function asks to see a record again: say so when it has for long, and end it when it has too often."""
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
        return failure.attempted and policy.on_failure is not OnFailure.RETRY and not policy.backoff.allows(attempts)

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
        """Where a record goes that will not be tried again.

        1. The sink said drop: dropped.
        2. The sink said fallback, or the policy does: to the fallback sink; without one this is an error.
        3. The policy says drop: dropped.
        4. The policy says stop, or retry where trying again cannot help: stop, so that nothing is lost.
        """
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
        """Log the first failure of each kind: a mistake would else show in the account alone. What a function itself
        sends to the fallback sink has not failed."""
        if failure.fallback or len(self._told) >= FAILURES_NAMED_MAX:
            return
        kind = failure.reason, failure_kind(failure.detail, misfit=failure.code is codes.RECORD_MISFIT)
        if kind in self._told:
            return
        self._told.add(kind)
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
        """What happened to the record as far as it may be shown, and the same with the function's own places alone."""
        detail = failure.detail if self._naming.values or not failure.shows_value else ""
        return detail, "\n".join(shortened(detail)) if raised(detail) else detail

    @property
    def _stop_code(self) -> Code:
        return codes.SINK_FUNCTION_FAILED if issubclass(self._stop_error, UdfError) else codes.SINK_REFUSED

    async def _until_done(self, call: Callable[[], Awaitable[None]]) -> None:
        attempt = 0
        while True:
            try:
                await call()
            except RetryLaterError as error:
                self._waits(str(error))
            else:
                self._statistics.waiting = ""
                return
            attempt += 1
            await asyncio.sleep(self._policy.backoff.delay_s(attempt, self._rng))

    def _waits(self, why: str) -> None:
        """Say why the lane waits, once for each new reason."""
        if why != self._statistics.waiting:
            _log.warning("%s: waiting to retry: %s", self._where, why)
        self._statistics.waiting = why
