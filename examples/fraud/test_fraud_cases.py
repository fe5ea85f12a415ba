from fraud_cases import Cases

import millstream_udf as udf
from millstream_udf.testing import run, run_timers

SECOND_US = 1_000_000


def payment(second: int, card: str = "c-1") -> udf.Record[dict[str, int]]:
    return udf.Record({"cents": 500}, event_time=second * SECOND_US, keys=(card,))


def test_three_payments_within_a_minute_open_a_case() -> None:
    results = run(Cases, [payment(0), payment(30), payment(60)])
    assert results.objects() == [{"card": "c-1", "case": "opened", "at": 60}]
    assert results.states is not None
    assert [timer.at_us // SECOND_US for timer in results.states.timers] == [660]


def test_three_cards_or_a_longer_time_do_not() -> None:
    assert run(Cases, [payment(0, "a"), payment(1, "b"), payment(2, "c")]).values == []
    assert run(Cases, [payment(0), payment(30), payment(61)]).values == []


def test_a_timer_closes_it() -> None:
    before = run(Cases, [payment(second) for second in (0, 1, 2, 100, 601, 602)])
    assert run_timers(Cases, before.states, watermark_us=601 * SECOND_US).values == []
    closed = run_timers(Cases, before.states, watermark_us=602 * SECOND_US)
    assert closed.objects() == [{"card": "c-1", "case": "closed", "at": 602, "payments": 5}]
    assert closed.messages[0].event_time_us == 602 * SECOND_US
