"""The age of the oldest call, and when it is reported."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.udf.slow_calls import SLOW_AFTER_S, OldestCall


@dataclass(eq=False)
class Call:
    what: str


def test_the_oldest_call_ages_from_when_it_became_the_oldest() -> None:
    oldest, first, second = OldestCall(), Call("first"), Call("second")
    for now_s in range(4):
        oldest.look(first, 1, float(now_s))
    assert oldest.seconds == 3.0
    oldest.look(second, 1, 4.0)
    assert oldest.seconds == 0.0
    oldest.look(second, 1, 5.0)
    assert oldest.seconds == 1.0
    oldest.look(None, 1, 6.0)
    assert (oldest.call, oldest.seconds) == (None, 0.0)


def test_a_call_that_another_process_has_got_begins_again() -> None:
    oldest, call = OldestCall(), Call("call")
    for now_s in range(4):
        oldest.look(call, 1, float(now_s))
    oldest.look(call, 2, 4.0)
    assert oldest.seconds == 0.0


def test_time_in_which_this_process_did_not_run_does_not_count() -> None:
    oldest, call = OldestCall(), Call("call")
    oldest.look(call, 1, 0.0)
    oldest.look(call, 1, 3600.0)
    assert oldest.seconds <= 2.0


def test_reports_become_rarer_and_slowness_does_not() -> None:
    oldest, call = OldestCall(), Call("call")
    reported = []
    for now_s in range(100):
        if oldest.look(call, 1, float(now_s)):
            reported.append(now_s)
        assert oldest.is_slow == (now_s >= SLOW_AFTER_S)
    assert reported == [10, 20, 40, 80]
    # Another call that is as slow as that is not reported again, but it is slow.
    assert not oldest.look(Call("another"), 1, 100.0)
    assert not oldest.is_slow
    # The next process has reports of its own.
    other = Call("of the next process")
    assert [now_s for now_s in range(101, 113) if oldest.look(other, 2, float(now_s))] == [111]
