"""What becomes of records that a sink does not take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from millstream import codes
from millstream.account import OTHER_REASONS, REASONS_MAX, Account
from millstream.errors import RetryLaterError, UdfError, UserError
from millstream.naming import MISFIT
from millstream.record import Position
from millstream.retry import Backoff, OnFailure, RetryPolicy
from millstream_writer.delivery import Delivery, DeliveryLimits
from millstream_writer.sink import Guarantee, SinkFailure, SinkFrame, WriteResult
from tests.support.errors import raises
from tests.unit.writer.sink_frames import sink_frame

BOUNDLESS = DeliveryLimits(10**9, 10**12)


@dataclass
class ListSink:
    """Keeps what it takes. `judge` says what it refuses; `holds_back` makes it a sink that knows how far it is."""

    judge: Callable[[bytes, int], SinkFailure | None] = lambda value, attempt: None
    away: int = 0
    """Calls from now on that find the target away."""
    holds_back: bool = False
    durable: Position | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE_TRANSACTIONAL
    taken: list[tuple[str, bytes]] = field(default_factory=list)
    calls: list[list[bytes]] = field(default_factory=list)
    end: Position = field(default_factory=lambda: Position(0))
    flushes: int = 0

    async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
        self.calls.append([value for item in frames for value in item.frame.values()])
        self._refuse_while_away()
        failures = []
        for item in frames:
            refused = []
            for row, (record_id, value) in enumerate(zip(item.record_ids(), item.frame.values(), strict=True)):
                failure = self.judge(value, item.attempt)
                if failure is None:
                    self.taken.append((record_id, value))
                else:
                    refused.append(SinkFailure(**{**{s: getattr(failure, s) for s in failure.__slots__}, "index": row}))
            failures.append(refused)
        self.end = end
        return WriteResult(failures if any(failures) else ())

    async def flush(self) -> None:
        self._refuse_while_away()
        self.flushes += 1
        if self.holds_back:
            self.durable = self.end

    async def tick(self) -> None:
        await self.flush()

    def values(self) -> list[bytes]:
        return [value for _, value in self.taken]

    def _refuse_while_away(self) -> None:
        if self.away:
            self.away -= 1
            raise RetryLaterError(codes.TARGET_AWAY, "the target is away")


def delivery(
    primary: ListSink,
    on_failure: OnFailure = OnFailure.RETRY,
    *,
    fallback: ListSink | None = None,
    steps: int = 3,
    limits: DeliveryLimits = BOUNDLESS,
) -> Delivery:
    policy = RetryPolicy(Backoff(interval_s=1e-6, steps=None if on_failure is OnFailure.RETRY else steps), on_failure)
    return Delivery(primary, fallback, policy, limits, where="p/out/in.0", rng=random.Random(1), stop_error=UdfError)


def refuses(*values: bytes, until: int = 10**9, **failure: object) -> Callable[[bytes, int], SinkFailure | None]:
    """Fails these values at every attempt before `until`."""

    def judge(value: bytes, attempt: int) -> SinkFailure | None:
        if value not in values or attempt >= until:
            return None
        return SinkFailure(0, **{"reason": "refused", "retryable": True, **failure})  # type: ignore[arg-type]

    return judge


async def test_everything_taken_is_settled_at_once_by_a_sink_without_memory() -> None:
    sink = ListSink()
    work = delivery(sink)
    account = await work.write([sink_frame([b"a", b"b"], 1), sink_frame([b"c"], 4)], Position(4))
    assert account == Account(inputs=3, processed=3)
    assert work.take_settled() == (Position(4), Account(inputs=3, processed=3))
    assert work.take_settled() is None
    assert sink.values() == [b"a", b"b", b"c"]


async def test_only_failed_records_are_tried_again_and_with_their_ids() -> None:
    sink = ListSink(refuses(b"b", b"d", until=2))
    work = delivery(sink)
    account = await work.write([sink_frame([b"a", b"b"], 1), sink_frame([b"c", b"d"], 2)], Position(2))
    assert account == Account(inputs=4, processed=4)
    assert sink.calls == [[b"a", b"b", b"c", b"d"], [b"b", b"d"], [b"b", b"d"]]
    assert sink.taken[2:] == [("out/in/0/1/1", b"b"), ("out/in/0/2/1", b"d")]
    assert work.statistics().retries == 4
    assert work.statistics().errors == 4


async def test_a_record_that_keeps_failing_is_dropped_after_its_attempts_and_counted() -> None:
    sink = ListSink(refuses(b"b"))
    account = await delivery(sink, OnFailure.DROP).write([sink_frame([b"a", b"b", b"c"], 1)], Position(1))
    assert account == Account(inputs=3, processed=2, dropped={"refused": 1})
    assert sink.calls == [[b"a", b"b", b"c"], [b"b"], [b"b"]]


async def test_what_cannot_be_helped_by_trying_is_not_tried_again() -> None:
    sink = ListSink(refuses(b"b", retryable=False))
    account = await delivery(sink, OnFailure.DROP).write([sink_frame([b"a", b"b"], 1)], Position(1))
    assert account == Account(inputs=2, processed=1, dropped={"refused": 1})
    assert len(sink.calls) == 1


@pytest.mark.parametrize("on_failure", [OnFailure.STOP, OnFailure.RETRY])
async def test_a_hopeless_record_stops_the_lane_and_is_named(on_failure: OnFailure) -> None:
    sink = ListSink(refuses(b"b", retryable=False, detail="status 400"))
    with raises(
        codes.SINK_FUNCTION_FAILED,
        match=r"p/out/in\.0: the sink did not take record out/in/0/1/1 .*refused: status 400",
    ):
        await delivery(sink, on_failure).write([sink_frame([b"a", b"b"], 1)], Position(1))


async def test_of_a_traceback_the_users_own_code_is_shown_and_the_whole_is_kept() -> None:
    trace = 'ValueError: no\nTraceback (most recent call last):\n  File "f.py", line 3, in f\n    g()\nValueError: no'
    sink = ListSink(refuses(b"b", retryable=False, detail=trace))
    with raises(codes.SINK_FUNCTION_FAILED) as stopped:
        await delivery(sink, OnFailure.STOP).write([sink_frame([b"b"], 1)], Position(1))
    assert ": refused: ValueError: no\nf.py:3, in f: g()\nNothing was lost." in str(stopped.value)
    assert stopped.value.detail == trace


async def test_stop_comes_after_the_attempts() -> None:
    sink = ListSink(refuses(b"b"))
    with raises(codes.SINK_FUNCTION_FAILED, match="after 3 attempt"):
        await delivery(sink, OnFailure.STOP).write([sink_frame([b"b"], 1)], Position(1))
    assert len(sink.calls) == 3


async def test_retry_goes_on_past_the_steps() -> None:
    sink = ListSink(refuses(b"b", until=50))
    account = await delivery(sink).write([sink_frame([b"b"], 1)], Position(1))
    assert account.processed == 1
    assert len(sink.calls) == 51


async def test_exhausted_records_go_to_the_fallback_in_order_and_with_their_ids() -> None:
    primary, fallback = ListSink(refuses(b"b", b"d")), ListSink()
    work = delivery(primary, OnFailure.FALLBACK, fallback=fallback)
    account = await work.write([sink_frame([b"a", b"b"], 1), sink_frame([b"c", b"d"], 3)], Position(3))
    assert account == Account(inputs=4, processed=4, fallback=2)
    assert fallback.taken == [("out/in/0/1/1", b"b"), ("out/in/0/3/1", b"d")]
    assert primary.values() == [b"a", b"c"]


async def test_a_sink_may_ask_for_the_fallback_or_for_dropping() -> None:
    def judge(value: bytes, attempt: int) -> SinkFailure | None:
        if value == b"f":
            return SinkFailure(0, "not mine", retryable=False, fallback=True)
        return SinkFailure(0, "stale", retryable=False, drop=True) if value == b"d" else None

    fallback = ListSink()
    work = delivery(ListSink(judge), OnFailure.RETRY, fallback=fallback)
    account = await work.write([sink_frame([b"a", b"f", b"d"], 1)], Position(1))
    assert account == Account(inputs=3, processed=2, fallback=1, dropped={"stale": 1})
    assert fallback.values() == [b"f"]


@pytest.mark.parametrize("on_failure", [OnFailure.RETRY, OnFailure.DROP])
async def test_asking_for_a_fallback_that_is_not_there_is_an_error(on_failure: OnFailure) -> None:
    sink = ListSink(refuses(b"b", retryable=False, fallback=True))
    with raises(codes.SINK_FUNCTION_FAILED):
        await delivery(sink, on_failure).write([sink_frame([b"b"], 1)], Position(1))


async def test_the_fallback_is_tried_for_ever_and_stops_when_it_refuses() -> None:
    primary = ListSink(refuses(b"b", retryable=False))
    fallback = ListSink(refuses(b"b", until=20))
    work = delivery(primary, OnFailure.FALLBACK, fallback=fallback)
    account = await work.write([sink_frame([b"b"], 1)], Position(1))
    assert account == Account(inputs=1, processed=1, fallback=1)
    fallback.judge = refuses(b"b", retryable=False)
    with raises(codes.SINK_FUNCTION_FAILED, match="the fallback sink did not take record out/in/0/2/0"):
        await work.write([sink_frame([b"b"], 2)], Position(2))


async def test_what_the_fallback_drops_is_dropped_and_not_counted_as_fallback() -> None:
    primary = ListSink(refuses(b"a", b"b", retryable=False))
    fallback = ListSink(refuses(b"b", drop=True, reason="unwanted"))
    work = delivery(primary, OnFailure.FALLBACK, fallback=fallback)
    account = await work.write([sink_frame([b"a", b"b", b"c"], 1)], Position(1))
    assert account == Account(inputs=3, processed=2, fallback=1, dropped={"unwanted": 1})
    assert account.difference == 0


async def test_a_target_that_is_away_is_waited_for_without_losing_order() -> None:
    sink = ListSink(away=30)
    work = delivery(sink)
    account = await work.write([sink_frame([b"a"], 1), sink_frame([b"b"], 2)], Position(2))
    assert account == Account(inputs=2, processed=2)
    assert sink.values() == [b"a", b"b"]
    assert work.statistics().waiting == ""


async def test_a_target_that_stays_away_is_given_up_by_policy() -> None:
    primary, fallback = ListSink(away=10**6), ListSink()
    work = delivery(primary, OnFailure.FALLBACK, fallback=fallback)
    account = await work.write([sink_frame([b"a", b"b"], 1)], Position(1))
    assert account == Account(inputs=2, processed=2, fallback=2)
    assert len(primary.calls) == 3


@pytest.mark.parametrize("on_failure", [OnFailure.FALLBACK, OnFailure.DROP])
async def test_a_target_with_a_position_that_stays_away_is_not_given_up(on_failure: OnFailure) -> None:
    """Its next position would pass the records, and a crash before the lane's mark does would lose them."""
    primary, fallback = ListSink(away=30, durable=Position(0)), ListSink()
    work = delivery(primary, on_failure, fallback=fallback)
    account = await work.write([sink_frame([b"a"], 1), sink_frame([b"b"], 2)], Position(2))
    assert account == Account(inputs=2, processed=2)
    assert (primary.values(), fallback.values()) == ([b"a", b"b"], [])


async def test_a_target_with_a_position_that_stays_away_may_stop_the_lane() -> None:
    primary = ListSink(away=10**6, durable=Position(0))
    with raises(codes.SINK_FUNCTION_FAILED, "after 3 attempts: the target cannot take records now"):
        await delivery(primary, OnFailure.STOP).write([sink_frame([b"a"], 1)], Position(1))


async def test_why_the_lane_waits_can_be_seen() -> None:
    sink = ListSink(away=10**9)
    work = delivery(sink)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        writing = group.create_task(work.write([sink_frame([b"a"], 1)], Position(1)))
        for _ in range(1000):
            if work.statistics().waiting:
                break
            await asyncio.sleep(0)
        assert "the target is away" in work.statistics().waiting
        sink.away = 0
        assert (await writing).processed == 1
    assert work.statistics().waiting == ""


async def test_what_was_not_tried_costs_no_attempt() -> None:
    """The first record fails permanently; those behind it are not tried as long as it is."""
    tries: dict[bytes, int] = {}

    def judge(value: bytes, attempt: int) -> SinkFailure | None:
        tries[value] = tries.get(value, 0) + 1
        if value == b"a":
            return SinkFailure(0, "refused", retryable=True)
        return SinkFailure(0, "waits", retryable=True, attempted=False) if tries[b"a"] < 3 else None

    sink = ListSink(judge)
    account = await delivery(sink, OnFailure.DROP).write([sink_frame([b"a", b"b", b"c"], 1)], Position(1))
    assert account == Account(inputs=3, processed=2, dropped={"refused": 1})


async def test_nothing_is_settled_before_the_target_is_durable() -> None:
    sink = ListSink(holds_back=True, durable=Position(0))
    work = delivery(sink)
    await work.write([sink_frame([b"a"], 1)], Position(1))
    await work.write([sink_frame([b"b", b"c"], 5)], Position(5))
    assert work.take_settled() is None
    assert work.statistics().unsettled_records == 3
    sink.durable = Position(1)
    assert work.take_settled() == (Position(1), Account(inputs=1, processed=1))
    await work.flush()
    assert work.take_settled() == (Position(5), Account(inputs=2, processed=2))
    assert work.statistics().unsettled_records == work.statistics().unsettled_bytes == 0


async def test_the_slower_of_two_sinks_decides() -> None:
    primary = ListSink(refuses(b"b", retryable=False))
    fallback = ListSink(holds_back=True, durable=Position(0), guarantee=Guarantee.AT_LEAST_ONCE)
    work = delivery(primary, OnFailure.FALLBACK, fallback=fallback)
    assert work.guarantee is Guarantee.AT_LEAST_ONCE
    await work.write([sink_frame([b"a", b"b"], 1)], Position(1))
    assert work.take_settled() is None
    await work.flush()
    assert work.take_settled() == (Position(1), Account(inputs=2, processed=2, fallback=1))


async def test_a_part_of_a_frame_is_not_settled_by_a_shorter_part() -> None:
    """Marks inside a frame name the frame before it, which may be far back."""
    sink = ListSink(holds_back=True, durable=Position(0))
    work = delivery(sink)
    await work.write([sink_frame([b"a", b"b", b"c"], 7)], Position(3, 3))
    sink.durable = Position(6, 2)
    assert work.take_settled() is None
    sink.durable = Position(6, 3)
    assert work.take_settled() == (Position(3, 3), Account(inputs=3, processed=3))


@pytest.mark.parametrize("limits", [DeliveryLimits(4, 10**9), DeliveryLimits(10**9, 200)])
async def test_what_is_not_durable_is_bounded(limits: DeliveryLimits) -> None:
    sink = ListSink(holds_back=True, durable=Position(0))
    work = delivery(sink, limits=limits)
    for sequence in range(1, 41):
        await work.write([sink_frame([b"x" * 30], sequence)], Position(sequence))
        work.take_settled()
        assert work.statistics().unsettled_records < 4 or work.statistics().unsettled_bytes < 200
    assert 1 < sink.flushes <= 10


async def test_what_is_in_progress_needs_no_flush() -> None:
    """It would only end early what the sink collects next."""

    class Finishing(ListSink):
        in_progress = Position(3)

    sink = Finishing(holds_back=True, durable=Position(0))
    work = delivery(sink, limits=DeliveryLimits(4, 10**9))
    for sequence in range(1, 7):
        await work.write([sink_frame([b"x"], sequence)], Position(sequence))
    assert (sink.flushes, work.take_settled()) == (0, None)
    await work.write([sink_frame([b"x"], 7)], Position(7))
    assert sink.flushes == 1
    assert work.take_settled() == (Position(7), Account(inputs=7, processed=7))


async def test_a_tick_that_finds_the_target_away_fails_nothing() -> None:
    sink = ListSink(away=1)
    work = delivery(sink)
    await work.tick()
    assert (sink.away, sink.flushes) == (0, 0)
    await work.tick()
    assert sink.flushes == 1


async def test_reasons_cannot_fill_the_mark() -> None:
    def judge(value: bytes, attempt: int) -> SinkFailure | None:
        return SinkFailure(0, value.decode() * 200, retryable=False, drop=True)

    work = delivery(ListSink(judge))
    values = [b"reason %d" % number for number in range(3 * REASONS_MAX)]
    account = await work.write([sink_frame(values, 1)], Position(1))
    assert len(account.dropped) == REASONS_MAX + 1
    assert account.dropped[OTHER_REASONS] == 2 * REASONS_MAX
    assert max(map(len, account.dropped)) <= 100
    assert account.difference == 0


async def test_other_errors_pass_through() -> None:
    class Broken(ListSink):
        async def write(self, frames: Sequence[SinkFrame], end: Position) -> WriteResult:
            raise UserError(codes.CONNECTOR_SETTINGS, "broken")

    with raises(codes.CONNECTOR_SETTINGS):
        await delivery(Broken()).write([sink_frame([b"a"], 1)], Position(1))


async def test_the_first_failure_of_each_kind_is_logged_where_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = {
        b"a": SinkFailure(0, MISFIT, retryable=False, detail="the value: field `x` is 1", code=codes.RECORD_MISFIT),
        b"b": SinkFailure(0, MISFIT, retryable=False, detail="the value: field `x` is 2", code=codes.RECORD_MISFIT),
        b"c": SinkFailure(0, MISFIT, retryable=False, detail="the value: field `y` is 1", code=codes.RECORD_MISFIT),
        b"d": SinkFailure(0, "refused", retryable=False, detail="the value of d", shows_value=True),
        b"e": SinkFailure(0, "the function's own wish", retryable=False, drop=True),
        b"f": SinkFailure(0, "the function's own wish", retryable=False, fallback=True),
    }
    frames = [sink_frame([*kinds, *kinds], 1)]
    fallback = ListSink()
    await delivery(ListSink(lambda value, _: kinds[value]), OnFailure.FALLBACK, fallback=fallback).write(
        frames, Position(1)
    )
    assert len(fallback.taken) == 10
    told = [record.message for record in caplog.records]
    assert [line.partition(" (")[0] for line in told] == [
        f"p/out/in.0: the sink did not take record out/in/0/1/{row}" for row in (0, 2, 3)
    ]
    assert all("so it goes to the fallback sink: " in line for line in told)
    assert told[2].splitlines()[0].endswith("refused: the value of d")
    caplog.clear()
    del kinds[b"f"]
    await delivery(ListSink(lambda value, _: kinds[value]), OnFailure.DROP).write(
        [sink_frame(list(kinds), 1)], Position(1)
    )
    assert len(caplog.records) == 3
    assert all("it is dropped: " in record.message for record in caplog.records)
